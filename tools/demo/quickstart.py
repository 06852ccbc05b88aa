#!/usr/bin/env python3
"""The main job of Backstay on one machine: train, kill a node in the middle of a save, restore, prove it."""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time

from cluster import Cluster, DemoError
from timeline import Timeline, describe_restored
from training import EXIT_FAULT, Training

JOB = "quickstart"
VERSIONS_KEPT = 2          # The example trainer's.
POLL_S = 0.002             # The kill has to hit a copy that lasts some milliseconds.
STEP_TIMEOUT_S = 120       # Without any event for this long, the run has failed.
KILL_AFTER_COMMITS = 2     # So that an older snapshot exists too.
PROTECT_TIMEOUT_S = 60


class Progress:
    """One line that is rewritten on a terminal; a plain line now and then elsewhere."""

    PLAIN_INTERVAL_S = 10

    def __init__(self):
        self._terminal = sys.stdout.isatty()
        self._shown = False
        self._next_plain = time.monotonic() + self.PLAIN_INTERVAL_S

    def show(self, text):
        if self._terminal:
            print(f"\r\033[K  {text}", end="", flush=True)
            self._shown = True
        elif time.monotonic() >= self._next_plain:
            print(f"  {text}", flush=True)
            self._next_plain = time.monotonic() + self.PLAIN_INTERVAL_S

    def say(self, text=""):
        if self._shown:
            print("\r\033[K", end="")
            self._shown = False
        print(text, flush=True)


def parse_arguments():
    p = argparse.ArgumentParser(prog="quickstart.sh", description=__doc__)
    p.add_argument("--nodes", type=int, help="services, spares included (default: 4 and the spares)")
    p.add_argument("--ranks-per-node", type=int, default=1)
    p.add_argument("--replicas", type=int, choices=range(4),
                   help="copies on other nodes (default 1; 2 with --kill two-nodes)")
    p.add_argument("--state-mib", type=int, default=64, help="state of each rank")
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--save-every", type=int, default=5)
    p.add_argument("--kill", choices=["service", "trainer", "both", "two-nodes", "none"], default="both")
    p.add_argument("--launcher", choices=["replace", "restart-all"], default="replace",
                   help="replace the lost rank, or stop and start all ranks again")
    p.add_argument("--text", help="file to learn from (default: Debian's licence texts)")
    p.add_argument("--keep", action="store_true", help="leave the services up and say how to look at them")
    p.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    o = p.parse_args()
    o.spares = {"both": 1, "two-nodes": 2}.get(o.kill, 1)
    if o.nodes is None:
        o.nodes = 4 + o.spares
    if o.replicas is None:
        o.replicas = 2 if o.kill == "two-nodes" else 1
    o.training_nodes = o.nodes - o.spares
    o.world_size = o.training_nodes * o.ranks_per_node
    if o.training_nodes < 2 or o.ranks_per_node < 1 or o.state_mib < 1:
        p.error("at least two nodes with trainers besides the spares, one rank and 1 MiB each")
    if o.kill == "two-nodes" and o.training_nodes < 3:
        p.error("--kill two-nodes needs three nodes with trainers: the first serves the metadata store")
    if o.save_every < 1 or o.steps < (KILL_AFTER_COMMITS + 2) * o.save_every:
        p.error(f"--steps must leave room for {KILL_AFTER_COMMITS + 2} saves")
    o.step_ms_min = 60 if o.kill != "none" else 0
    return o


def memory_budget_mib(o):
    """Own shards and as many replicas, with one more of each being saved, and room for a lost node's."""
    per_rank = (o.state_mib * 1.1 + 8) * (VERSIONS_KEPT + 1)
    return int(per_rank * o.ranks_per_node * (1 + o.replicas) * 2 + 64)


def check_memory(o):
    with open("/proc/meminfo", encoding="ascii") as source:
        available_kib = next(int(line.split()[1]) for line in source if line.startswith("MemAvailable"))
    ranks = o.world_size
    # Slots on all nodes, and each trainer's own state (weights, gradients, moments).
    needed_mib = ranks * o.state_mib * ((1 + o.replicas) * (VERSIONS_KEPT + 1) + 1.5)
    if needed_mib > available_kib / 1024:
        raise DemoError(f"{ranks} ranks of {o.state_mib} MiB with {o.replicas} replicas need about "
                        f"{needed_mib:.0f} MiB, {available_kib / 1024:.0f} MiB are available: "
                        "lower --state-mib, --nodes or --replicas")


class Demo:
    """One run, from services to proof."""

    def __init__(self, options, directory):
        self.o = options
        self.directory = directory
        self.progress = Progress()
        self.cluster = Cluster(options.bin, directory, options.nodes, memory_budget_mib(options))
        self.training = None
        self.spares = self.cluster.nodes[options.training_nodes:]
        self.killed_ms = None
        self.killed_text = ""
        self.killed_step = 0
        self.victims = []
        self.service_down = False
        self.replaced = False

    # ---- Acts -------------------------------------------------------------------------------------------------

    def start_services(self):
        o, say = self.o, self.progress.say
        self.cluster.start()
        names = [n.name for n in self.cluster.nodes]
        say(f"{o.nodes} services are up on loopback, each a node of its own: {', '.join(names)}")
        say(f"  {self.cluster.metadata_node.name} serves the embedded metadata store and is not killed; "
            f"{', '.join(n.name for n in self.spares)} is spare" if len(self.spares) == 1 else
            f"  {self.cluster.metadata_node.name} serves the embedded metadata store and is not killed; "
            f"{', '.join(n.name for n in self.spares)} are spare")

    def train(self):
        o = self.o
        directory = os.path.join(self.directory, "run")
        os.makedirs(directory)
        self.training = Training(o.bin, directory, o, JOB, o.launcher == "restart-all")
        places = [node for node in self.cluster.nodes[:o.training_nodes] for _ in range(o.ranks_per_node)]
        self.training.start(places)
        self.progress.say(f"{o.world_size} ranks train {o.steps} steps of a byte-level language model, "
                          f"{o.state_mib} MiB of state each, {o.replicas} replica"
                          f"{'' if o.replicas == 1 else 's'}, a save every {o.save_every} steps")
        self._run_to_end()

    def _run_to_end(self):
        last_event = time.monotonic()
        while True:
            for member, event in self.training.poll():
                last_event = time.monotonic()
                self._on_event(member, event)
            self._launch_replacements()
            finished = [m.last("finished") for m in self.training.members]
            if all(finished) and not any(m.child.running() for m in self.training.members):
                self.training.poll()
                return
            if time.monotonic() - last_event > STEP_TIMEOUT_S:
                raise DemoError(f"nothing happened for {STEP_TIMEOUT_S} s\n" + self._log_tails())
            time.sleep(POLL_S)

    def _on_event(self, member, event):
        kind = event["event"]
        if kind == "step" and member.rank == 0:
            self.progress.show(f"step {event['step']} of {self.o.steps}, loss {event['loss']:.3f}, "
                               f"{event['seconds'] * 1000:.0f} ms a step")
        if (kind == "save_begun" and self.killed_ms is None and self.o.kill != "none"
                and member in self._victim_members() and self._commits() >= KILL_AFTER_COMMITS):
            self._kill(event["step"])
        if self.service_down and kind == "service_lost":
            self._bring_service_back()

    def _commits(self):
        steps = {e["step"] for m in self.training.members for e in m.tail.events if e["event"] == "committed"}
        return len(steps)

    def _victim_nodes(self):
        # From the middle; never the first, which serves the metadata store.
        count = 2 if self.o.kill == "two-nodes" else 1
        return self.cluster.nodes[1:self.o.training_nodes][-1 - count:][:count] or self.cluster.nodes[1:1 + count]

    def _victim_members(self):
        nodes = self._victim_nodes()
        members = [m for m in self.training.members if m.node in nodes]
        return members[:1] if self.o.kill == "trainer" else members

    def _kill(self, step):
        o = self.o
        nodes, members = self._victim_nodes(), self._victim_members()
        self.killed_step = step
        self.killed_ms = int(time.time() * 1000)
        if o.kill != "trainer":
            for node in nodes:
                node.child.kill()
        if o.kill != "service":
            for member in members:
                member.child.kill()
            self.victims = members
        what = {"service": f"the service of {nodes[0].name} is killed",
                "trainer": f"the trainer of rank {members[0].rank} is killed",
                "both": f"{nodes[0].name} dies: its service and its trainer are killed",
                "two-nodes": f"{' and '.join(n.name for n in nodes)} die: services and trainers are killed"}
        self.killed_text = f"{what[o.kill]} while step {step} is being saved"
        self.service_down = o.kill == "service"
        self.progress.say(f"SIGKILL: {self.killed_text}")

    def _bring_service_back(self):
        self.service_down = False
        for node in self._victim_nodes():
            self.cluster.start_node(node)

    def _launch_replacements(self):
        if not self.victims or self.replaced:
            if self.replaced:
                self._check_members()
            return
        if self.o.launcher == "restart-all":
            survivors = [m for m in self.training.members if m not in self.victims]
            if any(m.child.running() for m in survivors):
                return
            wrong = [m for m in survivors if m.child.exit_code() != EXIT_FAULT]
            if wrong:
                raise DemoError(f"rank {wrong[0].rank} ended with {wrong[0].child.exit_code()}\n" + self._log_tails())
            self.training.restart_all([self._place(m) for m in self.training.members])
        else:
            self.training.replace({m.rank: self._place(m) for m in self.victims})
        self.replaced = True

    def _place(self, member):
        """Where a rank goes on: a dead node's ranks move to a spare, the others stay."""
        if member.node.alive():
            return member.node
        dead = self._victim_nodes()
        return self.spares[dead.index(member.node) % len(self.spares)]

    def _check_members(self):
        for member in self.training.members:
            code = member.child.exit_code()
            if code not in (None, 0):
                raise DemoError(f"rank {member.rank} on {member.node.name} ended with {code}\n" + self._log_tails())

    def _log_tails(self):
        lines = []
        for member in self.training.members:
            lines.append(f"  rank {member.rank}:")
            lines += [f"    {line}" for line in member.child.log_tail(4)]
        return "\n".join(lines)

    # ---- What happened -----------------------------------------------------------------------------------------

    def wait_protected_again(self):
        """Until nothing committed has fewer replicas than the policy wants."""
        deadline = time.monotonic() + PROTECT_TIMEOUT_S
        while time.monotonic() < deadline:
            why = self.cluster.ask("why", JOB)
            if why and why.get("leader_answered") and not why["under_protected"]:
                return why
            self.progress.show("waiting for repair")
            time.sleep(0.05)
        raise DemoError(f"not everything was protected again within {PROTECT_TIMEOUT_S} s")

    def report(self, why):
        o, say = self.o, self.progress.say
        self._report_saves()
        if self.killed_ms is None:
            return
        members = self.training.everyone
        line = Timeline(self.killed_ms, self.killed_text)
        events = [e for e in why["timeline"] if e["unix_ms"] >= self.killed_ms]
        accounts = {}
        for event in events:
            if event["what"] in ("fenced", "closing", "decided", "resumed", "node lost", "repair started",
                                 "repaired", "protected again", "moved to an older snapshot", "restored"):
                line.add(event["unix_ms"], f"{event['what']}: {event['detail']}")
                if event["what"] == "restored":
                    accounts[event["detail"]] = True
        line.add_first(members, "fault_seen", lambda m, e: f"fault seen by rank {m.rank}: {e['message']}")
        line.add_first(members, "service_lost", lambda m, e: f"rank {m.rank} lost its service; training goes on")
        line.add_first(members, "service_back", lambda m, e: f"rank {m.rank} has its service back")
        if self.replaced:
            for member in members:
                started = member.tail.events[0] if member.tail.events else None
                if started and started["unix_ms"] >= self.killed_ms:
                    line.add(started["unix_ms"], f"a new process starts as rank {member.rank} on {member.node.name}")
        line.add_first(members, "first_step", lambda m, e: f"first step after it: step {e['step']}")
        if not accounts:
            line.add_each(members, "restored", describe_restored({}))
        say("\nWhat happened:")
        say(line.render())
        resumed = [e for m in members for e in m.tail.events
                   if e["event"] == "resumed" and e["unix_ms"] >= self.killed_ms]
        if resumed:
            base = resumed[0]["step"]
            done = max((e["step"] for m in members for e in m.tail.events
                        if e["event"] == "step" and e["unix_ms"] <= self.killed_ms), default=self.killed_step)
            say(f"\nSteps lost: {max(0, done - base)} (the fault came after step {done}, "
                f"training went on from step {base})")
        else:
            say("\nSteps lost: 0")

    def _report_saves(self):
        stalls = sorted(e["stall_ms"] for m in self.training.everyone for e in m.tail.events
                        if e["event"] == "saved")
        if stalls:
            self.progress.say(f"{len(stalls)} saves; each stalled training {stalls[len(stalls) // 2]:.1f} ms (median), "
                              f"{stalls[-1]:.1f} ms at most")

    def prove(self):
        """Whether the final states equal those of a run that nobody disturbed."""
        o, say = self.o, self.progress.say
        say("\nThe same run again, undisturbed and without Backstay, for comparison")
        directory = os.path.join(self.directory, "reference")
        os.makedirs(directory)
        disturbed = self.training
        self.training = Training(o.bin, directory, o, JOB, False)
        self.training.start([None] * o.world_size)
        self.killed_ms = self.killed_ms or 0  # Nobody is killed in this one.
        self.victims, self.replaced = [], False
        try:
            self._run_to_end()
            reference = [m.last("finished")["digest"] for m in self.training.members]
        finally:
            self.training.stop()
            self.training = disturbed
        digests = [m.last("finished")["digest"] for m in self.training.members]
        equal = digests == reference
        for rank, (ours, theirs) in enumerate(zip(digests, reference)):
            say(f"  rank {rank}: {ours} {'==' if ours == theirs else '!='} {theirs}")
        say("PROOF: every rank's final state is bit for bit that of the undisturbed run." if equal else
            "FAILED: the final states differ from those of the undisturbed run.")
        return equal

    def beyond_policy(self):
        """A plain statement when more was killed than the policy promises to survive; else None."""
        lost = len(self._victim_nodes()) if self.o.kill in ("both", "two-nodes") else 0
        if lost <= self.o.replicas:
            return None
        return (f"{lost} node{'s' if lost > 1 else ''} died with {self.o.replicas} "
                f"replica{'' if self.o.replicas == 1 else 's'} of each shard: that is beyond the policy, which "
                f"promises to survive {self.o.replicas}.")

    def stop(self):
        if self.training is not None:
            self.training.stop()
        self.cluster.stop()

    def keep(self):
        cli = os.path.join(self.o.bin, "backstay")
        print(f"""
The services stay up until you press Ctrl-C. To look at them:
  {cli} --connect {self.cluster.metadata_node.control} status
  {cli} --connect {self.cluster.metadata_node.control} why {JOB}
  {cli} --connect {self.cluster.metadata_node.control} ls {JOB}
Logs and events: {self.directory}""", flush=True)
        signal.pause()


def run(o, directory):
    demo = Demo(o, directory)
    try:
        check_memory(o)
        demo.start_services()
        try:
            demo.train()
        except DemoError as error:
            statement = demo.beyond_policy()
            if statement is None or demo.killed_ms is None:
                raise
            demo.progress.say(f"\n{error}\n\nBEYOND THE POLICY: {statement} Nothing was restored unchecked, "
                              "and no rank went on alone.")
            return 0
        why = demo.wait_protected_again()
        demo.report(why)
        equal = demo.prove()
        if o.keep:
            demo.keep()
        return 0 if equal else 1
    finally:
        demo.stop()


class Interrupted(BaseException):
    """A signal asked for the end; the clean-up is in `finally` blocks."""


def interrupt(number, _frame):
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # The clean-up is bounded; it is not interrupted again.
    raise Interrupted(number)


def main():
    o = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    directory = tempfile.mkdtemp(prefix="backstay-")
    try:
        return run(o, directory)
    except DemoError as error:
        print(f"\nFAILED: {error}", file=sys.stderr)
        return 1
    except Interrupted as signalled:
        print("\nstopped", file=sys.stderr)
        return 0 if o.keep else 128 + signalled.args[0]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
