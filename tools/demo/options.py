"""What the demonstration can be asked for, and what this machine can hold of it."""

import argparse
import os

KILL_AFTER_COMMITS = 2     # So that an older snapshot exists too.
VERSIONS_KEPT = 2          # The example trainer's.
TRAINING_NODES_DEFAULT = 4
STATE_MIB_MAX = 1 << 20    # The example trainer's.


def _parser():
    p = argparse.ArgumentParser(prog="quickstart.sh", description="""
The main job of Backstay on this machine: several services, each playing a node, hold the state of a training run; a node
is killed in the middle of a save; the run goes on from its peers' memory; and its result is compared, bit for bit, with
that of a run that nobody disturbed. Exits with 0 when they are equal, or when more was killed than the number of
replicas promises to survive, which it then says; with 1 otherwise.""")
    p.add_argument("--nodes", type=int, help="services, spares included (default: 4 and the spares)")
    p.add_argument("--ranks-per-node", type=int, default=1, help="default: 1")
    p.add_argument("--replicas", type=int, choices=range(4),
                   help="copies of each rank's state on other nodes (default: 1; 2 with --kill two-nodes)")
    p.add_argument("--state-mib", type=int, default=64, help="state of each rank (default: 64)")
    p.add_argument("--steps", type=int, default=40, help="length of the run (default: 40)")
    p.add_argument("--save-every", type=int, default=5, help="steps from save to save (default: 5)")
    p.add_argument("--kill", choices=["service", "trainer", "both", "two-nodes", "none"], default="both",
                   help="of one node, or of two, its service and its trainers (default: both)")
    p.add_argument("--launcher", choices=["replace", "restart-all"], default="replace",
                   help="replace the lost ranks, or stop and start all ranks again (default: replace)")
    p.add_argument("--text", help="file to learn from (default: the licence texts that Debian ships)")
    p.add_argument("--keep", action="store_true", help="leave the services up at the end and say how to look at them")
    p.add_argument("--bin", required=True, help=argparse.SUPPRESS)
    p.add_argument("--only-check-options", action="store_true", help=argparse.SUPPRESS)
    return p


def parse(arguments=None):
    """The options, with what follows from them. Ends the program with 2 and the reason when they make no sense."""
    p = _parser()
    o = p.parse_args(arguments)
    o.nodes_killed = {"both": 1, "two-nodes": 2}.get(o.kill, 0)
    o.spares = max(1, o.nodes_killed)
    if o.nodes is None:
        o.nodes = TRAINING_NODES_DEFAULT + o.spares
    if o.replicas is None:
        o.replicas = 2 if o.kill == "two-nodes" else 1
    o.training_nodes = o.nodes - o.spares
    o.world_size = o.training_nodes * o.ranks_per_node
    # Room for the fault to be seen in time, whatever the model's size.
    o.step_ms_min = 60 if o.kill != "none" else 0
    refused = _refusal(o)
    if refused:
        p.error(refused)
    return o


def _refusal(o):
    if o.ranks_per_node < 1:
        return "--ranks-per-node must be at least 1"
    if not 1 <= o.state_mib <= STATE_MIB_MAX:
        return f"--state-mib must be from 1 to {STATE_MIB_MAX}"
    spares = "1 spare" if o.spares == 1 else f"{o.spares} spares"
    # The first serves the metadata store and is not killed.
    training_min = 1 + max(1, o.nodes_killed)
    if o.training_nodes < training_min:
        return (f"--nodes {o.nodes} is too few: --kill {o.kill} needs {training_min} nodes with trainers "
                f"(the first serves the metadata store and is not killed) and {spares}, "
                f"so --nodes {training_min + o.spares} or more")
    # The trainers start before the kill and register again after it; both need a node for each copy.
    alive = o.nodes - o.nodes_killed
    if alive < o.replicas + 1:
        return (f"--replicas {o.replicas} needs {o.replicas + 1} nodes for the copies of each shard, and of --nodes "
                f"{o.nodes} only {alive} are left after --kill {o.kill}: "
                f"use --nodes {o.replicas + 1 + o.nodes_killed} or more")
    if o.save_every < 1:
        return "--save-every must be at least 1"
    steps_min = (KILL_AFTER_COMMITS + 2) * o.save_every
    if o.steps < steps_min:
        return f"--steps must leave room for {KILL_AFTER_COMMITS + 2} saves: {steps_min} or more"
    if o.text and not (os.path.isfile(o.text) and os.access(o.text, os.R_OK)):
        return f"--text {o.text}: no such file, or not readable"
    return None


def memory_budget_mib(o):
    """Of one service: its shards and as many replicas, one more of each being saved, and room for a lost node's."""
    per_rank = (o.state_mib * 1.1 + 8) * (VERSIONS_KEPT + 1)
    return int(per_rank * o.ranks_per_node * (1 + o.replicas) * 2 + 64)


def memory_needed_mib(o):
    """Of the whole demonstration: slots on all nodes, and each trainer's own state with its copy of the gradients."""
    return o.world_size * o.state_mib * ((1 + o.replicas) * (VERSIONS_KEPT + 1) + 1.5) + 256


def memory_refusal(o, available_mib):
    """Why this machine cannot hold the run; None when it can."""
    needed_mib = memory_needed_mib(o)
    if needed_mib <= available_mib:
        return None
    return (f"{o.world_size} ranks of {o.state_mib} MiB with {o.replicas} replica{'' if o.replicas == 1 else 's'} need "
            f"about {needed_mib:.0f} MiB, and {available_mib:.0f} MiB are available: "
            "lower --state-mib, --nodes, --ranks-per-node or --replicas")


def memory_available_mib():
    with open("/proc/meminfo", encoding="ascii") as source:
        return next(int(line.split()[1]) for line in source if line.startswith("MemAvailable")) / 1024
