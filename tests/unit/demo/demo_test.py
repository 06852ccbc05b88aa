#!/usr/bin/env python3
"""The demonstration's own parts: what it accepts, whom it kills, what it tells, and that nothing outlives it."""

import contextlib
import io
import os
import select
import signal
import subprocess
import sys
import tempfile
import unittest

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "tools", "demo")
sys.path.insert(0, DEMO)

import options  # noqa: E402
from account import Account  # noqa: E402
from cluster import Cluster, DemoError  # noqa: E402
from fault import Fault  # noqa: E402
from processes import Child, free_ports  # noqa: E402
from progress import Progress  # noqa: E402
from training import Member, Training  # noqa: E402

ENDED_TIMEOUT_S = 20


def parse(*arguments):
    return options.parse(["--bin", "/nowhere", *arguments])


class OptionsTest(unittest.TestCase):
    def refusal(self, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
            parse(*arguments)
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue()

    def test_defaults_are_four_nodes_and_the_spares(self):
        self.assertEqual((parse().nodes, parse().spares, parse().replicas), (5, 1, 1))
        two = parse("--kill", "two-nodes")
        self.assertEqual((two.nodes, two.spares, two.replicas, two.world_size), (6, 2, 2, 4))

    def test_refuses_what_cannot_work_and_names_what_would(self):
        self.assertIn("--nodes 3 or more", self.refusal("--nodes", "2"))
        self.assertIn("--nodes 5 or more", self.refusal("--nodes", "4", "--kill", "two-nodes"))
        self.assertIn("--nodes 5 or more", self.refusal("--nodes", "4", "--replicas", "3"))
        self.assertIn("20 or more", self.refusal("--steps", "10"))
        self.assertIn("at least 1", self.refusal("--ranks-per-node", "0"))
        self.assertIn("from 1 to", self.refusal("--state-mib", "0"))
        self.assertIn("/no/such/file", self.refusal("--text", "/no/such/file"))
        for arguments in (["--replicas", "4"], ["--kill", "all"], ["--launcher", "x"], ["--nods", "3"]):
            self.refusal(*arguments)

    def test_named_minimum_is_accepted(self):
        for kill in ("service", "trainer", "both", "two-nodes", "none"):
            for replicas in range(4):
                least = next(n for n in range(1, 12) if self.accepted(kill, replicas, n))
                for nodes in range(least, 12):
                    self.assertTrue(self.accepted(kill, replicas, nodes))

    @staticmethod
    def accepted(kill, replicas, nodes):
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                parse("--kill", kill, "--replicas", str(replicas), "--nodes", str(nodes))
            return True
        except SystemExit:
            return False

    def test_says_when_the_machine_is_too_small(self):
        o = parse("--state-mib", "1024")
        self.assertIsNone(options.memory_refusal(o, 1e6))
        self.assertIn("--state-mib", options.memory_refusal(o, 1000))


class FaultTest(unittest.TestCase):
    def test_kills_as_many_training_nodes_as_asked_and_never_the_first(self):
        for kill, count in (("service", 1), ("trainer", 1), ("both", 1), ("two-nodes", 2)):
            for nodes in range(3, 9):
                if kill == "two-nodes" and nodes < 5:
                    continue
                with self.subTest(kill=kill, nodes=nodes), tempfile.TemporaryDirectory() as directory:
                    o = parse("--kill", kill, "--nodes", str(nodes), "--replicas", "1")
                    cluster = Cluster("/nowhere", directory, o.nodes, 64)
                    victims = Fault(o, cluster).nodes
                    self.assertEqual(len(victims), count)
                    self.assertLessEqual(set(victims), set(cluster.nodes[1:o.training_nodes]))

    def test_says_what_is_beyond_the_policy(self):
        for kill, replicas, beyond in (("both", 0, True), ("both", 1, False), ("two-nodes", 1, True),
                                       ("two-nodes", 2, False), ("trainer", 0, False), ("service", 0, False)):
            with self.subTest(kill=kill, replicas=replicas), tempfile.TemporaryDirectory() as directory:
                o = parse("--kill", kill, "--replicas", str(replicas))
                fault = Fault(o, Cluster("/nowhere", directory, o.nodes, 64))
                self.assertIsNone(fault.beyond_policy())  # Nothing has happened yet.
                fault.killed_unix_ms = 1
                self.assertEqual(fault.beyond_policy() is not None, beyond)

    def test_a_run_without_its_fault_proves_nothing(self):
        for kill in ("service", "trainer", "both", "two-nodes", "none"):
            with self.subTest(kill=kill), tempfile.TemporaryDirectory() as directory:
                o = parse("--kill", kill)
                fault = Fault(o, Cluster("/nowhere", directory, o.nodes, 64))
                if kill == "none":
                    fault.check_happened()
                    continue
                with self.assertRaisesRegex(DemoError, "nobody was killed"):
                    fault.check_happened()
                fault.killed_unix_ms = 1
                fault.check_happened()

    def test_a_process_that_ends_early_ends_the_demonstration(self):
        with tempfile.TemporaryDirectory() as directory:
            o = parse()
            cluster = Cluster("/nowhere", directory, o.nodes, 64)
            training = Training("/nowhere", directory, o, "job", False)
            child = Child("t", ["/bin/sh", "-c", "echo the reason; exit 3"], os.path.join(directory, "log"))
            child._process.wait(ENDED_TIMEOUT_S)
            training.members.append(Member("t", 0, cluster.nodes[0], child, os.path.join(directory, "events")))
            with self.assertRaisesRegex(DemoError, "rank 0 on node-1 ended: the reason"):
                Fault(o, cluster).check(training)


class FakeTail:
    def __init__(self, events):
        self.events = events


class FakeMember:
    def __init__(self, rank, place, events):
        self.rank = rank
        self.place = place
        self.tail = FakeTail([{"unix_ms": at, "event": kind, **fields} for at, kind, fields in events])


class AccountTest(unittest.TestCase):
    """A rank on node-2 is killed 1000 ms into the run, with step 15 under way."""

    def account(self, commits=(), leader=()):
        o = parse("--nodes", "3")
        with tempfile.TemporaryDirectory() as directory:
            fault = Fault(o, Cluster("/nowhere", directory, o.nodes, 64))
        survivor = FakeMember(0, "node-1", [
            (900, "step", {"step": 15}), *((at, "committed", {"step": step, "generation": 1}) for at, step in commits),
            (1020, "step", {"step": 16}),
            (1030, "fault_seen", {"message": "all to all: [./gloo/transport/tcp/pair.cc:598] Connection closed"}),
            (1300, "resumed", {"step": 10}), (1400, "first_step", {"step": 11}), (1400, "step", {"step": 11}),
            (1500, "step", {"step": 17})])
        victim = FakeMember(1, "node-2", [(900, "step", {"step": 15}), (910, "saved", {"step": 10, "stall_ms": 2.5})])
        newcomer = FakeMember(1, "node-3", [(1100, "started", {}), (1300, "resumed", {"step": 10})])
        fault.killed_unix_ms, fault.step, fault.what, fault.victims = 1000, 15, "node-2 dies", [victim]
        fault.replaced_unix_ms = 1090
        training = Training.__new__(Training)
        training.everyone = [survivor, victim, newcomer]
        events = [{"unix_ms": at, "what": what, "detail": detail, "generation": 1} for at, what, detail in leader]
        why = {"timeline": events, "decision": {"rejected": ["step 15 of generation 1: lacks the shard of rank 1"]}}
        return list(Account(o, fault, training, why).lines())

    def at(self, lines, unix_ms):
        return [line for line in lines if line.split()[:1] == [str(unix_ms - 1000)]]

    def test_tells_times_since_the_kill_in_order(self):
        lines = self.account(leader=[(1035, "fenced", "rank 0 on node-1: gone"), (1200, "decided", "step 10 it is"),
                                     (1250, "restored", "rank 1 on node-3: all of it"), (900, "decided", "long ago")])
        numbers = [int(line.split()[0]) for line in lines if line.startswith("  ")]
        self.assertEqual(numbers, sorted(numbers))
        self.assertEqual(set(numbers), {0, 30, 35, 100, 200, 250, 400})
        self.assertEqual(len(self.at(lines, 1200)), 2)  # The decision, and what it rejected.
        self.assertFalse(any("pair.cc" in line or "long ago" in line for line in lines))

    def test_counts_the_steps_after_the_base_until_the_fault(self):
        self.assertIn("Steps lost: 6.", self.account()[-1])

    def test_says_whether_the_save_was_committed(self):
        said = [self.at(self.account(commits=commits), 1000)[0] for commits in ((), [(990, 15)], [(1010, 15)])]
        self.assertIn("not committed", said[0])
        self.assertEqual(len(set(said)), 3)

    def test_merges_what_all_ranks_do(self):
        lines = self.account(leader=[(1035, "fenced", "rank 0 on node-1: gone"), (1036, "fenced", "rank 2 on node-3"),
                                     (1040, "repair started", "a"), (1041, "repair started", "b"),
                                     (1060, "repaired", "a"), (1061, "repaired", "b"), (1062, "protected again", "")])
        self.assertEqual([len(self.at(lines, at)) for at in (1035, 1036, 1040, 1041, 1062)], [1, 0, 1, 0, 1])
        self.assertIn("2 replicas", self.at(lines, 1062)[0])
        self.assertIn("all within 1 ms", self.at(lines, 1035)[0])


class Terminal(io.StringIO):
    def isatty(self):
        return True


class ProgressTest(unittest.TestCase):
    def test_is_rewritten_on_a_terminal_and_gone_before_the_next_line(self):
        out = Terminal()
        progress = Progress(out)
        progress.show("x" * 10000)
        self.assertNotIn("\n", out.getvalue())
        self.assertLess(len(out.getvalue()), 1000)
        progress.say("done")
        self.assertTrue(out.getvalue().endswith("\r\033[Kdone\n"))

    def test_is_no_flood_elsewhere(self):
        out = io.StringIO()
        progress = Progress(out)
        for step in range(1000):
            progress.show(f"step {step}")
        progress.say("done")
        self.assertEqual(out.getvalue(), "done\n")


class ProcessesTest(unittest.TestCase):
    def test_a_child_does_not_outlive_a_killed_parent(self):
        parent = subprocess.Popen([sys.executable, "-B", "-c", (
            "import sys, signal; sys.path.insert(0, sys.argv[1])\n"
            "from processes import Child\n"
            "child = Child('c', ['/bin/sleep', '1000'], '/dev/null')\n"
            "print(child.pid, flush=True); signal.pause()\n"), DEMO], stdout=subprocess.PIPE, text=True)
        with parent:
            child = os.pidfd_open(int(parent.stdout.readline()))
            try:
                parent.send_signal(signal.SIGKILL)
                self.assertTrue(select.select([child], [], [], ENDED_TIMEOUT_S)[0])
            finally:
                os.close(child)

    def test_a_child_takes_signals_that_its_start_held_back(self):
        with tempfile.TemporaryDirectory() as directory:
            child = Child("c", ["/bin/sleep", "1000"], os.path.join(directory, "log"))
            self.assertTrue(child.stop(ENDED_TIMEOUT_S))
            self.assertEqual(child.exit_code(), -signal.SIGTERM)

    def test_ports_are_distinct_and_no_outgoing_connection_gets_them(self):
        ports = free_ports(30)
        self.assertEqual(len(set(ports)), 30)
        with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as source:
            self.assertLess(max(ports), max(int(source.read().split()[0]), 10240 + 300))


if __name__ == "__main__":
    unittest.main()
