"""Processes that never outlive the program which started them."""

import ctypes
import os
import signal
import socket
import subprocess

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def _die_with_parent():
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    """A program in a session of its own, its output in a file; killed when this process dies, however it dies."""

    def __init__(self, name, arguments, log_path):
        self.name = name
        self.log_path = log_path
        with open(log_path, "ab") as log:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=_die_with_parent)

    @property
    def pid(self):
        return self._process.pid

    def exit_code(self):
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def running(self):
        return self.exit_code() is None

    def kill(self):
        """SIGKILL, and waits until the kernel has let go of it."""
        if self.running():
            self._process.kill()
        self._process.wait()

    def stop(self, timeout_s):
        """SIGTERM, and SIGKILL after `timeout_s`. Returns whether it ended by itself."""
        if self.running():
            self._process.terminate()
        try:
            self._process.wait(timeout_s)
            return True
        except subprocess.TimeoutExpired:
            self.kill()
            return False

    def log_tail(self, lines=12):
        try:
            with open(self.log_path, "rb") as log:
                return log.read().decode(errors="replace").splitlines()[-lines:]
        except OSError:
            return []


def free_ports(count):
    """Ports of the loopback address that nobody uses now."""
    sockets = []
    for _ in range(count):
        probe = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        sockets.append(probe)
    ports = [probe.getsockname()[1] for probe in sockets]
    for probe in sockets:
        probe.close()
    return ports


def write_atomically(path, text):
    temporary = f"{os.path.dirname(path)}/.{os.path.basename(path)}.new"
    with open(temporary, "w", encoding="utf-8") as out:
        out.write(text)
    os.rename(temporary, path)
