"""Real services and real trainers, killed at chosen moments. Looks only through public interfaces."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "demo"))

from cluster import Cluster  # noqa: E402
from processes import STOP_SIGNALS, signals_held  # noqa: E402
from training import Training  # noqa: E402

BINARIES = os.environ["BACKSTAY_BIN"]
JOB = "process-test"
POLL_S = 0.002
# Less than the example trainer's own longest wait, 120 s: nobody may have to wait for that.
RUN_TIMEOUT_S = 90
WAIT_TIMEOUT_S = 30


# Whoever stops the tests gets them to clean up, too; meanwhile the signals are held.
for _stop_signal in STOP_SIGNALS:
    signal.signal(_stop_signal, signal.default_int_handler)


def options(**changes):
    """What the trainers are started with."""
    base = {"world_size": 3, "steps": 24, "save_every": 3, "state_mib": 8, "replicas": 1,
            "text": None, "step_ms_min": 30}
    return types.SimpleNamespace(**{**base, **changes})


def wait_for(condition, what, timeout_s=WAIT_TIMEOUT_S):
    """The first true value of `condition`; fails the test at the timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s for {what}")
        time.sleep(0.02)


def run_command(node, *words):
    """`backstay` for a person, through one service."""
    return subprocess.run([os.path.join(BINARIES, "backstay"), "--connect", node.control, *words],
                          capture_output=True, text=True, check=False, timeout=60)


def print_logs(children):
    for child in children:
        if child is None:
            continue
        print(f"---- {child.name}: exit {child.exit_code()}", file=sys.stderr)
        for line in child.log_tail(15):
            print(f"     {line}", file=sys.stderr)


class Reference:
    """Digests of runs that nobody disturbs, one for each set of options."""

    _digests = {}

    @classmethod
    def digests(cls, run_options):
        key = (run_options.world_size, run_options.steps, run_options.state_mib)
        if key not in cls._digests:
            directory = tempfile.mkdtemp(prefix="backstay-reference-")
            training = Training(BINARIES, directory, options(**{**vars(run_options), "step_ms_min": 0}), JOB, False)
            try:
                training.start([None] * run_options.world_size)
                wait_for(lambda: (training.poll(), all(m.last("finished") for m in training.members))[1],
                         "the undisturbed run", RUN_TIMEOUT_S)
                cls._digests[key] = [m.last("finished")["digest"] for m in training.members]
            finally:
                training.stop()
                shutil.rmtree(directory)
        return cls._digests[key]


class Job:
    """A cluster, one job on it, and a launcher that puts a new process in every lost rank's place."""

    def __init__(self, node_count, run_options, exit_on_fault=False, cluster=None, name=JOB):
        """On a cluster of its own, or on one that runs and goes on."""
        self.directory = tempfile.mkdtemp(prefix="backstay-process-")
        self.options = run_options
        self.name = name
        self._owns_cluster = cluster is None
        self.cluster = cluster or Cluster(BINARIES, self.directory, node_count,
                                          memory_budget_mib=int(run_options.state_mib * 40 + 64))
        self.training = Training(BINARIES, self.directory, run_options, name, exit_on_fault)
        self._restart_all = exit_on_fault
        self._rules = []
        self._later = []
        self.fired = []

    def __enter__(self):
        if not self._owns_cluster:
            return self
        try:
            self.cluster.start()
        except BaseException:  # An interruption, too: __exit__ does not run for it.
            self._stop()
            raise
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self._print_logs()
        self._stop()

    def _stop(self):
        with signals_held():
            self.training.stop()
            if self._owns_cluster:
                self.cluster.stop()
            shutil.rmtree(self.directory)

    def start(self):
        self.training.start(self.cluster.nodes[:self.options.world_size])

    def when(self, name, condition, action):
        """Once, at the first (member, event) that `condition` accepts, runs action(member, event)."""
        self._rules.append([name, condition, action, False])

    def later(self, delay_s, action):
        """Runs action() in the loop of run(), or at its end."""
        self._later.append((time.monotonic() + delay_s, action))

    def _run_later(self, now):
        due = [entry for entry in self._later if entry[0] <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for _, action in due:
            action()

    def run(self):
        """Until every rank has finished; the launcher acts meanwhile. Returns the ranks' digests."""
        try:
            return self._run_to_end()
        finally:
            self._run_later(float("inf"))

    def _run_to_end(self):
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while time.monotonic() < deadline:
            for member, event in self.training.poll():
                self._apply_rules(member, event)
            self._run_later(time.monotonic())
            if all(m.last("finished") and m.child.exit_code() == 0 for m in self.training.members):
                return [m.last("finished")["digest"] for m in self.training.members]
            self._replace_lost()
            time.sleep(POLL_S)
        raise AssertionError(f"the run has not finished within {RUN_TIMEOUT_S} s; fired: {self.fired}")

    def _apply_rules(self, member, event):
        for rule in self._rules:
            name, condition, action, done = rule
            if not done and condition(member, event):
                rule[3] = True
                self.fired.append(name)
                action(member, event)

    def _replace_lost(self):
        lost = [m for m in self.training.members if m.child.exit_code() not in (None, 0)]
        if not lost:
            return
        if self._restart_all and any(m.child.running() for m in self.training.members):
            return  # Every rank ends after a fault; then all start again together.
        used = {m.node.name for m in self.training.members if m not in lost}
        places = {}
        for member in lost:
            node = member.node if member.node.alive() else next(
                n for n in self.cluster.nodes if n.alive() and n.name not in used)
            used.add(node.name)
            places[member.rank] = node
        if self._restart_all:
            self.training.restart_all([places.get(m.rank, m.node) for m in self.training.members])
        else:
            self.training.replace(places)

    # ---- Actions ----------------------------------------------------------------------------------------------------

    def kill_node(self, node):
        """Service and trainers of a node."""
        node.child.kill()
        self.kill_trainers(node)

    def kill_trainers(self, node):
        """The trainers of a node; its service lives."""
        for member in self.training.members:
            if member.node is node:
                member.child.kill()

    def restart_leader(self):
        self.restart_service(self.leader())

    def restart_service(self, node):
        node.child.kill()
        self.cluster.start_node(node)

    # ---- Looking ----------------------------------------------------------------------------------------------------

    def why(self):
        return self.cluster.ask("why", self.name)

    def leader(self):
        why = wait_for(lambda: (lambda w: w if w and w.get("leader_answered") else None)(self.why()), "a leader")
        return next(n for n in self.cluster.nodes if n.name == why["leader"]["node"])

    def wait_protected(self):
        return wait_for(lambda: (lambda w: w if w and w.get("leader_answered") and not w["under_protected"] else None)(
            self.why()), "full protection")

    def command(self, *words):
        return run_command(next(n for n in self.cluster.nodes if n.alive()), *words)

    def _print_logs(self):
        print_logs([n.child for n in self.cluster.nodes] + [m.child for m in self.training.everyone])
