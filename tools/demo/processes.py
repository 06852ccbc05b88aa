"""Processes that never outlive the program which started them."""

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_PORT_MIN = 10240
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_held():
    """Lets no signal come between a thing's making and the record of it. Yields the mask from before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare_child(parent_pid, signal_mask):
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)  # The parent died before the line above.
    signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)


class Child:
    """A program in a session of its own, its output in a file; killed when this process dies, however it dies."""

    _all = []

    @classmethod
    def kill_all(cls):
        """For the end: also those that nobody else remembers."""
        for child in cls._all:
            child.kill()

    def __init__(self, name, arguments, log_path):
        self.name = name
        self.log_path = log_path
        parent_pid = os.getpid()
        with open(log_path, "ab") as log, signals_held() as mask:
            self._process = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=lambda: _prepare_child(parent_pid, mask))
            Child._all.append(self)

    @property
    def pid(self):
        return self._process.pid

    def exit_code(self):
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def running(self):
        return self.exit_code() is None

    def send_kill(self):
        """SIGKILL; does not wait."""
        if self.running():
            self._process.kill()

    def kill(self):
        """SIGKILL, and waits until the kernel has let go of it."""
        if self.running():
            self._process.kill()
        self._process.wait()

    def terminate(self):
        """SIGTERM; does not wait."""
        if self.running():
            self._process.terminate()

    def stop(self, timeout_s):
        """SIGTERM, and SIGKILL after `timeout_s`. Returns whether it ended by itself."""
        self.terminate()
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
    """Ports of the loopback address that nobody uses now, and that no outgoing connection will be given."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as source:
        outgoing_min = int(source.read().split()[0])
    candidates = list(range(_PORT_MIN, max(outgoing_min, _PORT_MIN + 10 * count)))
    random.shuffle(candidates)
    ports = []
    for port in candidates:
        if len(ports) == count:
            break
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("127.0.0.1", port))
                ports.append(port)
            except OSError:
                continue
    return ports


def write_atomically(path, text):
    temporary = f"{os.path.dirname(path)}/.{os.path.basename(path)}.new"
    with open(temporary, "w", encoding="utf-8") as out:
        out.write(text)
    os.rename(temporary, path)
