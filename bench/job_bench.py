#!/usr/bin/env -S python3 -B
"""What saves and restores cost a job, beside the machine's limits in the same run (docs/performance.md)."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from bench_parts import (MIB, Iperf, Rank, Samples, ask_all, check_memory, cpu_seconds, host_description,
                         service_memory, soon)
from cluster import Cluster, DemoError

WARM_UP_SAVES = 2          # So that both slots of every holder are mapped and touched.
COMPUTE_MS = 1500          # Longer than any copy here takes.
SETTLE_TIMEOUT_S = 60
TARGET_COPY, TARGET_STALL, TARGET_RATE, TARGET_COMMIT_MS, TARGET_LOST_S = 1.10, 0.02, 0.90, 5, 1
TARGET_MEMORY_SHARE, TARGET_MEMORY_MIB = 0.01, 64


def parse_arguments():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--bin", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../build/release/bin"),
                   help="folder of the built programs (default: the release preset's)")
    p.add_argument("--mib", type=int, default=512, help="state of each rank")
    p.add_argument("--ranks", type=int, default=4)
    p.add_argument("--threads", type=int, default=2, help="copy threads and memcpy threads of a rank")
    p.add_argument("--rounds", type=int, default=5, help="each figure is the median of so many")
    p.add_argument("--json", metavar="FILE", help="write the report there too")
    o = p.parse_args()
    if o.rounds < 1 or o.ranks < 2 or o.threads < 1 or o.mib < 1:
        p.error("at least one round, two ranks, one thread and 1 MiB")
    return o


def needed_mib(o):
    """Slots (two versions of each shard and replica), two buffers in each trainer, and a lost node's repair."""
    slots = o.ranks * 2 * 2 * o.mib
    trainers = (o.ranks + 1) * 2 * o.mib
    return slots + trainers + 4 * o.mib + 512


class Bench:
    """One run. Every phase adds rows to the report."""

    def __init__(self, options, directory):
        self.o = options
        self.bytes = options.mib * MIB
        self.cluster = Cluster(options.bin, directory, options.ranks + 1, 10 * options.mib + 256)
        self.iperf = Iperf()
        self.ranks = []
        self.rows = []
        self.step = 0

    # ---- The report --------------------------------------------------------------------------------------------

    def row(self, what, unit, samples, ratio=None, limit="", target=None, at_most=True):
        """`ratio`: the samples that `target` is about, when they are not the row's own."""
        judged = ratio if ratio is not None else samples
        met = None if target is None else (judged.median <= target if at_most else judged.median >= target)
        self.rows.append({"what": what, "unit": unit, "value": samples.report(), "limit": limit,
                          "ratio": ratio.report() if ratio is not None else None,
                          "target": target, "at_most": at_most, "met": met})

    def rate_row(self, what, rates):
        """Rates, each beside iperf3 as measured in the same round, in the variant that was best in these rounds."""
        name, limits = self.iperf.best_of_last(len(rates.values))
        ratio = Samples(rate / limit for rate, limit in zip(rates.values, limits.values))
        self.row(what, "GB/s", rates, ratio, f"iperf3, {name}", TARGET_RATE, at_most=False)

    # ---- Ranks -------------------------------------------------------------------------------------------------

    def start_job(self, job, nodes, replicas):
        self.ranks = [Rank(self.o.bin, node, job, i, len(nodes), self.o, replicas) for i, node in enumerate(nodes)]
        ask_all(self.ranks, "register")
        self.reconfigure()
        for _ in range(WARM_UP_SAVES):
            self.save()

    def end_job(self):
        self.ranks[0].ask("finish")
        for rank in self.ranks:
            rank.kill()
        self.ranks = []

    def reconfigure(self):
        uuid = self.ranks[0].ask("new_attempt")["uuid"]
        return ask_all(self.ranks, "reconfigure", uuid)

    def save(self, *compute):
        self.step += 1
        verb = "overlap" if compute else "save"
        saves = ask_all(self.ranks, verb, self.step, self.o.threads, soon(), *compute)
        self.digests = [save["digest"] for save in saves]
        return saves

    def memcpy(self):
        """Seconds, from the first rank's start to the last one's end."""
        times = ask_all(self.ranks, "memcpy", self.o.threads, soon())
        return (max(t["end"] for t in times) - min(t["begin"] for t in times)) / 1e9

    # ---- Phases ------------------------------------------------------------------------------------------------

    def saves(self, whose):
        """Saves of all ranks at once: the blocking one, the overlapped one, protection and commit."""
        blocking, blocking_ratio, stall, stall_ratio = Samples(), Samples(), Samples(), Samples()
        memcpy, rates, commits, processor = Samples(), Samples(), Samples(), Samples()
        for _ in range(self.o.rounds):
            self.iperf.measure()
            limit = self.memcpy()
            memcpy.add(1000 * limit)
            before = cpu_seconds(self.pids())
            saves = self.save()
            processor.add(1000 * (cpu_seconds(self.pids()) - before))
            took = (max(s["copied"] for s in saves) - min(s["begin"] for s in saves)) / 1e9
            blocking.add(1000 * took)
            blocking_ratio.add(took / limit)
            start = min(s["start_called"] for s in saves)
            protected = max(s["protected"] for s in saves)
            rates.add(len(saves) * self.bytes / (protected - start))
            commits.add((max(s["committed"] for s in saves) - protected) / 1e6)
            limit = self.memcpy()
            saves = self.save(COMPUTE_MS)
            took = max(s["started"] - s["begin"] + s["copied"] - s["wait_called"] for s in saves) / 1e9
            stall.add(1000 * took)
            stall_ratio.add(took / limit)
        self.row(f"memcpy, {whose}", "ms", memcpy)
        self.row(f"blocking save, {whose}", "ms", blocking, blocking_ratio, "memcpy", TARGET_COPY)
        self.row(f"stall of an overlapped save, {whose}", "ms", stall, stall_ratio, "memcpy", TARGET_STALL)
        return rates, commits, processor

    def pids(self):
        return [rank.pid for rank in self.ranks] + [n.child.pid for n in self.cluster.nodes if n.alive()]

    def local(self):
        """One rank without replicas: the copy alone, and reading it back."""
        self.start_job("local", [self.cluster.nodes[1]], replicas=0)
        self.saves("one rank, no replica")
        reads, ratio = Samples(), Samples()
        for _ in range(self.o.rounds):
            limit = self.memcpy()
            read = self.ranks[0].ask("read", self.o.threads)
            if not read["local"]:
                raise DemoError("a shard of this node was not read from its memory")
            self.check_digest(0, read)
            took = (read["end"] - read["begin"]) / 1e9
            reads.add(1000 * took)
            ratio.add(took / limit)
        self.row("local restore, one rank", "ms", reads, ratio, "memcpy", TARGET_COPY)
        self.end_job()

    def one_rank(self):
        """One rank with one peer: protection and restore with nobody else at work."""
        self.start_job("one", [self.cluster.nodes[1]], replicas=1)
        rates, commits, processor = self.saves("one rank, one replica")
        self.rate_row("to protected from StartCopy, one rank", rates)
        self.row("processor time of that save, all processes", "ms", processor)
        self.row("commit after protected, one rank", "ms", commits, target=TARGET_COMMIT_MS)
        restored = Samples()
        for _ in range(self.o.rounds):
            # Only the trainer: with its node gone, repair might bring the shard to the new node first.
            restored.add(self.lose_and_restore(0, with_node=False)["rate"])
            self.iperf.measure()
        self.rate_row("restore on a node without the shard, one rank", restored)
        self.end_job()

    def all_ranks(self):
        """All ranks, each on its own node, and one spare node."""
        o, nodes = self.o, self.cluster.nodes
        self.start_job("all", nodes[:o.ranks], replicas=1)
        whose = f"{o.ranks} ranks at once"
        rates, commits, processor = self.saves(whose)
        self.rate_row(f"to protected from StartCopy, {whose}, sum", rates)
        self.row("processor time of those saves, all processes", "ms", processor)
        self.row(f"commit after protected, {whose}", "ms", commits, target=TARGET_COMMIT_MS)
        self.memory()
        rate, total, beyond, claimed, decided, led = Samples(), Samples(), Samples(), Samples(), Samples(), 0
        victim = o.ranks - 1
        for _ in range(o.rounds):
            outcome = self.lose_and_restore(victim, with_node=True)
            rate.add(outcome["rate"])
            total.add(outcome["total_s"])
            beyond.add(outcome["total_s"] - outcome["transfer_s"])
            claimed.add(outcome["claimed_s"])
            decided.add(outcome["decided_s"] - outcome["claimed_s"])
            led += outcome["led"]
            self.iperf.measure()
        self.rate_row("restore of a lost shard while the others restore", rate)
        self.row("from the kill to the replacement's claim, its slots made", "s", claimed)
        self.row("from the claim to the decision", "s", decided)
        self.row("from the kill to every rank holding restored state", "s", total)
        self.row("the same without the lost shard's transfer", "s", beyond, target=TARGET_LOST_S)
        self.row("rounds of these in which the killed node led the job", "rounds", Samples([led]))
        self.end_job()

    def spare_for(self, rank):
        """A node without ranks that has no replica of this rank's newest shard."""
        def free_node():
            snapshots = (self.cluster.ask("ls", rank.job) or {}).get("snapshots", [])
            shards = next((s["shards"] for s in snapshots if s["step"] == self.step), [])
            holders = next((s["holders"] for s in shards if s["rank"] == rank.number), None)
            if not holders:
                return None  # The leader has only just changed, or did not answer in time.
            barred = {r.node.name for r in self.ranks}.union(holders)
            return next((n for n in self.cluster.nodes[1:] if n.name not in barred), None)

        return self.wait_for(free_node, f"a free node that does not hold the shard of {rank.name}")

    @staticmethod
    def wait_for(look, what):
        """What `look` finds, as soon as it finds something."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(0.05)
        raise DemoError(f"waited {SETTLE_TIMEOUT_S} s for {what}")

    def lose_and_restore(self, index, with_node):
        """Saves, kills a rank, restores on a spare node, and waits until all is as before."""
        self.save()
        old = self.ranks[index]
        spare = self.spare_for(old)
        replacement = Rank(self.o.bin, spare, old.job, old.number, len(self.ranks), self.o)
        leader = (self.cluster.ask("why", old.job) or {}).get("leader") or {}
        killed = time.monotonic_ns()
        os.kill(old.pid, signal.SIGKILL)
        if with_node:
            os.kill(old.node.child.pid, signal.SIGKILL)
        survivors = [rank for rank in self.ranks if rank is not old]
        ask_all(survivors, "fence")
        self.ranks[index] = replacement
        claimed = replacement.ask("register")["registered"]
        outcomes = self.reconfigure()
        old.kill()
        for number, outcome in enumerate(outcomes):
            self.check_digest(number, outcome)
        mine = outcomes[index]
        if outcomes[index]["local"] or outcomes[index]["step"] != self.step:
            raise DemoError(f"{replacement.name} did not restore step {self.step} from a peer: {outcomes[index]}")
        if with_node:
            old.node.child.kill()  # Is dead; this waits until the kernel has let go of its memory.
            self.cluster.start_node(old.node)
            self.cluster.wait_members({node.name for node in self.cluster.nodes})
        self.wait_protected(old.job)
        transfer = mine["read"] - mine["decided"]
        return {"rate": self.bytes / transfer, "transfer_s": transfer / 1e9,
                "total_s": (max(o["finished"] for o in outcomes) - killed) / 1e9,
                "claimed_s": (claimed - killed) / 1e9,
                "decided_s": (max(o["decided"] for o in outcomes) - killed) / 1e9,
                "led": leader.get("node") == old.node.name}

    def check_digest(self, number, read):
        if read["digest"] != self.digests[number]:
            raise DemoError(f"rank {number} restored {read['digest']}, saved {self.digests[number]}")

    def wait_protected(self, job):
        def protected():
            why = self.cluster.ask("why", job)
            return why and why.get("leader_answered") and not why["under_protected"]

        self.wait_for(protected, "everything to be protected again")

    def memory(self):
        """What the services use beyond the bytes that they hold."""
        beyond, share = Samples(), Samples()
        status = {node["node"]: node["memory"] for node in self.cluster.ask("status")["nodes"]}
        for node in self.cluster.nodes:
            held = sum(status[node.name][kind] for kind in ("own", "held", "fetched", "in_flight", "free"))
            used = service_memory(node.child.pid)
            extra = used["private_bytes"] + used["memory_file_bytes"] - held
            beyond.add(extra / MIB)
            share.add(extra / MIB / (TARGET_MEMORY_SHARE * held / MIB + TARGET_MEMORY_MIB))
        self.row("a service's memory beyond its slots", "MiB", beyond, share, "1 % + 64 MiB", 1.0)

    # ---- Other programs ----------------------------------------------------------------------------------------

    def limits(self):
        rates = self.program("memory_bench", "--mib", str(self.o.mib), "--rounds", str(max(5, self.o.rounds)))
        for line in rates:
            self.rows.append({"what": f"{line['what']}, {line['threads']} thread{'s' if line['threads'] > 1 else ''}",
                              "unit": "GB/s", "value": {k: line[k] for k in ("median", "min", "max")}, "limit": "",
                              "ratio": None, "target": None, "at_most": True, "met": None})

    def transport(self):
        rates = Samples()
        for _ in range(self.o.rounds):
            self.iperf.measure()
            rates.add(self.program("pull_bench", "--mib", str(self.o.mib), "--repeat", "3")["pull_gb_per_s"])
        self.rate_row("pull by the transport alone", rates)

    def program(self, name, *arguments):
        done = subprocess.run([os.path.join(self.o.bin, name), *arguments], capture_output=True, text=True,
                              check=False, timeout=600)
        if done.returncode != 0:
            raise DemoError(f"{name} ended with {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def run(self):
        for what, phase in (("memory's limits", self.limits), ("the transport alone", self.transport),
                            ("services", self.cluster.start), ("saves without a replica", self.local),
                            ("one rank", self.one_rank), (f"{self.o.ranks} ranks", self.all_ranks)):
            print(f"measuring: {what}", file=sys.stderr, flush=True)
            phase()
        for name, rates in self.iperf.rates.items():
            self.row(f"iperf3, {name}", "GB/s", rates)
        return {"host": host_description(), "mib": self.o.mib, "ranks": self.o.ranks, "threads": self.o.threads,
                "rounds": self.o.rounds, "rows": self.rows}

    def stop(self):
        for rank in self.ranks:
            rank.kill()
        self.cluster.stop()


def number(value):
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def print_table(report):
    host = report["host"]
    print(f"{host['cores']} cores of {host['cpu']}, {host['memory_gib']} GiB, Linux {host['kernel']}, "
          f"load {host['load_1min']:.1f}; {report['ranks']} ranks of {report['mib']} MiB, {report['threads']} threads "
          f"each, {report['rounds']} rounds\n")
    print("| what | median | min to max | of the limit | target | met |\n|---|---|---|---|---|---|")
    for row in report["rows"]:
        value, ratio = row["value"], row["ratio"]
        share = f"{number(ratio['median'])} x {row['limit']}" if ratio else ""
        target = "" if row["target"] is None else f"{'at most' if row['at_most'] else 'at least'} {row['target']:g}"
        met = {None: "", True: "yes", False: "no"}[row["met"]]
        print(f"| {row['what']} | {number(value['median'])} {row['unit']} | {number(value['min'])} to "
              f"{number(value['max'])} | {share} | {target} | {met} |")


class Interrupted(BaseException):
    """A signal asked for the end; the clean-up is in `finally` blocks."""


def interrupt(signal_number, _frame):
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)  # The clean-up is bounded; it is not interrupted again.
    raise Interrupted(signal_number)


def main():
    o = parse_arguments()
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, interrupt)
    directory = tempfile.mkdtemp(prefix="backstay-bench-")
    try:
        check_memory(needed_mib(o), f"{o.ranks} ranks of {o.mib} MiB: slots, replicas, trainers, repair")
        bench = Bench(o, directory)
        try:
            report = bench.run()
        finally:
            bench.stop()
        print_table(report)
        if o.json:
            with open(o.json, "w", encoding="utf-8") as out:
                json.dump(report, out, indent=2)
        return 0
    except DemoError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    except Interrupted as signalled:
        print("stopped", file=sys.stderr)
        return 128 + signalled.args[0]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
