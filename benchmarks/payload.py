"""Large fragments on Ray: 54 MB of uint8 frames from an actor to a delivered batch, beside TorchRL's `RayCollector`.

    python benchmarks/payload.py [--quick]      # needs swath[ray]; TorchRL's environment is made at first use

Workers of both are stand-ins that hold one fragment and answer with it, so that nothing but its way is measured; all
are on one Ray cluster on this machine, and take turns (see rounds.py).

Copies are counted by the memory that they need, in multiples of a fragment: what the actor takes while it answers and
the driver while it delivers, each above what it had, at its peak (Linux's VmHWM) and without the pages of the store
that it has mapped; and what lies in the object store when one fragment waits there. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import ray

import cluster
import memory
from figures import ended, verdict
from peers import TORCHRL, python_of
from policies import quiet_threads
from rounds import Peer, Run, Target, interleave, reached, show, timed
from stand_ins import collection_of, fragment
from swath.collectors.service import CollectorService

ENVS, STEPS, FRAME = 8, 120, np.zeros((4, 84, 84), dtype=np.uint8)
SIZE = 2 * ENVS * STEPS * FRAME.nbytes
MOST_COPIES = 3
ORDERS = ("sync", "async")
PLACES = ("actor", "driver", "store")
FREED_S = 2.0
"""Ray frees what nobody needs once a second."""


def drawing(collection: CollectorService) -> Run:
    """Draw batches."""

    def draw() -> int:
        assert collection.draw().batch.numel() == ENVS * STEPS
        return 1

    return timed(draw)


def answer(collection: CollectorService, method: str) -> Any:
    """Of the only worker."""
    return collection.group.call(method)[0]


def grown(collection: CollectorService, draws: int = 20) -> tuple[int, int]:
    """Bytes that the actor and the driver take above what they have; draws one batch after another."""
    for _ in range(draws):
        collection.draw()
    answer(collection, "begin")
    before = memory.begin()
    for _ in range(draws):
        collection.draw()
    return answer(collection, "grown"), memory.peak() - before


def waiting(collection: CollectorService) -> int:
    """Bytes in the store while one fragment waits there to be drawn."""
    collection.draw()
    collection.group.fleet.answers([request.ticket for request in collection.group.wanted()])
    return min(cluster.stored_for(FREED_S))


def measure(rounds: int, seconds: float) -> list[bool]:
    """Print the tables; which targets are reached."""
    address, made = cluster.begin(), fragment(ENVS, STEPS, FRAME)
    with ExitStack() as stack:
        mine = {order: collection_of("ray", 1, made, sync=order == "sync", ahead=order == "async") for order in ORDERS}
        for collection in mine.values():
            stack.callback(collection.close, 10.0)
        counted = *grown(mine["sync"]), waiting(mine["async"])
        peers = {order: Peer(python_of(TORCHRL), "peer_payload.py", order, ENVS, STEPS, address) for order in ORDERS}
        for peer in peers.values():
            stack.callback(peer.close)
        contenders = {f"RayCollector, {order}": drawing(collection) for order, collection in mine.items()}
        rates = interleave(contenders | {f"TorchRL, {order}": peer for order, peer in peers.items()}, rounds, seconds)
    show(f"{SIZE / 1e6:.0f} MB a fragment", rates, "fragments/s")
    fast = reached(rates, [Target(f"RayCollector, {order}", f"TorchRL, {order}", 4) for order in ORDERS])
    return [fast, _few(counted)]


def _few(counted: Sequence[int]) -> bool:
    """Print the copies; whether they are few enough."""
    copies = [size / SIZE for size in counted]
    parts = ", ".join(f"{times:.2f} in the {place}" for times, place in zip(copies, PLACES, strict=True))
    return verdict("copies", sum(copies), ".2f", most=MOST_COPIES, note=parts)


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few short rounds: a look, not a measurement")
    rounds, seconds = (5, 1.0) if parser.parse_args().quick else (7, 1.5)
    quiet_threads()
    passed = measure(rounds, seconds)
    ray.shutdown()
    return ended(passed)


if __name__ == "__main__":
    sys.exit(main())
