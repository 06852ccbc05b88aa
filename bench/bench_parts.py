"""What job_bench.py measures with: samples, iperf3, a rank's process, and what a service's memory holds."""

import json
import os
import select
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools", "demo"))

from cluster import DemoError  # noqa: E402  (after the path that has it)
from processes import free_ports  # noqa: E402

MIB = 2**20
REPLY_TIMEOUT_S = 120
IPERF_S = 1
DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]
IPERF_VARIANTS = {"1 stream": ["-P", "1"], "1 stream, zero-copy": ["-P", "1", "-Z"],
                  "2 streams": ["-P", "2"], "2 streams, zero-copy": ["-P", "2", "-Z"]}


class Samples:
    """Values of one quantity."""

    def __init__(self, values=()):
        self.values = list(values)

    def add(self, value):
        self.values.append(value)

    @property
    def median(self):
        return statistics.median(self.values)

    def report(self):
        return {"median": self.median, "min": min(self.values), "max": max(self.values), "count": len(self.values)}


class Iperf:
    """The network's limit: GB/s of iperf3 over loopback, by variant, measured now and then during the run."""

    def __init__(self):
        self.rates = {name: Samples() for name in IPERF_VARIANTS}

    def measure(self):
        for name, extra in IPERF_VARIANTS.items():
            self.rates[name].add(self._once(extra))

    def best_of_last(self, count):
        """(name, samples) of the variant with the best median in the last `count` measurements."""
        last = {name: Samples(rates.values[-count:]) for name, rates in self.rates.items()}
        return max(last.items(), key=lambda item: item[1].median)

    @staticmethod
    def _once(extra):
        port = str(free_ports(1)[0])
        server = subprocess.Popen([*DIE_WITH_PARENT, "iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        try:
            _wait_listening(int(port))
            client = ["iperf3", "-c", "127.0.0.1", "-p", port, "-t", str(IPERF_S), "-l", "1M", "-J", *extra]
            done = subprocess.run(client, capture_output=True, text=True, check=False, timeout=10 * IPERF_S + 20)
            report = json.loads(done.stdout)
            if "error" in report:
                raise DemoError(f"iperf3: {report['error']}")
            return report["end"]["sum_received"]["bits_per_second"] / 8e9
        finally:
            server.kill()
            server.wait()


def _wait_listening(port):
    """Until somebody listens on the port: seen in the kernel's table, for iperf3 serves only one connection."""
    wanted = f":{port:04X}"
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table, encoding="ascii") as lines:
                if any(words[1].endswith(wanted) and words[3] == "0A" for words in map(str.split, lines)):
                    return
        time.sleep(0.01)
    raise DemoError("iperf3 does not listen")


class Rank:
    """One job_bench process; `ask` sends it a line and returns its answer."""

    def __init__(self, binaries, node, job, rank, world_size, options, replicas=1):
        self.node = node
        self.job = job
        self.number = rank
        self.name = f"rank {rank} of {job}"
        self._process = subprocess.Popen(
            [*DIE_WITH_PARENT, os.path.join(binaries, "job_bench"), "--service", node.socket, "--job", job,
             "--rank", str(rank), "--world-size", str(world_size), "--replicas", str(replicas),
             "--mib", str(options.mib), "--read-threads", str(options.threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.answer()  # Its state is made and touched.

    @property
    def pid(self):
        return self._process.pid

    def send(self, *words):
        try:
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DemoError(f"{self.name} ended") from None

    def answer(self):
        # Each answer is one line, and none is sent without being asked for, so nothing waits in Python's buffer.
        if not select.select([self._process.stdout], [], [], REPLY_TIMEOUT_S)[0]:
            raise DemoError(f"{self.name} did not answer within {REPLY_TIMEOUT_S} s")
        line = self._process.stdout.readline()
        if not line:
            raise DemoError(f"{self.name} ended")
        reply = json.loads(line)
        if "error" in reply:
            raise DemoError(f"{self.name}: {reply['error']}")
        return reply

    def ask(self, *words):
        self.send(*words)
        return self.answer()

    def kill(self):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # What was still to be sent to it.


def ask_all(ranks, *words):
    """The answers of all, who were asked at once."""
    for rank in ranks:
        rank.send(*words)
    return [rank.answer() for rank in ranks]


def soon():
    """An instant at which all ranks can start together."""
    return time.monotonic_ns() + 50_000_000


def cpu_seconds(pids):
    """Processor time of these processes until now."""
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="ascii") as source:
            fields = source.read().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def check_memory(needed_mib, what):
    with open("/proc/meminfo", encoding="ascii") as source:
        available_mib = next(int(line.split()[1]) for line in source if line.startswith("MemAvailable")) / 1024
    if needed_mib > available_mib:
        raise DemoError(f"this needs about {needed_mib:.0f} MiB ({what}), {available_mib:.0f} MiB are available: "
                        "lower --mib or --ranks")


def service_memory(pid):
    """Bytes of a service: private memory, and all memory files that it has open, each counted once."""
    with open(f"/proc/{pid}/status", encoding="ascii") as source:
        fields = dict(line.split(":", 1) for line in source)
    private = sum(int(fields[key].split()[0]) * 1024 for key in ("RssAnon", "RssFile"))
    files = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        try:
            if "/memfd:" in os.readlink(path):
                stat = os.stat(path)
                files[stat.st_dev, stat.st_ino] = stat.st_blocks * 512
        except FileNotFoundError:
            pass  # Closed meanwhile.
    return {"private_bytes": private, "memory_file_bytes": sum(files.values())}


def host_description():
    """The machine in words that say nothing of where it is."""
    with open("/proc/cpuinfo", encoding="ascii") as source:
        models = [line.split(":", 1)[1].strip() for line in source if line.startswith("model name")]
    with open("/proc/meminfo", encoding="ascii") as source:
        total_kib = int(source.readline().split()[1])
    kernel = ".".join(os.uname().release.split(".")[:2])
    return {"cpu": models[0] if models else "unknown", "cores": os.cpu_count(), "memory_gib": round(total_kib / MIB, 1),
            "kernel": kernel, "load_1min": os.getloadavg()[0]}
