"""What a delivered batch costs the driver, and how that grows with the number of workers.

    python benchmarks/driver.py [--backend process|ray] [--quick]

The workers are stand-ins on the real backend: they answer every request at once with the same small fragment, so that
what is measured is asking, waiting, copying and delivering. CPU time of the driver's process, all its threads, per
fragment of 4 × 16 frames, asynchronous. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from functools import partial
from typing import Any

import gymnasium as gym

from policies import lean_actor
from swath import Collector
from swath.collect.asks import Head
from swath.collect.counters import Counters
from swath.collect.desk import Desk
from swath.collect.first_of import FirstOf
from swath.collect.fleet_collection import FleetCollection, Making
from swath.collect.gather import Pace
from swath.collect.joining import batch_of
from swath.collect.renewal import Renewal
from swath.collect.shaping import Shaper
from swath.collect.worker import Tally
from swath.options import Budget, Survival
from swath.weights.channel import Channel
from swath.weights.due import Automatic, Due
from swath.workers.base import Job
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.packing import Parcel
from swath.workers.tickets import Name

ENVS, STEPS = 4, 16
SIZES = (1, 4, 16, 64)
MOST_MS = 1.0


class StandIn:
    """Answers with one fragment, again and again."""

    def __init__(self, fragment: Any, worker: int) -> None:
        self._head = Head(
            worker=worker, life=0, version=0, frames=ENVS * STEPS, steps=STEPS, tally=Tally(), episodes=(), next_id=0
        )
        self._fragment = fragment

    def collect(self, update: Any, ask: Any) -> Parcel:  # noqa: ARG002  as a worker is asked
        """The fragment."""
        return Parcel(self._head, self._fragment)

    def close(self) -> None:
        """Nothing to close."""


def model() -> tuple[Any, Any]:
    """A small fragment as real workers make them, and its layout."""
    env = gym.make("CartPole-v1")
    env.close()
    with Collector("CartPole-v1", lean_actor(), frames_per_batch=ENVS * STEPS, envs_per_worker=ENVS) as collector:
        collection = collector._collection  # noqa: SLF001  the fragment itself, not its batch
        return collection.worker.collect(), collection.shaper.layout


def collection_of(n_workers: int, place: str, fragment: Any, layout: Any) -> FleetCollection:
    """A collection of stand-ins."""
    places = backend(place)

    def job(name: Name) -> Job:
        asked = {"num_cpus": 0.01} if place == "ray" else {}
        return Job(partial(StandIn, fragment, name.worker), name, resources=asked)

    def parts(shares: Any, bodies: Any) -> list[Any]:  # noqa: ARG001  as a collection asks
        return [batch_of(body, layout) for body in bodies]

    fleet = Fleet(places, job, n_workers, Survival())
    fleet.bring_up()
    budget, counters, pace = Budget(ENVS * STEPS), Counters(), Pace(1)
    frames = dict.fromkeys(range(n_workers), ENVS * STEPS)
    desk = Desk(fleet, Channel(places.share), frames, budget, counters, Renewal(Due(Automatic()), print))
    return FleetCollection(
        desk=desk,
        gather=FirstOf(desk, pace),
        pace=pace,
        making=Making(lambda shares, bodies: parts(shares, bodies)[0], parts),
        shaper=Shaper(layout),
        batch_frames=ENVS * STEPS,
        counters=counters,
    )


def cost_ms(collection: FleetCollection, draws: int) -> float:
    """CPU milliseconds of this process per batch: the median of ten stretches."""
    for _ in range(draws // 5):
        collection.draw()
    found = []
    for _ in range(10):
        began = time.process_time()
        for _ in range(draws // 10):
            collection.draw()
        found.append((time.process_time() - began) / (draws // 10) * 1e3)
    return statistics.median(found)


def main() -> int:
    """Measure every number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="process", choices=("process", "ray"))
    parser.add_argument("--quick", action="store_true", help="fewer draws: a look, not a measurement")
    options = parser.parse_args()
    fragment, layout = model()
    costs = {}
    for n_workers in SIZES:
        collection = collection_of(n_workers, options.backend, fragment, layout)
        costs[n_workers] = cost_ms(collection, 500 if options.quick else 5000)
        collection.close(10.0)
        print(
            f"  {options.backend}, {n_workers:>3} workers: {costs[n_workers]:.3f} ms of the driver per batch",
            flush=True,
        )
    few, many = SIZES[0], SIZES[-1]
    reached = costs[many] <= MOST_MS and costs[many] <= costs[few] * many / few
    print(f"at {many} workers {costs[many]:.3f} ms, target {MOST_MS:g} {'passed' if reached else 'missed'}")
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main())
