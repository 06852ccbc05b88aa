"""What happened between the kill and "protected again", from the trainers' events and the leader's words."""


def mib_per_s(bytes_moved, seconds):
    return bytes_moved / seconds / 1e9 if seconds > 0 else 0.0


class Timeline:
    """Lines of (unix milliseconds, what), printed with milliseconds since the kill."""

    def __init__(self, killed_unix_ms, killed_what):
        self._start = killed_unix_ms
        self._lines = [(killed_unix_ms, killed_what)]

    def add(self, unix_ms, what):
        self._lines.append((unix_ms, what))

    def add_first(self, members, event, what):
        """The first of all ranks' `event`s after the kill."""
        found = self._after(members, event)
        if found:
            unix_ms, member, fields = min(found, key=lambda f: f[0])
            self.add(unix_ms, what(member, fields))
        return bool(found)

    def add_last(self, members, event, what):
        """The moment the last rank had its first `event` after the kill."""
        firsts = {}
        for unix_ms, member, fields in self._after(members, event):
            if member.rank not in firsts or unix_ms < firsts[member.rank][0]:
                firsts[member.rank] = (unix_ms, member, fields)
        if firsts:
            unix_ms, member, fields = max(firsts.values(), key=lambda f: f[0])
            self.add(unix_ms, what(member, fields))
        return bool(firsts)

    def add_each(self, members, event, what):
        for unix_ms, member, fields in self._after(members, event):
            self.add(unix_ms, what(member, fields))

    def _after(self, members, event):
        return [(e["unix_ms"], m, e) for m in members for e in m.tail.events
                if e["event"] == event and e["unix_ms"] >= self._start]

    def render(self):
        lines = []
        for unix_ms, what in sorted(self._lines, key=lambda line: line[0]):
            lines.append(f"  {unix_ms - self._start:+7d} ms  {what}")
        return "\n".join(lines)


def describe_restored(leader_detail_by_rank):
    """How a rank got its bytes, with the leader's account of nodes and rate where there is one."""

    def describe(member, event):
        account = leader_detail_by_rank.get(member.rank)
        if account:
            return account
        mib = event["bytes"] / 2**20
        return (f"rank {member.rank} has its state: {mib:.1f} MiB in {event['seconds'] * 1000:.0f} ms "
                f"({mib_per_s(event['bytes'], event['seconds']):.2f} GB/s) from {event['source']}")

    return describe
