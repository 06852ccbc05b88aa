#!/usr/bin/env python3
"""Kills services, trainers, whole nodes and the leader at each stage of a save and of a recovery.

Goal:   whatever dies within the policy, the job ends in the state of an undisturbed run, bit for bit.
Method: one process is killed at one moment; the launcher replaces lost ranks; the final digests are compared.
"""

import os
import subprocess
import tempfile
import unittest

from harness import BINARIES, JOB, Job, Reference, options, wait_for


def nth(event, step_min=0, rank=None):
    """Accepts the first `event` of `rank` (any: None) at or above a step."""

    def accepts(member, seen):
        return (seen["event"] == event and seen.get("step", 0) >= step_min
                and (rank is None or member.rank == rank))

    return accepts


class KillTest(unittest.TestCase):
    # Ranks 0 to 2 on nodes 1 to 3, two spares. Node 1 serves the metadata store and lives.
    VICTIM = 2

    def check(self, job, digests):
        self.assertEqual(digests, Reference.digests(job.options))
        self.assertTrue(job.fired, "nothing was killed: the moment never came")

    def run_killing(self, moment, action, run_options=None, node_count=5):
        with Job(node_count, run_options or options()) as job:
            job.start()
            job.when("kill", moment, lambda member, event: action(job))
            self.check(job, job.run())
            return job.wait_protected()

    def victim(self, job):
        return job.cluster.nodes[self.VICTIM]

    def test_node_during_save(self):
        self.run_killing(nth("save_begun", 9, self.VICTIM), lambda job: job.kill_node(self.victim(job)))

    def test_node_during_commit(self):
        self.run_killing(nth("protected", 9), lambda job: job.kill_node(self.victim(job)))

    def test_trainer_during_save(self):
        self.run_killing(nth("save_begun", 9, self.VICTIM),
                         lambda job: job.training.members[self.VICTIM].child.kill())

    def test_trainer_between_saves(self):
        self.run_killing(nth("step", 10, self.VICTIM),
                         lambda job: job.training.members[self.VICTIM].child.kill())

    def test_service_during_save(self):
        self.run_killing(nth("save_begun", 9, self.VICTIM), lambda job: job.restart_service(self.victim(job)))

    def test_service_during_commit(self):
        self.run_killing(nth("protected", 9), lambda job: job.restart_service(self.victim(job)))

    def test_leader_during_save(self):
        self.run_killing(nth("save_begun", 9), Job.restart_leader)

    def test_leader_during_commit(self):
        self.run_killing(nth("protected", 9), Job.restart_leader)

    def test_metadata_store_during_save(self):
        self.run_killing(nth("save_begun", 9), lambda job: job.restart_service(job.cluster.metadata_node))

    def test_leader_node_during_save(self):
        """The metadata store's node is not to die: if it leads, its service starts again so that another one does. That
        loses what it held: two replicas cover both."""
        with Job(5, options(steps=90, replicas=2)) as job:
            job.start()

            def move(member, event):
                while job.leader() is job.cluster.metadata_node:
                    job.restart_leader()

            def kill(member, event):
                leader = job.leader()
                self.assertIsNot(leader, job.cluster.metadata_node)
                job.kill_node(leader)

            job.when("move", nth("save_begun", 6), move)
            job.when("kill", lambda member, event: job.fired == ["move"] and event["event"] == "save_begun", kill)
            self.check(job, job.run())
            self.assertEqual(job.fired, ["move", "kill"])
            job.wait_protected()

    # ---- A second death before the first one is recovered from ----

    def run_killing_twice(self, moment, action, first=None, run_options=None):
        """The victim's node dies in a save; then `action`, at the first event of that name since."""
        with Job(6, run_options or options()) as job:
            job.start()
            job.when("first", nth("save_begun", 9, self.VICTIM),
                     lambda member, event: (first or Job.kill_node)(job, self.victim(job)))
            job.when("second", lambda member, event: job.fired == ["first"] and event["event"] == moment,
                     lambda member, event: action(job))
            self.check(job, job.run())
            self.assertEqual(job.fired, ["first", "second"])
            job.wait_protected()

    def test_node_during_restore(self):
        """A second node dies while the ranks reconfigure after the first; two replicas cover both."""
        self.run_killing_twice("decided", lambda job: job.kill_node(job.cluster.nodes[1]), run_options=options(replicas=2))

    def test_node_during_repair(self):
        """Another node dies when nothing is protected again yet."""
        self.run_killing_twice("resumed", lambda job: job.kill_node(job.cluster.nodes[1]), run_options=options(replicas=2))

    def test_trainer_during_restore(self):
        """A survivor's trainer dies with its decision in hand; the others wait for it no longer than it takes to see."""
        self.run_killing_twice("decided", lambda job: job.training.members[1].child.kill())

    def test_service_during_restore(self):
        self.run_killing_twice("decided", lambda job: job.restart_service(job.cluster.nodes[1]),
                               first=Job.kill_trainers, run_options=options(replicas=2))

    def test_leader_during_restore(self):
        self.run_killing_twice("decided", Job.restart_leader, first=Job.kill_trainers, run_options=options(replicas=2))

    def test_leader_during_repair(self):
        self.run_killing_twice("resumed", Job.restart_leader, run_options=options(replicas=2))

    def test_two_nodes_at_once(self):
        with Job(6, options(replicas=2)) as job:
            job.start()

            def kill(member, event):
                job.kill_node(job.cluster.nodes[1])
                job.kill_node(job.cluster.nodes[2])

            job.when("kill", nth("save_begun", 9, 2), kill)
            self.check(job, job.run())

    def test_all_ranks_start_again(self):
        """A launcher that stops all ranks after a fault: every one of them is a new process."""
        with Job(5, options(), exit_on_fault=True) as job:
            job.start()
            job.when("kill", nth("save_begun", 9, 2), lambda m, e: job.kill_node(job.cluster.nodes[2]))
            self.check(job, job.run())

    def test_a_service_is_flat_over_many_saves(self):
        with Job(3, options(steps=60, save_every=1, state_mib=4, step_ms_min=10)) as job:
            job.start()
            seen = []
            note = lambda member, event: seen.append([Footprint(job, node) for node in job.cluster.nodes])
            job.when("early", nth("committed", 5), note)
            job.when("late", nth("committed", 50), note)
            digests = job.run()
            self.assertEqual(digests, Reference.digests(job.options))
            self.assertEqual(len(seen), 2, "both moments came")
            for early, late in zip(*seen):
                self.assertEqual(late.promised, early.promised)
                self.assertEqual(late.slots, early.slots)
                self.assertLessEqual(late.descriptors, early.descriptors + DESCRIPTORS_SLACK)
                self.assertLessEqual(late.threads, early.threads + THREADS_SLACK)
                self.assertLessEqual(late.private_bytes, early.private_bytes + PRIVATE_SLACK_BYTES)


# What may come and go from one moment to another: connections of lanes and of gRPC, its threads, and what the
# allocator keeps.
DESCRIPTORS_SLACK = 16
THREADS_SLACK = 8
PRIVATE_SLACK_BYTES = 8 << 20


class Footprint:
    """What one service holds of the machine at a moment."""

    def __init__(self, job, node):
        memory = next(n["memory"] for n in job.cluster.ask("status")["nodes"] if n["node"] == node.name)
        self.promised = memory["reserved"]
        self.slots = sum(memory[kind] for kind in ("own", "held", "fetched", "free", "quarantined"))
        process = f"/proc/{node.child.pid}"
        self.descriptors = len(os.listdir(process + "/fd"))
        self.threads = len(os.listdir(process + "/task"))
        with open(process + "/status", encoding="ascii") as status:
            self.private_bytes = next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))


class CommandTest(unittest.TestCase):
    """The command against a live job: every subcommand once, and what bad input gets."""

    def test_reads_a_live_job(self):
        with Job(4, options(steps=12)) as job:
            job.start()
            job.run()
            why = job.wait_protected()
            step = str(why["last_commit"]["step"])
            for words in (["status"], ["why", JOB], ["jobs"], ["ls", JOB], ["show", JOB, step], ["show", JOB, step, "1"],
                          ["verify", JOB, step]):
                with self.subTest(words=words):
                    done = job.command(*words)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    self.assertTrue(done.stdout.strip())
            peers = [peer for node in job.cluster.ask("status")["nodes"] for peer in node["peers"]]
            self.assertTrue(any(peer["lanes"] > 0 and peer["bytes_read"] > 0 for peer in peers), peers)
            self.assertEqual([peer for peer in peers if peer["failures"] > 0], [])
            out = f"{job.directory}/shard"
            done = job.command("fetch", JOB, step, "0", out)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(f"{out}.manifest.json", done.stdout)
            for words, said in ((["why", "proces-test"], "process-test"), (["show", JOB, "999999"], step),
                                (["stauts"], "status")):
                with self.subTest(words=words):
                    done = job.command(*words)
                    self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
                    self.assertIn(said, done.stderr)

    def test_nobody_there_is_unreachable(self):
        with Job(1, options(world_size=1, replicas=0)) as job:
            node = job.cluster.nodes[0]
            node.child.stop(10)
            job.cluster.nodes[0].alive = lambda: True
            self.assertEqual(job.command("status").returncode, 3)


class ServiceTest(unittest.TestCase):
    """The service as a process: starting, stopping, refusing."""

    def refused(self, *arguments):
        """What a service that will not start says."""
        done = subprocess.run([os.path.join(BINARIES, "backstayd"), *arguments], capture_output=True, text=True,
                              check=False, timeout=30)
        self.assertNotEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_what_it_does_not_know_it_refuses_with_the_nearest(self):
        with tempfile.TemporaryDirectory(prefix="backstay-process-") as directory:
            path = os.path.join(directory, "config")
            with open(path, "w", encoding="utf-8") as config:
                config.write("memory-budgt = 64MiB\n")
            said = self.refused("--config", path)
            self.assertIn("memory-budgt", said)
            self.assertIn("'memory-budget'", said)
            self.assertIn("'memory-budget'", self.refused("--memory-buget", "64MiB"))
            self.assertIn("--control-address",
                          self.refused("--serve-metadata", "--control-address", "0.0.0.0:7000"))
            self.assertIn("metadata", self.refused("--data-dir", directory))
            self.assertIn("--domains: at most 16", self.refused("--serve-metadata", "--data-dir", directory, "--domains",
                                                                ",".join(f"d{i}" for i in range(17))))
            self.assertIn("--advertise-host", self.refused("--serve-metadata", "--data-dir", directory,
                                                           "--advertise-host", "h" * 251))

    def test_stops_cleanly_and_takes_its_socket_with_it(self):
        with Job(2, options()) as job:
            node = job.cluster.nodes[1]
            self.assertTrue(node.child.stop(10), "SIGTERM was not enough")
            self.assertEqual(node.child.exit_code(), 0)
            self.assertFalse(os.path.exists(node.socket))
            job.cluster.start_node(node)
            job.cluster.wait_members({n.name for n in job.cluster.nodes})

    def test_a_port_in_use_is_named(self):
        with Job(2, options()) as job:
            first, second = job.cluster.nodes
            second.child.stop(10)
            second.control = first.control
            job.cluster.start_node(second)
            wait_for(lambda: not second.alive(), "the second service to refuse")
            self.assertNotEqual(second.child.exit_code(), 0)
            self.assertIn("in use", "\n".join(second.child.log_tail()))

    def test_a_second_claim_to_a_node_id_is_not_admitted(self):
        with Job(3, options()) as job:
            first, second = job.cluster.nodes[1:]
            second.child.stop(10)
            before = {n["node"]: n["incarnation"] for n in job.cluster.ask("status")["nodes"]}
            second.name = first.name
            job.cluster.start_node(second)
            wait_for(lambda: any("claimed" in line for line in second.child.log_tail(50)), "the refusal in the log")
            after = {n["node"]: n["incarnation"] for n in job.cluster.ask("status")["nodes"]}
            self.assertEqual(after[first.name], before[first.name])


if __name__ == "__main__":
    unittest.main(verbosity=2)
