#!/usr/bin/env python3
"""The main job of Backstay on one machine: train, kill a node in the middle of a save, restore, prove it."""

import os
import shutil
import signal
import sys
import tempfile
import time

import options
from account import Account
from cluster import LEASE_TTL_MS, Cluster, DemoError
from fault import Fault
from processes import STOP_SIGNALS, Child, signals_held
from progress import Progress
from training import Training

JOB = "quickstart"
POLL_S = 0.002         # The kill has to hit a copy that lasts some milliseconds.
CHECK_S = 0.1
SILENCE_MAX_S = 120    # Without any event for so long, the run has failed.
PROTECT_TIMEOUT_S = 60


def plural(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


class Demo:
    """One run, from services to proof."""

    def __init__(self, o, directory, progress):
        self.o = o
        self.directory = directory
        self.progress = progress
        self.cluster = Cluster(o.bin, directory, o.nodes, options.memory_budget_mib(o))
        self.fault = Fault(o, self.cluster)
        self.training = None
        self.exit_code = None  # Known once the story is told; --keep goes on from there.

    def start_services(self):
        o, nodes = self.o, self.cluster.nodes
        self.progress.show(f"starting {plural(o.nodes, 'service')}")
        self.cluster.start()
        spares = [node.name for node in nodes[o.training_nodes:]]
        self.progress.say(
            f"{plural(o.nodes, 'service')} run on this machine, each as a node of its own: "
            f"{', '.join(node.name for node in nodes)}.\n"
            f"{self.cluster.metadata_node.name} serves the embedded metadata store, so it is not the one to be killed; "
            f"{' and '.join(spares)} {'is' if len(spares) == 1 else 'are'} spare.\n"
            f"A node counts as lost {LEASE_TTL_MS / 1000:g} s after it was last heard of.")

    def train(self):
        o = self.o
        directory = os.path.join(self.directory, "run")
        os.makedirs(directory)
        self.training = Training(o.bin, directory, o, JOB, o.launcher == "restart-all")
        self.progress.say(
            f"{plural(o.world_size, 'rank')} train a byte-level language model for {o.steps} steps: "
            f"{o.state_mib} MiB of state each, saved every {plural(o.save_every, 'step')}, "
            f"{plural(o.replicas, 'replica')} on other nodes.")
        self.training.start([node for node in self.cluster.nodes[:o.training_nodes]
                             for _ in range(o.ranks_per_node)])
        self._run(self.training, self.fault)

    def reference(self):
        """The digests of a run that nobody disturbed, without Backstay."""
        o = self.o
        self.progress.say("\nThe same training again, undisturbed and without Backstay, for comparison:")
        directory = os.path.join(self.directory, "reference")
        os.makedirs(directory)
        training = Training(o.bin, directory, o, JOB, False)
        try:
            training.start([None] * o.world_size)
            self._run(training, None)
        finally:
            training.stop()
        return training.digests()

    def _run(self, training, fault):
        """Until every rank has finished."""
        heard = checked = time.monotonic()
        while not training.finished():
            for member, event in training.poll():
                heard = time.monotonic()
                if event["event"] == "step" and member.rank == 0:
                    self.progress.show(f"step {event['step']} of {self.o.steps}, loss {event['loss']:.3f}, "
                                       f"{event['seconds'] * 1000:.0f} ms for it")
                self._tell(fault.on_event(training, member, event) if fault else None)
            self._tell(fault.replace(training) if fault else None)
            now = time.monotonic()
            if now - checked > CHECK_S:
                checked = now
                self.fault.check(training)
            if now - heard > SILENCE_MAX_S:
                raise DemoError("\n  ".join([f"no rank said anything for {SILENCE_MAX_S} s; their last words:",
                                             *(f"rank {m.rank}: {m.last_words()}" for m in training.members)]))
            time.sleep(POLL_S)
        training.poll()

    def _tell(self, line):
        if line:
            self.progress.say(line)

    def wait_protected(self):
        """What the leader knows once nothing committed has fewer replicas than the policy wants."""
        deadline = time.monotonic() + PROTECT_TIMEOUT_S
        while time.monotonic() < deadline:
            why = self.cluster.ask("why", JOB)
            if why and why.get("leader_answered") and not why["under_protected"]:
                return why
            self.progress.show("waiting for the lost replicas to be made again")
            time.sleep(0.05)
        raise DemoError(f"not everything was protected again within {PROTECT_TIMEOUT_S} s")

    def prove(self):
        """Whether the final states equal those of a run that nobody disturbed."""
        say = self.progress.say
        ours, undisturbed = self.training.digests(), self.reference()
        for rank, (one, other) in enumerate(zip(ours, undisturbed)):
            say(f"  rank {rank}: {one} {'==' if one == other else '!='} {other}")
        equal = ours == undisturbed
        say("\nPROOF: every rank's final state is, bit for bit, that of the undisturbed run." if equal else
            "\nFAILED: the final states differ from those of the undisturbed run.")
        return equal

    def keep(self):
        cli = f"{os.path.join(self.o.bin, 'backstay')} --connect {self.cluster.metadata_node.control}"
        self.progress.say(f"""
The services stay up until you press Ctrl-C. To look at them:
  {cli} status
  {cli} why {JOB} --timeline
  {cli} ls {JOB}
Logs and events are in {self.directory}, which goes with them.""")
        signal.pause()

    def stop(self):
        if self.training is not None:
            self.training.stop()
        self.cluster.stop()


def act(demo):
    """The whole story. Returns the exit code."""
    o, say = demo.o, demo.progress.say
    refused = options.memory_refusal(o, options.memory_available_mib())
    if refused:
        raise DemoError(refused)
    demo.start_services()
    try:
        demo.train()
    except DemoError as error:
        statement = demo.fault.beyond_policy()
        if statement is None or demo.training.first_after(demo.fault.killed_unix_ms, "resumed"):
            raise
        say(f"\n{error}\n\nBEYOND THE POLICY: {statement}\n"
            "No rank trained on: a part of the state is not taken for the whole.")
        return end(demo, 0)
    demo.fault.check_happened()
    why = demo.wait_protected()
    for line in Account(o, demo.fault, demo.training, why).lines():
        say(line)
    return end(demo, 0 if demo.prove() else 1)


def end(demo, exit_code):
    demo.exit_code = exit_code
    if demo.o.keep:
        demo.keep()
    return exit_code


class Interrupted(BaseException):
    """A signal asked for the end; the clean-up is in `finally` blocks."""


def interrupt(number, _frame):
    ignore_signals()
    raise Interrupted(number)


def ignore_signals():
    """The clean-up is bounded, and is not interrupted again."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def main():
    o = options.parse()
    if o.only_check_options:
        return 0
    progress = Progress()
    directory, demo = None, None
    try:
        for number in STOP_SIGNALS:
            # Who starts it under nohup wants it to outlive the terminal.
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, interrupt)
        with signals_held():
            directory = tempfile.mkdtemp(prefix="backstay-")
        demo = Demo(o, directory, progress)
        return act(demo)
    except DemoError as error:
        progress.clear()
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Nobody reads any more.
        return 1
    except Interrupted as signalled:
        if sys.stdout.isatty():
            progress.clear()
        print("stopping", file=sys.stderr)
        told = demo is not None and demo.exit_code is not None
        return demo.exit_code if told else 128 + signalled.args[0]
    finally:
        ignore_signals()
        if demo is not None:
            demo.stop()
        Child.kill_all()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
