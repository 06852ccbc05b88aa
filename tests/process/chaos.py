#!/usr/bin/env python3
"""Rounds of training that are disturbed at random moments, on services that live through all of them.

usage: chaos.py [--rounds N] [--seed S]

Goal:   whatever dies, stops or goes on, and whenever: within the policy nothing committed is lost, all ranks end with
        the state of an undisturbed run, and the services hold nothing of it afterwards.
Method: each round trains a job of its own. One to three disturbances are drawn: a moment (an event of some rank) and
        what happens then (SIGKILL, or SIGSTOP and later SIGCONT, of a trainer, a service, a whole node or the leader's
        service). At most as many nodes lose memory in a round as there are replicas. The same seed draws the same
        rounds; what the machine makes of them is its own.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time

from harness import BINARIES, Cluster, Job, Reference, options, print_logs, run_command, signals_held, wait_for

NODES = 6
REPLICAS = 2
OPTIONS = {"steps": 45, "save_every": 3, "state_mib": 8, "replicas": REPLICAS, "step_ms_min": 25}
MOMENTS = ["registered", "decided", "restored", "resumed", "save_begun", "saved", "protected", "committed", "step"]
TRAINER_STOP_S = 1.0   # Less than the communicator waits for a silent rank.
SERVICE_STOP_S = 4.0   # Some of it is longer than the lease.
# What may come and go: connections of lanes and of gRPC, its threads, what the allocator keeps.
DESCRIPTORS_SLACK = 24
THREADS_SLACK = 12
PRIVATE_SLACK_BYTES = 32 << 20


class Footprint:
    """What one service holds of the machine at a moment."""

    def __init__(self, status, node):
        memory = next(n["memory"] for n in status["nodes"] if n["node"] == node.name)
        self.promised = memory["reserved"]
        self.slots = sum(memory[kind] for kind in ("own", "held", "fetched", "free", "quarantined"))
        self.quarantined = memory["quarantined"]
        process = f"/proc/{node.child.pid}"
        files = [os.readlink(f"{process}/fd/{name}") for name in self._names(process + "/fd")]
        self.descriptors = len(files)
        self.memory_files = sum("/memfd:" in name for name in files)
        self.threads = len(os.listdir(process + "/task"))
        with open(process + "/status", encoding="ascii") as source:
            self.private_bytes = next(int(line.split()[1]) << 10 for line in source if line.startswith("RssAnon"))

    @staticmethod
    def _names(folder):
        return [name for name in os.listdir(folder) if os.path.lexists(f"{folder}/{name}")]


class Round:
    """One job from its start to its end, disturbed."""

    def __init__(self, cluster, number, draw):
        self.cluster = cluster
        self.draw = draw
        self.job = Job(NODES, options(**OPTIONS), cluster=cluster, name=f"chaos-{number}",
                       exit_on_fault=draw.random() < 0.25)
        self.losses_left = REPLICAS
        self.newest_commit = 0
        self.said = []

    def run(self):
        with self.job as job:
            for index in range(self.draw.randint(1, 3)):
                job.when(f"disturbance {index}", self._moment(), self._disturbance())
            job.when("watch", self._watch, lambda member, event: None)
            job.start()
            digests = job.run()
            if digests != Reference.digests(job.options):
                raise AssertionError(f"the final state is another one than undisturbed: {digests}")
            job.wait_protected()
            self._end()

    def _moment(self):
        """Accepts the nth event of a kind, drawn now."""
        event, rank = self.draw.choice(MOMENTS), self.draw.randrange(3)
        left = [self.draw.randint(1, 6)]

        def accepts(member, seen):
            if seen["event"] != event or member.rank != rank:
                return False
            left[0] -= 1
            return left[0] <= 0

        return accepts

    def _watch(self, member, event):
        """Never accepts: sees every event, and that commits do not go back."""
        if event["event"] == "committed":
            self.newest_commit = max(self.newest_commit, event["step"])
        if event["event"] == "resumed" and event["step"] < self.newest_commit and event["generation"] > 1:
            raise AssertionError(f"{member.name} resumed at step {event['step']} when {self.newest_commit} was committed")
        return False

    def _disturbance(self):
        kind = self.draw.choice(["kill trainer", "stop trainer", "kill service", "stop service", "kill node",
                                 "kill leader", "stop leader"])
        rank, delay_s = self.draw.randrange(3), self.draw.random()

        def act(member, event):
            target = self.job.training.members[rank]
            node = target.node
            if kind.endswith("leader"):
                why = self.job.why()
                if not why or not why.get("leader"):
                    return
                node = next(n for n in self.cluster.nodes if n.name == why["leader"]["node"])
            self._do(kind, target, node, delay_s)

        return act

    def _do(self, kind, target, node, delay_s):
        if "trainer" not in kind:
            if self.losses_left == 0 or not node.alive():
                return
            self.losses_left -= 1
        self.said.append(f"{kind} {target.name if 'trainer' in kind else node.name}")
        if kind == "kill trainer":
            target.child.kill()
        elif kind == "stop trainer":
            self._stop(target.child, delay_s * TRAINER_STOP_S)
        elif kind.startswith("stop"):
            self._stop(node.child, delay_s * SERVICE_STOP_S)
        elif kind == "kill node" and node is not self.cluster.metadata_node:
            self.job.kill_node(node)
        else:
            self.job.restart_service(node)

    def _stop(self, child, seconds):
        if not child.running():
            return
        os.kill(child.pid, signal.SIGSTOP)
        self.job.later(seconds, lambda: child.running() and os.kill(child.pid, signal.SIGCONT))

    def _end(self):
        """Every node is back, and the job and what it held are gone."""
        for node in self.cluster.nodes:
            if not node.alive():
                self.cluster.start_node(node)
        self.cluster.wait_members({node.name for node in self.cluster.nodes})
        wait_for(lambda: run_command(self.cluster.metadata_node, "rm", self.job.name, "--drop-state").returncode == 0,
                 "the job's end")
        self.job.training.stop()
        wait_for(self._is_given_back, "memory to be given back")

    def _is_given_back(self):
        found = self.footprints()
        return found is not None and all(f.promised == 0 and f.quarantined == 0 for f in found)

    def footprints(self):
        status = self.cluster.ask("status")
        answered = {n["node"] for n in status["nodes"] if n["answered"]} if status else set()
        if answered != {node.name for node in self.cluster.nodes}:
            return None
        return [Footprint(status, node) for node in self.cluster.nodes]


class Leaks:
    """What services hold between rounds: at most what any of them held in the first ones, which use what a service
    makes once (lanes, channels, spare slots)."""

    WARM_ROUNDS = 6
    SLACK = {"descriptors": DESCRIPTORS_SLACK, "memory_files": DESCRIPTORS_SLACK, "threads": THREADS_SLACK,
             "private_bytes": PRIVATE_SLACK_BYTES}

    def __init__(self):
        self._rounds = 0
        self._most = dict.fromkeys(self.SLACK, 0)

    def check(self, footprints):
        self._rounds += 1
        for node, footprint in enumerate(footprints, start=1):
            for what, slack in self.SLACK.items():
                held = getattr(footprint, what)
                if self._rounds <= self.WARM_ROUNDS:
                    self._most[what] = max(self._most[what], held)
                elif held > self._most[what] + slack:
                    raise AssertionError(f"node {node} has {held} {what}; in the first {self.WARM_ROUNDS} rounds no "
                                         f"service had more than {self._most[what]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    arguments = parser.parse_args()
    print(f"chaos: {arguments.rounds} rounds, replay with --seed {arguments.seed}", flush=True)
    draw = random.Random(arguments.seed)
    directory = tempfile.mkdtemp(prefix="backstay-chaos-")
    cluster = Cluster(BINARIES, directory, NODES, memory_budget_mib=512)
    leaks = Leaks()
    disturbances = 0
    try:
        cluster.start()
        for number in range(1, arguments.rounds + 1):
            begun = time.monotonic()
            this = Round(cluster, number, random.Random(draw.randrange(1 << 64)))
            try:
                this.run()
                leaks.check(wait_for(this.footprints, "all services to answer"))
            except BaseException:
                print(f"round {number} failed: {', '.join(this.said) or 'nothing was disturbed'}", file=sys.stderr)
                print_logs([node.child for node in cluster.nodes])
                raise
            disturbances += len(this.said)
            print(f"round {number}: {', '.join(this.said) or 'nothing came to pass'}: state equal, newest commit "
                  f"{this.newest_commit}, {time.monotonic() - begun:.1f} s", flush=True)
    finally:
        with signals_held():
            cluster.stop()
            shutil.rmtree(directory)
    if disturbances < arguments.rounds // 2:
        raise AssertionError(f"only {disturbances} disturbances in {arguments.rounds} rounds")
    print(f"{arguments.rounds} rounds, {disturbances} disturbances: nothing committed was lost, nothing is left over")


if __name__ == "__main__":
    main()
