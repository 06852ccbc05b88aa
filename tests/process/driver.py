"""A trainer process that makes one call of the public API for each line it is sent (api_driver.cc)."""

import json
import os

from harness import BINARIES, WAIT_TIMEOUT_S, wait_for
from processes import Child

PROGRAM = os.environ.get("BACKSTAY_API_DRIVER", os.path.join(BINARIES, "..", "tests", "backstay_api_driver"))
CALL_TIMEOUT_S = WAIT_TIMEOUT_S + 15  # More than any call of the driver may take.


class CallFailed(AssertionError):
    """A call that was to succeed."""


class Driver:
    """One trainer. Calls may be sent before earlier ones are answered; answers come in order."""

    _count = 0

    def __init__(self, directory, node):
        Driver._count += 1
        self.node = node
        path = os.path.join(directory, f"driver-{Driver._count}")
        os.mkfifo(path + ".commands")
        self._answers_path = path + ".log"
        self._sent = 0
        self.child = Child(f"driver-{Driver._count}", [PROGRAM, path + ".commands"], self._answers_path)
        self._commands = open(path + ".commands", "w", encoding="ascii", buffering=1)

    def send(self, *words):
        """Starts a call. Returns its number, for answer()."""
        self._commands.write(" ".join(str(word) for word in words) + "\n")
        self._sent += 1
        return self._sent - 1

    def answered(self, number):
        """The answer if it is there; None else."""
        with open(self._answers_path, "rb") as log:
            lines = [line for line in log.read().splitlines(keepends=True)
                     if line.startswith(b"{") and line.endswith(b"\n")]
        return json.loads(lines[number]) if number < len(lines) else None

    def answer(self, number):
        def done():
            found = self.answered(number)
            if found is None and self.child.exit_code() is not None:
                raise AssertionError(f"{self.child.name} ended with {self.child.exit_code()}")
            return found

        return wait_for(done, f"an answer of {self.child.name}", CALL_TIMEOUT_S)

    def call(self, *words):
        """A call that must succeed."""
        answer = self.answer(self.send(*words))
        if not answer["ok"]:
            raise CallFailed(f"{self.child.name} on {self.node.name}: {words}: {answer}")
        return answer

    def error(self, *words):
        """A call that must fail: its code and message."""
        answer = self.answer(self.send(*words))
        if answer["ok"]:
            raise AssertionError(f"{words} was to fail: {answer}")
        return answer.get("code"), answer["message"]

    def join(self, job, state_bytes, token="secret", rank=0, world_size=1, replicas=1):
        self.call("connect", self.node.socket)
        self.call("register", job, token, rank, world_size, replicas, state_bytes)

    def restore(self, timeout_ms=20_000, fork_job=""):
        """Of a job with one rank; from another job's newest snapshot if one is named."""
        return self.call("restore", self.call("attempt")["uuid"], timeout_ms, fork_job)

    def kill(self):
        """The trainer alone; what it has forked lives on."""
        self.child.kill()

    def close(self):
        """The end of its commands ends it, and its children. May be repeated."""
        self._commands.close()
        self.child.kill()
