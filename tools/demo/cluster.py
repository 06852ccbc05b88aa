"""The services of the demonstration: one backstayd per simulated node, all on loopback."""

import json
import os
import subprocess
import time

from processes import Child, free_ports

READY_TIMEOUT_S = 30
STOP_TIMEOUT_S = 10
ASK_TIMEOUT_S = 10
LEASE_TTL_MS = 1500


class DemoError(Exception):
    """Something that ends the demonstration, in words for a person."""


class Node:
    """One service: its name, addresses and process."""

    def __init__(self, number, directory, ports):
        self.name = f"node-{number}"
        self.directory = os.path.join(directory, self.name)
        self.control, self.data, self.metrics = (f"127.0.0.1:{port}" for port in ports)
        # A unix socket's path has room for 107 bytes.
        self.socket = os.path.join(directory, f"n{number}.sock")
        self.child = None
        os.makedirs(self.directory, exist_ok=True)

    def alive(self):
        return self.child is not None and self.child.running()


class Cluster:
    """Starts, asks, kills and stops the services. The first node serves the embedded metadata store."""

    def __init__(self, binaries, directory, node_count, memory_budget_mib, flags=()):
        self._backstay = os.path.join(binaries, "backstay")
        self._backstayd = os.path.join(binaries, "backstayd")
        self._budget_mib = memory_budget_mib
        self._flags = flags
        ports = free_ports(3 * node_count)
        self.nodes = [Node(i + 1, directory, ports[3 * i:3 * i + 3]) for i in range(node_count)]

    @property
    def metadata_node(self):
        return self.nodes[0]

    def start(self):
        for node in self.nodes:
            self.start_node(node)
        self.wait_members({node.name for node in self.nodes})

    def start_node(self, node):
        metadata = (["--serve-metadata"] if node is self.metadata_node
                    else ["--metadata-address", self.metadata_node.control])
        node.child = Child(node.name, [
            self._backstayd, "--node-id", node.name,
            "--domains", f"host-{node.name[5:]}", "--hosts-simulated",
            "--memory-budget", f"{self._budget_mib}MiB", "--data-dir", node.directory,
            "--socket", node.socket, "--control-address", node.control,
            "--data-address", node.data, "--metrics-address", node.metrics,
            "--lease-ttl-ms", str(LEASE_TTL_MS), *metadata, *self._flags,
        ], os.path.join(node.directory, "log"))

    def ask(self, *words):
        """What `backstay --json` answers, through any live service. None: nobody could be reached."""
        node = next((n for n in self.nodes if n.alive()), None)
        if node is None:
            return None
        try:
            done = subprocess.run([self._backstay, "--connect", node.control, *words, "--json"],
                                  capture_output=True, text=True, check=False, timeout=ASK_TIMEOUT_S)
            return json.loads(done.stdout)
        except (ValueError, subprocess.TimeoutExpired):
            return None

    def wait_members(self, names):
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            for node in self.nodes:
                if node.name in names and not node.alive():
                    raise DemoError("\n  ".join([f"the service of {node.name} ended:",
                                                 *node.child.log_tail()]))
            status = self.ask("status")
            if status and names <= {n["node"] for n in status["nodes"] if n["answered"]}:
                return
            time.sleep(0.05)
        raise DemoError("\n  ".join([f"the services were not ready within {READY_TIMEOUT_S} s; the first one says:",
                                     *self.nodes[0].child.log_tail()]))

    def stop(self):
        started = [node for node in self.nodes if node.child is not None]
        others = [node for node in started if node is not self.metadata_node]
        for node in others:
            node.child.terminate()
        # The metadata store goes last, so that the others can say goodbye to it.
        for node in [*others, *(node for node in started if node is self.metadata_node)]:
            node.child.stop(STOP_TIMEOUT_S)
