"""What happened from the kill to "protected again", from the trainers' events and the leader's."""

import re

PLAIN_REJECTION = "is older than what was chosen"
GLOO_PLACE = re.compile(r"\[\./gloo/[^\]]*\] ")


def name_list(names):
    names = list(names)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def ranks(members):
    numbers = sorted({member.rank for member in members})
    return ("rank " if len(numbers) == 1 else "ranks ") + name_list(str(number) for number in numbers)


class Account:
    """Lines for a person. `why` is the answer of `backstay why --json` after the run."""

    def __init__(self, options, fault, training, why):
        self._o = options
        self._fault = fault
        self._training = training
        self._why = why
        self._timeline = []  # (unix milliseconds, text)

    def lines(self):
        yield self._saves()
        if not self._fault.happened:
            return
        yield "\nWhat happened, in milliseconds after the kill:"
        self._add(self._fault.killed_unix_ms, f"{self._fault.what}; {self._save_killed()}")
        self._add_trainers()
        self._add_leader()
        for unix_ms, text in sorted(self._timeline, key=lambda entry: entry[0]):
            yield f"  {unix_ms - self._fault.killed_unix_ms:6d}  {text}"
        yield ""
        yield self._steps_lost()

    # ---- The saves ---------------------------------------------------------------------------------------------

    def _saves(self):
        stalls = sorted(e["stall_ms"] for m in self._training.everyone for e in m.tail.events if e["event"] == "saved")
        # That the save under way at the kill fails is told elsewhere.
        failed = [(m, e) for m in self._training.everyone for e in m.tail.events if e["event"] == "save_failed"
                  and not (self._fault.happened and e["step"] == self._fault.step)]
        text = "No rank saved its state."
        if stalls:
            text = (f"Ranks saved their state {len(stalls)} times; a save stalled its rank for "
                    f"{stalls[len(stalls) // 2]:.1f} ms (median), {stalls[-1]:.1f} ms at most.")
        if failed:
            member, event = failed[0]
            text += (f"\n{len(failed)} other save{'' if len(failed) == 1 else 's'} failed, and training went on; the first, "
                     f"of step {event['step']} by rank {member.rank}: {event['message']}.")
        return text

    def _save_killed(self):
        """Whether the save that the kill fell into was committed nevertheless."""
        step = self._fault.step
        commit = next((e["unix_ms"] for m in self._training.everyone for e in m.tail.events
                       if e["event"] == "committed" and e["step"] == step and e["generation"] == 1), None)
        if commit is None:
            commit = next((e["unix_ms"] for e in self._events("committed")
                           if e["detail"] == f"step {step} of generation 1"), None)
        if commit is None:
            return f"step {step} was being saved, and is not committed"
        if commit <= self._fault.killed_unix_ms:
            return f"step {step} was being saved, and had just been committed"
        return f"step {step} was being saved, and was still committed, for all its bytes were already safe"

    # ---- The timeline ------------------------------------------------------------------------------------------

    def _add(self, unix_ms, text):
        self._timeline.append((unix_ms, text))

    def _events(self, *kinds):
        """The leader's, since the kill for all but commits."""
        return [e for e in self._why["timeline"] if e["what"] in kinds
                and ("committed" in kinds or e["unix_ms"] >= self._fault.killed_unix_ms)]

    def _add_trainers(self):
        training, killed = self._training, self._fault.killed_unix_ms
        seen = training.first_after(killed, "fault_seen")
        if seen:
            member, event = seen[0]
            text = f"fault seen by rank {member.rank}: {GLOO_PLACE.sub('', event['message'])}"
            if len(seen) > 1:
                text += f" (by {ranks(m for m, _ in seen)} within {seen[-1][1]['unix_ms'] - killed} ms)"
            self._add(event["unix_ms"], text)
        for member, event in training.first_after(killed, "service_lost"):
            if self._o.kill == "service":
                self._add(event["unix_ms"], f"rank {member.rank} lost its service; training goes on")
        if self._fault.service_back_unix_ms:
            self._add(self._fault.service_back_unix_ms, "the service is started again")
        started = training.first_after(killed, "started")
        if started and self._o.launcher == "restart-all":
            self._add(self._fault.replaced_unix_ms, f"all ranks have stopped; all {len(started)} start again, "
                      f"{self._moved(started)}")
        else:
            for member, event in started:
                self._add(event["unix_ms"], f"a new process starts as rank {member.rank} on {member.place}")
        first = training.first_after(killed, "first_step")
        if first:
            self._add(first[0][1]["unix_ms"], f"first step after the fault: step {first[0][1]['step']}")

    def _moved(self, started):
        moved = [f"rank {m.rank} on {m.place}" for m, _ in started if m.rank in {v.rank for v in self._fault.victims}]
        return name_list(moved)

    def _add_leader(self):
        self._add_fence()
        for event in self._events("leader elected"):
            self._add(event["unix_ms"], f"a leader is elected for the job: {event['detail']}")
        if self._o.kill == "service":
            # The trainer itself reads of it only when it next looks. A new leader hears of the others, too.
            places = tuple(f" on {node.name}," for node in self._fault.nodes)
            for event in (e for e in self._events("shard admitted") if any(p in e["detail"] for p in places)):
                self._add(event["unix_ms"], f"its trainer saves again, without a restart: {event['detail']}")
        for event in self._events("node lost"):
            self._add(event["unix_ms"], f"{event['detail'].split(' ')[0]} is counted as lost: its lease has ended")
        for event in self._events("closing"):
            self._add(event["unix_ms"], f"reconfigured: all ranks have called, and generation {event['generation']} is "
                      "closed; which snapshots are whole is asked of every node")
        for event in self._events("decided"):
            self._add(event["unix_ms"], f"decision, for all ranks: {event['detail']}")
            for rejected in self._why["decision"]["rejected"] if self._why.get("decision") else []:
                if not rejected.endswith(PLAIN_REJECTION):
                    self._add(event["unix_ms"], f"  not {rejected}")
        for event in self._events("restored"):
            self._add(event["unix_ms"], f"restored: {event['detail']}")
        for event in self._events("restore failed", "moved to an older snapshot"):
            self._add(event["unix_ms"], f"{event['what']}: {event['detail']}")
        for event in self._events("resumed"):
            self._add(event["unix_ms"], f"resumed: every rank has its bytes; generation {event['generation']} begins")
        self._add_repair()

    def _add_fence(self):
        fenced = self._events("fenced")
        if not fenced:
            return
        first, last = fenced[0], fenced[-1]
        who = sorted(int(e["detail"].split(" ")[1].rstrip(":")) for e in fenced)
        text = (f"fenced: nothing of generation {first['generation']} is saved any more, by rank"
                f"{'' if len(who) == 1 else 's'} {name_list(map(str, who))}")
        if len(who) > 1:
            text += f" (all within {last['unix_ms'] - first['unix_ms']} ms)"
        self._add(first["unix_ms"], text)

    def _add_repair(self):
        again = self._events("protected again")
        started = self._events("repair started")
        done = {e["detail"] for e in self._events("repaired")}
        if started:
            self._add(started[0]["unix_ms"], "repair begins: lost replicas are made again on other nodes")
        if again:
            made = f" ({len(done)} replica{'' if len(done) == 1 else 's'} made by repair)" if done else ""
            self._add(again[-1]["unix_ms"], f"protected again: every committed shard has its replicas{made}")

    # ---- The price ---------------------------------------------------------------------------------------------

    def _steps_lost(self):
        killed = self._fault.killed_unix_ms
        resumed = self._training.first_after(killed, "resumed")
        if not resumed:
            return "Steps lost: 0. Training was never interrupted."
        base = resumed[0][1]["step"]
        done = max(self._steps_before_fault(), default=base)
        return (f"Steps lost: {max(0, done - base)}. The fault came after step {done}, "
                f"and training went on from step {base}.")

    def _steps_before_fault(self):
        killed = self._fault.killed_unix_ms
        for member in self._training.everyone:
            for event in member.tail.events:
                if event["event"] in ("fault_seen", "reconfigure_begin", "started") and event["unix_ms"] >= killed:
                    break
                if event["event"] == "step":
                    yield event["step"]
