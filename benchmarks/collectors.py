"""Collectors with two workers against TorchRL's and RLlib's, on CartPole-v1, each with the policy of its users.

    python benchmarks/collectors.py [--quick]      # needs swath[ray]; the peers' environments are made at first use

Frames per second with one thread per process, sampled actions with log-probabilities, a 4-64-64-2 network; contenders
take turns (see rounds.py), each ratio is the median over the rounds. All are on one Ray cluster on this machine. What
two collectors make at once, each in a process that knows nothing of the other, says what the cores give. Ends with 1
if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ray

import cluster
from figures import ended
from peers import RLLIB, TORCHRL, python_of
from policies import lean_actor, quiet_threads
from rounds import AtOnce, Peer, Run, Target, interleave, reached, show, timed
from swath import Collector, MultiAsyncCollector, MultiSyncCollector, RayCollector

WORKERS, STEPS = 2, 128
SMALL, LARGE = 8, 32
IN_PROCESS = "Collector, in this process"
AT_ONCE = "two Collectors on their own, at once"
RAY, PROCESSES, PEER, OTHER = "RayCollector", "Multi collector", "TorchRL's RayCollector", "RLlib's EnvRunnerGroup"


def collecting(collector: Any) -> Run:
    """Draw batches."""
    batches = iter(collector)
    return timed(lambda: int(next(batches).numel()))


def ours(kind: Callable[..., Any], envs: int, **more: Any) -> Any:
    """One of our collectors; `envs` are stepped together by each worker."""
    return kind("CartPole-v1", lean_actor(), envs_per_worker=envs, **more)


def contenders(envs: int, address: str, stack: ExitStack) -> dict[str, Run]:
    """All that run with so many envs per worker."""
    share = envs * STEPS
    both = {"frames_per_batch": WORKERS * share}
    one = {"frames_per_batch": share}
    mine = {
        f"{RAY}, sync": ours(RayCollector, envs, sync=True, num_collectors=WORKERS, **both),
        f"{RAY}, async": ours(RayCollector, envs, sync=False, num_collectors=WORKERS, **one),
        f"{PROCESSES}, sync": ours(MultiSyncCollector, envs, num_workers=WORKERS, **both),
        f"{PROCESSES}, async": ours(MultiAsyncCollector, envs, num_workers=WORKERS, **one),
        IN_PROCESS: ours(Collector, envs, **one),
    }
    for collector in mine.values():
        stack.callback(collector.shutdown)
    peers: dict[str, Peer] = {
        f"{PEER}, {order}": Peer(python_of(TORCHRL), "peer_torchrl.py", order, envs, STEPS, address)
        for order in ("sync", "async")
    }
    peers[OTHER] = Peer(python_of(RLLIB), "peer_rllib.py", envs, STEPS, address)
    alone = [Peer(Path(sys.executable), "collector_alone.py", envs, STEPS) for _ in range(WORKERS)]
    others = peers | {AT_ONCE: AtOnce(*alone)}
    for other in others.values():
        stack.callback(other.close)
    return {name: collecting(collector) for name, collector in mine.items()} | others


def targets(envs: int) -> list[Target]:
    """What must be reached with so many envs per worker."""
    found = []
    for order in ("sync", "async"):
        found.append(Target(f"{RAY}, {order}", f"{PEER}, {order}", 10 if envs == SMALL else 12))
        if envs == SMALL:
            found.append(Target(f"{RAY}, {order}", OTHER, 7))
            found.append(Target(f"{RAY}, {order}", IN_PROCESS, 1.4))
            found.append(Target(f"{PROCESSES}, {order}", f"{RAY}, {order}", 1))
    return [*found, Target(AT_ONCE, IN_PROCESS, None)]


def measure(envs: int, address: str, rounds: int, seconds: float) -> bool:
    """Print the tables of one size; whether all its targets are reached."""
    with ExitStack() as stack:
        rates = interleave(contenders(envs, address, stack), rounds, seconds)
    show(f"{WORKERS} workers with {envs} envs each, {STEPS} steps", rates, "frames/s")
    return reached(rates, targets(envs))


def main() -> int:
    """Measure both sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few short rounds: a look, not a measurement")
    rounds, seconds = ({SMALL: 3, LARGE: 3}, 1.0) if parser.parse_args().quick else ({SMALL: 7, LARGE: 3}, 2.0)
    quiet_threads()
    address = cluster.begin()
    print(f"one thread per process, rounds of {seconds:g} s")
    passed = [measure(envs, address, many, seconds) for envs, many in rounds.items()]
    ray.shutdown()
    return ended(passed)


if __name__ == "__main__":
    sys.exit(main())
