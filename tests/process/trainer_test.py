#!/usr/bin/env python3
"""Single calls of the client API against real services: deaths on either side of a call, and bad input.

Goal:   a death at any stage of a call leaves the other side with a clear error and no leak; bad input changes nothing.
Method: trainers that are told each call (api_driver.cc); memory and state are looked at through the command.
"""

import atexit
import json
import mmap
import os
import shutil
import signal
import tempfile
import unittest

from driver import Driver
from harness import BINARIES, Cluster, print_logs, run_command, signals_held, wait_for

MIB = 1 << 20
STATE_BYTES = 6 * MIB
MEMFD = "/memfd:"


class Services:
    """A few services for all tests of a class; each test has jobs of its own."""

    def __init__(self, node_count, flags, memory_budget_mib=512):
        self.directory = tempfile.mkdtemp(prefix="backstay-process-")
        self.cluster = Cluster(BINARIES, self.directory, node_count, memory_budget_mib, flags)
        self._drivers = []
        atexit.register(self.stop)  # Also when the tests are interrupted.
        self.cluster.start()

    @property
    def nodes(self):
        return self.cluster.nodes

    def driver(self, node):
        driver = Driver(self.directory, node)
        self._drivers.append(driver)
        return driver

    def close_drivers(self):
        for driver in self._drivers:
            driver.close()

    def forget_drivers(self):
        self._drivers.clear()

    def restart_dead(self):
        dead = [node for node in self.nodes if not node.alive()]
        for node in dead:
            self.cluster.start_node(node)
        if dead:
            self.cluster.wait_members({node.name for node in self.nodes})

    def stop(self):
        with signals_held():
            atexit.unregister(self.stop)
            self.close_drivers()
            self.cluster.stop()
            shutil.rmtree(self.directory)

    def print_logs(self):
        print_logs([node.child for node in self.nodes] + [driver.child for driver in self._drivers])

    def command(self, *words):
        return run_command(next(node for node in self.nodes if node.alive()), *words)

    def memory(self):
        """Bytes by node and kind."""
        status = wait_for(lambda: self.cluster.ask("status"), "the status")
        return {n["node"]: {kind: n["memory"][kind] for kind in ("reserved", "own", "held", "in_flight", "quarantined")}
                for n in status["nodes"] if n["answered"]}

    def wait_memory(self, wanted):
        seen = []

        def same():
            seen[:] = [self.memory()]
            return seen[0] == wanted

        try:
            wait_for(same, "memory to be given back")
        except AssertionError as error:
            raise AssertionError(f"{error}: wanted {wanted}, have {seen[0]}") from error

    def incarnation(self, node):
        status = self.cluster.ask("status")
        found = [n for n in status["nodes"] if n["node"] == node.name and n["answered"]] if status else []
        return found[0]["incarnation"] if found else None

    def restart(self, node):
        node.child.kill()
        self.cluster.start_node(node)


class ServicesTest(unittest.TestCase):
    NODE_COUNT = 3
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.services = Services(cls.NODE_COUNT, cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        cls.services.stop()

    def setUp(self):
        self.job = self._testMethodName
        self.services.restart_dead()

    def tearDown(self):
        self.services.close_drivers()

    def run(self, result=None):
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before:
            self.services.print_logs()
        self.services.forget_drivers()

    def trainer(self, node_index=1, **claim):
        driver = self.services.driver(self.services.nodes[node_index])
        driver.join(self.job, STATE_BYTES, **claim)
        return driver

    def resumed(self, node_index=1, **claim):
        driver = self.trainer(node_index, **claim)
        driver.restore()
        return driver


class DeathTest(ServicesTest):
    """Trainers and services that die between and inside of calls."""

    def kill_saver(self, stage, step, node_index):
        """A trainer that dies at a stage of a save; the next one finds what was committed."""
        driver = self.resumed(node_index)
        if stage == "registered":
            return driver.kill()
        driver.call("begin", step, 20_000)
        if stage == "copying":
            driver.send("copy")  # Killed inside of the call, or just after it.
        elif stage == "sealed":
            driver.call("copy")
            driver.call("wait", "sealed")
        elif stage == "committing":
            driver.call("copy")
            driver.send("wait", "committed")
        driver.kill()

    def test_memory_is_flat_after_thirty_trainers_killed_in_saves(self):
        self.resumed().call("save", 1)
        self.services.close_drivers()
        before = self.settled_memory()
        stages = ["registered", "begun", "copying", "sealed", "committing"]
        for count in range(30):
            self.kill_saver(stages[count % len(stages)], 10 + count, node_index=1)
        last = self.resumed()
        last.call("save", 100)
        self.assertEqual(last.call("newest")["step"], 100)
        last.close()
        self.services.wait_memory(before)

    def settled_memory(self):
        """Once nothing is on its way and nobody's exit is waited for."""
        found = []

        def settled():
            found[:] = [self.services.memory()]
            return all(m["in_flight"] == 0 and m["quarantined"] == 0 for m in found[0].values())

        wait_for(settled, "quarantine and transfers to end")
        return found[0]

    def test_a_forked_child_that_lives_on_holds_nothing(self):
        first = self.resumed()
        first.call("save", 1)
        self.services.close_drivers()
        before = self.settled_memory()
        trainer = self.resumed()
        child = trainer.call("fork")["pid"]
        trainer.call("begin", 2, 20_000)
        trainer.call("copy")
        trainer.kill()
        self.services.wait_memory(before)
        self.assertTrue(os.path.exists(f"/proc/{child}"), "the child lives on")
        with open(f"/proc/{child}/maps", encoding="utf-8") as maps:
            self.assertNotIn("memfd", maps.read())
        self.assertFalse([fd for fd in os.listdir(f"/proc/{child}/fd")
                          if "socket" in os.readlink(f"/proc/{child}/fd/{fd}")])

    def test_a_service_that_comes_back_is_found_again(self):
        node = self.services.nodes[1]
        trainer = self.resumed(1)
        trainer.call("save", 1)
        for step, stage in enumerate(("idle", "begun", "copied", "sealing"), start=2):
            with self.subTest(stage=stage):
                if stage != "idle":
                    trainer.call("begin", 10 * step, 20_000)
                if stage in ("copied", "sealing"):
                    trainer.call("copy")
                if stage == "copied":
                    trainer.call("wait", "copied")
                waiting = trainer.send("wait", "committed") if stage == "sealing" else None
                self.services.restart(node)
                if waiting is not None:
                    answer = trainer.answer(waiting)
                    self.assertTrue(answer["ok"] or answer["code"] in ("unavailable", "stale"), answer)
                trainer.call("event", "service_lost")
                trainer.call("event", "service_back")
                self.services.cluster.wait_members({n.name for n in self.services.nodes})
                trainer.call("save", 10 * step + 1)
                self.assertEqual(trainer.call("newest")["step"], 10 * step + 1)

    def test_a_save_without_its_service_is_a_clear_error(self):
        node = self.services.nodes[2]
        trainer = self.resumed(2)
        node.child.kill()
        trainer.call("event", "service_lost")
        code, message = trainer.error("begin", 1, 1000)
        self.assertEqual(code, "unavailable")
        self.assertIn("service", message)
        self.services.cluster.start_node(node)
        trainer.call("event", "service_back")
        self.services.cluster.wait_members({n.name for n in self.services.nodes})
        trainer.call("save", 2)

    def test_a_service_stopped_beyond_its_lease_is_admitted_again_before_it_serves(self):
        node = self.services.nodes[2]
        trainer = self.resumed(2)
        trainer.call("save", 1)
        before = self.services.incarnation(node)
        os.kill(node.child.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: self.is_no_member(node), "the lease to end")
        finally:
            os.kill(node.child.pid, signal.SIGCONT)
        wait_for(lambda: (self.services.incarnation(node) or 0) > before, "a new admission")
        trainer.call("save", 2)
        wait_for(lambda: self.verified(2), "both replicas to be good")
        self.assertEqual(trainer.call("newest")["step"], 2)

    def is_no_member(self, node):
        status = self.services.cluster.ask("status")
        return status is not None and node.name not in [n["node"] for n in status["nodes"]]

    def verified(self, step):
        return self.services.command("verify", self.job, str(step)).returncode == 0


class ClaimTest(ServicesTest):
    """What bad input and competing claims get."""

    def test_a_second_claim_fences_the_first(self):
        first = self.resumed(1)
        first.call("save", 1)
        second = self.trainer(2)
        first.call("event", "fenced")
        self.assertEqual(first.error("begin", 2, 1000)[0], "stale")
        restored = second.restore()
        self.assertEqual((restored["fresh"], restored["step"]), (False, 1))
        second.call("save", 2)
        self.assertEqual(second.call("newest")["step"], 2)

    def stop_and_replace(self, node_index):
        """A trainer is stopped in a save; another one claims its shard, and commits. Then the first one goes on."""
        first = self.resumed(1)
        first.call("save", 1)
        first.call("begin", 2, 20_000)
        os.kill(first.child.pid, signal.SIGSTOP)
        try:
            copying = first.send("copy")
            waiting = first.send("wait", "committed")
            second = self.trainer(node_index)
            self.assertEqual(second.restore()["step"], 1)
            second.call("save", 3)
        finally:
            os.kill(first.child.pid, signal.SIGCONT)
        first.answer(copying)
        answer = first.answer(waiting)
        self.assertEqual((answer["ok"], answer.get("code")), (False, "stale"), answer)
        self.assertEqual(first.error("begin", 4, 1000)[0], "stale")
        self.assertEqual(second.call("newest")["step"], 3)
        wait_for(lambda: self.services.command("verify", self.job, "3").returncode == 0, "both replicas to be good")
        steps = [s["step"] for s in json.loads(self.services.command("ls", self.job, "--json").stdout)["snapshots"]
                 if s["state"] == "committed"]
        self.assertNotIn(2, steps)
        return first

    def quarantined(self):
        return self.services.memory()[self.services.nodes[1].name]["quarantined"]

    def test_a_stopped_trainer_that_was_replaced_elsewhere_seals_nothing(self):
        self.stop_and_replace(2)

    def test_a_stopped_trainer_that_was_replaced_here_writes_into_nothing_that_is_used(self):
        first = self.stop_and_replace(1)
        self.assertGreaterEqual(self.quarantined(), STATE_BYTES)  # What it has mapped, until it exits.
        first.close()
        wait_for(lambda: self.quarantined() == 0, "quarantine to end")

    def pair(self):
        """Trainers of ranks 0 and 1."""
        drivers = [self.services.driver(self.services.nodes[i + 1]) for i in range(2)]
        for driver in drivers:
            driver.call("connect", driver.node.socket)
        self.both(drivers, *(("register", self.job, "secret", rank, 2, 1, STATE_BYTES) for rank in range(2)))
        return drivers

    def both(self, drivers, *calls):
        """One call each, at once; the same one if there is only one."""
        calls = calls * 2 if len(calls) == 1 else calls
        sent = [driver.send(*call) for driver, call in zip(drivers, calls)]
        answers = [driver.answer(number) for driver, number in zip(drivers, sent)]
        self.assertTrue(all(answer["ok"] for answer in answers), answers)
        return answers

    def restore_both(self, drivers):
        answers = self.both(drivers, ("restore", drivers[0].call("attempt")["uuid"], 20_000))
        self.assertEqual(answers[0]["step"], answers[1]["step"])
        return answers[0]["step"]

    def test_ranks_that_swap_their_numbers_swap_their_shards(self):
        drivers = self.pair()
        self.restore_both(drivers)
        self.both(drivers, ("save", 1))
        self.both(drivers, ("fence", "swapping"))
        self.both(drivers, ("renumber", 1), ("renumber", 0))
        self.assertEqual(self.restore_both(drivers), 1)  # Each compares its new rank's bytes.
        self.both(drivers, ("save", 2))
        for driver in drivers:
            driver.close()
        self.assertEqual(self.restore_both(self.pair()), 2)

    def test_another_token_is_refused_by_name(self):
        self.resumed(1).call("save", 1)
        other = self.services.driver(self.services.nodes[2])
        other.call("connect", other.node.socket)
        code, message = other.error("register", self.job, "guess", 0, 1, 1, STATE_BYTES)
        self.assertEqual(code, "permission denied")
        self.assertIn(self.job, message)

    def test_another_jobs_state_is_read_by_its_token_only(self):
        self.resumed(1).call("save", 1)
        stranger = self.services.driver(self.services.nodes[2])
        stranger.join(self.job + "-stranger", STATE_BYTES, token="another")
        code, message = stranger.error("open", 0, "0", self.job)
        self.assertEqual(code, "permission denied")
        self.assertIn(self.job, message)
        uuid = stranger.call("attempt")["uuid"]
        self.assertEqual(stranger.error("restore", uuid, 10_000, self.job)[0], "permission denied")
        stranger.restore()
        code, message = stranger.error("open", 0, "0", self.job[:-1])
        self.assertEqual(code, "not found")
        self.assertIn(self.job, message)  # The nearest there is.

    def test_the_trainer_of_an_ended_job_reads_nothing_of_the_next_one(self):
        old = self.resumed(1)
        old.call("save", 1)
        old.call("finish")
        new = self.services.driver(self.services.nodes[2])
        new.join(self.job, STATE_BYTES, token="new")
        new.restore()
        new.call("save", 7)
        for call in (("newest",), ("open", 0, "0"), ("open", 0, "0", self.job)):
            code, message = old.error(*call)
            self.assertIn(code, ("stale", "permission denied", "not found"))
            self.assertIn(self.job, message)
        new.call("save", 8)

    def test_what_an_ended_job_had_reserved_is_given_back(self):
        before = self.services.memory()
        trainer = self.resumed(1)
        trainer.call("save", 1)
        self.assertNotEqual(self.services.memory(), before)
        trainer.call("finish")
        self.services.wait_memory(before)  # The trainer lives on, without its slots.

    def test_a_step_of_zero_is_refused(self):
        trainer = self.resumed(1)
        code, message = trainer.error("begin", 0, 1000)
        self.assertEqual(code, "invalid argument")
        self.assertIn("from 1 on", message)
        trainer.call("save", 1)

    def test_a_shard_is_not_made_smaller_under_a_save(self):
        trainer = self.resumed(1)
        trainer.call("save", 1)
        trainer.call("begin", 2, 1000)
        code, message = trainer.error("resize", MIB)
        self.assertEqual(code, "unavailable")
        self.assertIn("smaller", message)
        trainer.call("copy")
        trainer.call("wait", "committed")
        trainer.call("resize", MIB)
        trainer.call("grow", MIB // 2)
        trainer.call("save", 3)

    def test_a_fork_goes_on_from_another_job_under_its_own_name(self):
        parent = self.resumed(1)
        parent.call("save", 7)
        child = self.services.driver(self.services.nodes[2])
        child.join(self.job + "-fork", STATE_BYTES)
        child.call("open", 0, "0", self.job)
        restored = child.restore(fork_job=self.job)
        self.assertEqual((restored["fresh"], restored["step"]), (False, 7))
        child.call("save", 8)
        parent.call("save", 9)
        self.assertEqual(child.call("newest")["step"], 8)
        self.assertEqual(parent.call("newest")["step"], 9)
        # It is a job like any other: its own commit is what it resumes from.
        child.kill()
        again = self.services.driver(self.services.nodes[2])
        again.join(self.job + "-fork", STATE_BYTES)
        self.assertEqual(again.restore()["step"], 8)

    def test_more_than_was_registered_fails_that_save_only(self):
        trainer = self.resumed(1)
        trainer.call("save", 1)
        trainer.call("grow", 2 * STATE_BYTES)
        trainer.call("begin", 2, 1000)
        code, message = trainer.error("copy")
        self.assertIn(code, ("invalid argument", "no space"))
        self.assertIn("registered", message)
        trainer.call("abandon")
        trainer.call("resize", 2 * STATE_BYTES + MIB)
        trainer.call("save", 3)
        self.assertEqual(trainer.call("newest")["step"], 3)
        # The slots that are too small now are unmapped by the trainer, which lives on, and freed.
        trainer.call("save", 4)
        trainer.call("save", 5)
        wait_for(lambda: all(m["quarantined"] == 0 for m in self.services.memory().values()),
                 "the small slots to be given back")

    def test_a_budget_that_cannot_fit_says_the_sum(self):
        trainer = self.services.driver(self.services.nodes[1])
        trainer.call("connect", trainer.node.socket)
        code, message = trainer.error("register", self.job, "secret", 0, 1, 1, 400 * MIB)
        self.assertEqual(code, "no space")
        for part in ("slots of 400", "800", "512", self.job):
            self.assertIn(part, message)
        trainer.call("register", self.job, "secret", 0, 1, 1, STATE_BYTES)  # Nothing was lost.
        code, message = trainer.error("resize", 400 * MIB)
        self.assertEqual(code, "no space")
        trainer.restore()
        trainer.call("save", 1)

    def test_a_policy_that_the_domains_cannot_satisfy(self):
        trainer = self.services.driver(self.services.nodes[1])
        trainer.call("connect", trainer.node.socket)
        code, message = trainer.error("register", self.job, "secret", 0, 1, 3, STATE_BYTES)
        self.assertEqual(code, "invalid argument")
        self.assertIn("4 domains", message)
        # A job that nobody was let into never was.
        listed = self.services.cluster.ask("jobs")["jobs"]
        self.assertEqual([job["job"] for job in listed if job["job"] == self.job and not job["ended"]], [])
        trainer.call("register", self.job, "secret", 0, 1, 1, STATE_BYTES)

    def test_ranks_and_worlds_out_of_range(self):
        trainer = self.services.driver(self.services.nodes[1])
        trainer.call("connect", trainer.node.socket)
        for rank, world_size, replicas in ((1, 1, 1), (0, 0, 1), (0, 1, 4)):
            with self.subTest(rank=rank, world_size=world_size, replicas=replicas):
                code, _ = trainer.error("register", self.job, "secret", rank, world_size, replicas, STATE_BYTES)
                self.assertEqual(code, "invalid argument")
        self.assertEqual(trainer.error("begin", 1, 1000)[0], "invalid argument")

    def test_what_does_not_exist_names_what_does(self):
        trainer = self.resumed(1)
        trainer.call("save", 41)
        code, message = trainer.error("read", "weigths", 11, STATE_BYTES)
        self.assertEqual(code, "not found")
        self.assertIn("weights", message)
        code, message = trainer.error("open", 40)
        self.assertEqual(code, "not found")
        self.assertIn("41", message)
        code, message = trainer.error("open", 41, "7")
        self.assertEqual(code, "not found")
        self.assertIn("0", message)
        code, message = trainer.error("open", 0, "0", self.job + "x")
        self.assertEqual(code, "not found")
        self.assertIn(f"did you mean {self.job}?", message)
        # And the wrong type or size of what does exist.
        for dtype, elements in ((5, STATE_BYTES), (11, 7)):
            self.assertEqual(trainer.error("read", "weights", dtype, elements)[0], "invalid argument")
        trainer.call("open", 41, "0")
        done = self.services.command("why", self.job + "x")
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn(self.job, done.stderr)

    def test_steps_only_grow(self):
        trainer = self.resumed(1)
        trainer.call("save", 10)
        for step in (10, 9):
            self.assertEqual(trainer.error("begin", step, 1000)[0], "stale")
        trainer.call("save", 11)


class DamageTest(ServicesTest):
    """Damages memory."""

    def flip(self, node, state_bytes):
        """Damages every shard-sized memory file of a service. Returns how many."""
        damaged = 0
        directory = f"/proc/{node.child.pid}/fd"
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            try:
                if not os.readlink(path).startswith(MEMFD) or os.stat(path).st_size < state_bytes:
                    continue
                with open(path, "r+b") as memory, mmap.mmap(memory.fileno(), state_bytes) as data:
                    middle = state_bytes // 2
                    data[middle] ^= 0xFF
                    damaged += 1
            except (FileNotFoundError, PermissionError):
                continue
        return damaged


class ScrubTest(DamageTest):
    """Damage that nobody reads."""

    FLAGS = ("--scrub-rate", "256MiB")

    def scrubbed(self, node):
        status = wait_for(lambda: self.services.cluster.ask("status"), "the status")
        return next(n["scrub"] for n in status["nodes"] if n["node"] == node.name)

    def test_a_damaged_copy_is_found_and_made_again_without_a_reader(self):
        trainer = self.resumed(1)
        trainer.call("save", 1)
        primary = self.services.nodes[1]
        self.assertGreater(self.flip(primary, STATE_BYTES), 0)
        wait_for(lambda: self.scrubbed(primary)["bad_shards"] >= 1, "the scrub to find the damage")
        wait_for(lambda: self.services.command("verify", self.job, "1").returncode == 0, "repair of the damaged copy")
        self.assertIn("damaged shard", self.services.command("status").stdout)
        trainer.call("save", 2)


class CorruptionTest(DamageTest):
    """Memory that lies."""

    FLAGS = ("--scrub-rate", "0")  # Found by whoever reads it.

    def test_a_damaged_copy_is_named_and_the_other_is_used(self):
        trainer = self.resumed(1)
        trainer.call("save", 1)
        owner = self.services.nodes[1]
        self.assertEqual(self.services.command("verify", self.job, "1").returncode, 0)
        trainer.close()
        self.assertGreater(self.flip(owner, STATE_BYTES), 0)
        done = self.services.command("verify", self.job, "1")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn(owner.name, done.stdout + done.stderr)
        again = self.trainer(1)
        restored = again.restore()  # Compares every byte.
        self.assertEqual(restored["step"], 1)
        wait_for(lambda: self.services.command("verify", self.job, "1").returncode == 0, "repair of the damaged copy")

    def test_a_restore_that_meets_the_damage_first_reads_elsewhere(self):
        trainer = self.resumed(1)
        trainer.call("save", 1)
        trainer.close()
        self.assertGreater(self.flip(self.services.nodes[1], STATE_BYTES), 0)
        restored = self.trainer(1).restore()
        self.assertEqual((restored["fresh"], restored["step"]), (False, 1))

    def test_damage_everywhere_is_an_error_and_never_wrong_bytes(self):
        trainer = self.resumed(1)
        trainer.call("save", 1)
        trainer.close()
        for node in self.services.nodes:
            self.flip(node, STATE_BYTES)
        again = self.trainer(1)
        code, message = again.error("restore", again.call("attempt")["uuid"], 20_000)
        self.assertIn(code, ("corrupt", "not found", "unavailable"))
        self.assertTrue(message)


if __name__ == "__main__":
    unittest.main(verbosity=2)
