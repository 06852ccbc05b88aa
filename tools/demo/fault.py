"""The fault: who dies and when, and the launcher's part of what follows."""

import time

from cluster import DemoError
from options import KILL_AFTER_COMMITS
from training import EXIT_FAULT


class Fault:
    """Kills in the middle of a save, once; then starts what replaces the dead."""

    def __init__(self, options, cluster):
        self._o = options
        self._cluster = cluster
        self._spares = cluster.nodes[options.training_nodes:]
        # The first node serves the metadata store.
        last = options.training_nodes - (1 if options.training_nodes > 2 and options.nodes_killed < 2 else 0)
        self.nodes = cluster.nodes[last - max(1, options.nodes_killed):last]
        self.victims = []            # Trainers.
        self.killed_unix_ms = None   # None: not yet.
        self.step = 0                # That was being saved.
        self.what = ""
        self.service_back_unix_ms = None
        self.replaced_unix_ms = None

    @property
    def happened(self):
        return self.killed_unix_ms is not None

    def on_event(self, training, member, event):
        """Acts on what a trainer says. Returns a line for the story, or None."""
        kind = event["event"]
        if kind == "save_begun" and not self.happened and self._wants(training, member):
            self._kill(training, event["step"])
            return f"SIGKILL: {self.what}, while step {self.step} is being saved"
        if kind == "service_lost" and self._o.kill == "service" and self.service_back_unix_ms is None:
            self.service_back_unix_ms = int(time.time() * 1000)
            for node in self.nodes:
                node.child.kill()  # It may not have let go of its memory and ports yet.
                self._cluster.start_node(node)
            return f"the service of {self.nodes[0].name} is started again"
        return None

    def _wants(self, training, member):
        if self._o.kill == "none" or member not in self._targets(training):
            return False
        committed = {e["step"] for m in training.members for e in m.tail.events if e["event"] == "committed"}
        return len(committed) >= KILL_AFTER_COMMITS

    def _targets(self, training):
        members = [m for m in training.members if m.node in self.nodes]
        return members[:1] if self._o.kill == "trainer" else members

    def _kill(self, training, step):
        targets = self._targets(training)
        self.step = step
        self.killed_unix_ms = int(time.time() * 1000)
        children = [node.child for node in self.nodes] if self._o.kill != "trainer" else []
        if self._o.kill != "service":
            self.victims = targets
            children += [member.child for member in targets]
        for child in children:
            child.send_kill()
        trainers = "its trainer" if self._o.ranks_per_node == 1 else "its trainers"
        names = " and ".join(node.name for node in self.nodes)
        self.what = {"service": f"the service of {names} is killed",
                     "trainer": f"the trainer of rank {targets[0].rank} on {names} is killed",
                     "both": f"{names} dies: its service and {trainers} are killed",
                     "two-nodes": f"{names} die: their services and trainers are killed"}[self._o.kill]

    def replace(self, training):
        """Starts the next group of ranks when it is time to. Returns a line for the story, or None."""
        if not self.victims or self.replaced_unix_ms is not None:
            return None
        if self._o.launcher == "replace":
            self.replaced_unix_ms = int(time.time() * 1000)
            training.replace({member.rank: self._place(member) for member in self.victims})
            return None
        survivors = [member for member in training.members if member not in self.victims]
        if any(member.child.running() for member in survivors):
            return None
        self.replaced_unix_ms = int(time.time() * 1000)
        training.restart_all([self._place(member) for member in training.members])
        return "all ranks have stopped; all start again"

    def _place(self, member):
        """Where a rank goes on: a dead node's ranks move to a spare, the others stay."""
        if member.node not in self.nodes or not self._o.nodes_killed:
            return member.node
        return self._spares[self.nodes.index(member.node)]

    def check(self, training):
        """Raises DemoError when a process has ended that was not to."""
        for node in self._cluster.nodes:
            killed = self.happened and node in self.nodes and self._o.kill != "trainer"
            restarted = self.service_back_unix_ms is not None
            if node.child is not None and not node.alive() and (not killed or restarted):
                raise DemoError("\n    ".join([f"the service of {node.name} ended with {node.child.exit_code()}:",
                                               *node.child.log_tail()]))
        waits = self.happened and self.replaced_unix_ms is None
        for member in training.members:
            code = member.child.exit_code()
            expected = [None, 0, EXIT_FAULT] if waits and self._o.launcher == "restart-all" else [None, 0]
            if code not in expected and member not in self.victims:
                raise DemoError(f"rank {member.rank} on {member.place} ended: {member.last_words()}")

    def check_happened(self):
        """Raises DemoError when the run has ended without the fault that was asked for: it has shown nothing."""
        if self._o.kill != "none" and not self.happened:
            raise DemoError(f"the run ended before its {KILL_AFTER_COMMITS + 1}. save began, so nobody was killed: "
                            f"were there {KILL_AFTER_COMMITS} commits?")

    def beyond_policy(self):
        """A plain statement when more was killed than the policy promises to survive; else None."""
        lost, promised = self._o.nodes_killed, self._o.replicas
        if not self.happened or lost <= promised:
            return None
        dead = "1 node" if lost == 1 else f"{lost} nodes"
        copies = {0: "no replica", 1: "1 replica"}.get(promised, f"{promised} replicas")
        survives = {0: "no node", 1: "1 node"}.get(promised, f"{promised} nodes")
        return (f"{dead} died whole, and with {copies} of each shard the policy promises to survive the loss of "
                f"{survives}.")
