"""The launcher of the demonstration: starts ranks, sees one die, puts the next group together."""

import json
import os
import re

from processes import Child, write_atomically

LOG_PREFIX = re.compile(r"^[0-9:.]+ rank \d+ +(error: )?")
EXIT_FAULT = 75  # The example trainer's word for "start all ranks again".


class EventTail:
    """Reads a trainer's event file as it grows."""

    def __init__(self, path):
        self._path = path
        self._offset = 0
        self.events = []

    def poll(self):
        """The events that came since the last call."""
        try:
            with open(self._path, "rb") as source:
                source.seek(self._offset)
                text = source.read()
        except FileNotFoundError:
            return []
        complete = text[:text.rfind(b"\n") + 1]
        self._offset += len(complete)
        fresh = [json.loads(line) for line in complete.splitlines()]
        self.events += fresh
        return fresh


class Member:
    """One place in the group of ranks: a trainer process on a node."""

    def __init__(self, name, rank, node, child, events):
        self.name = name
        self.rank = rank
        self.node = node
        self.child = child
        self.tail = EventTail(events)

    @property
    def place(self):
        return self.node.name if self.node else "this machine"

    def last_words(self):
        """How it ended, for a person."""
        lines = self.child.log_tail(1)
        return LOG_PREFIX.sub("", lines[0]) if lines else f"exit code {self.child.exit_code()}"

    def last(self, event):
        return next((e for e in reversed(self.tail.events) if e["event"] == event), None)


class Training:
    """One job's ranks. Members are named; a round file says which members are the ranks of a group."""

    def __init__(self, binaries, directory, options, job, exit_on_fault):
        self._trainer = os.path.join(binaries, "backstay-example-trainer")
        self._directory = directory
        self._options = options
        self._job = job
        self._exit_on_fault = exit_on_fault
        self._round = 0
        self._started = 0
        self.rendezvous = os.path.join(directory, "rendezvous")
        self.members = []    # Of the newest round, in rank order.
        self.everyone = []   # Also those that are gone.
        os.makedirs(self.rendezvous, exist_ok=True)

    def start(self, places):
        """Starts a rank at each of `places`: a node, or None for a run without Backstay."""
        names = [self._new_name() for _ in places]
        self._publish(names)
        self.members = [self._start(name, rank, node)
                        for rank, (name, node) in enumerate(zip(names, places))]

    def replace(self, replacements):
        """The next round: the same ranks, new processes for those in `replacements` (rank -> node)."""
        names = [self._new_name() if rank in replacements else member.name
                 for rank, member in enumerate(self.members)]
        self._publish(names)
        for rank, node in replacements.items():
            self.members[rank] = self._start(names[rank], rank, node)

    def restart_all(self, places):
        """The next round with new processes for all ranks."""
        self.start(places)

    def poll(self):
        """(member, event) for everything that came since the last call."""
        return [(member, event) for member in self.everyone for event in member.tail.poll()]

    def first_after(self, unix_ms, *kinds):
        """Each member's first event of these kinds since then: (member, event), earliest first."""
        found = []
        for member in self.everyone:
            event = next((e for e in member.tail.events if e["event"] in kinds and e["unix_ms"] >= unix_ms), None)
            if event:
                found.append((member, event))
        return sorted(found, key=lambda pair: pair[1]["unix_ms"])

    def finished(self):
        """Every rank has said its digest, and ended."""
        return (all(member.last("finished") for member in self.members)
                and not any(member.child.running() for member in self.members))

    def digests(self):
        """Of the final state, by rank."""
        return [member.last("finished")["digest"] for member in self.members]

    def stop(self):
        for member in self.everyone:
            member.child.send_kill()
        for member in self.everyone:
            member.child.kill()

    def _new_name(self):
        self._started += 1
        return f"trainer-{self._started}"

    def _publish(self, names):
        self._round += 1
        write_atomically(os.path.join(self.rendezvous, f"round-{self._round}"),
                         "".join(f"{name}\n" for name in names))

    def _start(self, name, rank, node):
        o = self._options
        events = os.path.join(self._directory, f"{name}.events")
        arguments = [
            self._trainer, "--rank", str(rank), "--world-size", str(o.world_size),
            "--member", name, "--round", str(self._round), "--rendezvous", self.rendezvous,
            "--steps", str(o.steps), "--save-every", str(o.save_every),
            "--state-mib", str(o.state_mib), "--replicas", str(o.replicas),
            "--service", node.socket if node else "none", "--job", self._job, "--events", events,
        ]
        if o.text:
            arguments += ["--text", o.text]
        if o.step_ms_min:
            arguments += ["--step-ms-min", str(o.step_ms_min if node else 0)]
        if self._exit_on_fault:
            arguments.append("--exit-on-fault")
        child = Child(name, arguments, os.path.join(self._directory, f"{name}.log"))
        member = Member(name, rank, node, child, events)
        self.everyone.append(member)
        return member
