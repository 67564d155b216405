"""Measure the cost of a delivered batch for the driver, and its growth with the number of workers.

    python benchmarks/driver.py [--backend process|ray] [--quick]

The workers are stand-ins on the real backend: they reply to every request at once with the same small fragment, so that
what is measured is asking, waiting, copying and delivering. CPU time of the driver's process, all its threads, per
fragment of 4 × 16 frames, asynchronous. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from functools import partial
from typing import Any

import numpy as np

from policies import quiet_threads
from rounds import begin_ray, ended, parser, table, verdict
from swath.collectors.gather import Fragments
from swath.collectors.jobs import WorkerJobs
from swath.collectors.messages import Description, Head, WorkerOptions, WorkerRequest
from swath.collectors.options import AnyOptions
from swath.collectors.service import CollectorService
from swath.collectors.weights import WeightPublisher
from swath.group.local import Access
from swath.options import Survival
from swath.rollout.buffer import Fragment, Layout, Rows
from swath.rollout.hosts.sources import Source
from swath.weights.channel import Channel
from swath.weights.snapshot import Manifest
from swath.workers.base import Job
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.packing import Parcel, pack, unpack
from swath.workers.tickets import Name

ENVS, STEPS = 4, 16
FRAMES = ENVS * STEPS
SIZES = (1, 4, 16, 64)
MOST_MS = 0.6
PLACED_WITHIN_S = 600.0
DRAWS, QUICK_DRAWS, STRETCHES = 5000, 500, 10


class Sealed:
    """A value that only its receiver rebuilds: a worker that sends it imports little and starts soon."""

    def __init__(self, head: bytes, arrays: list[Any]) -> None:
        self.head, self.arrays = head, arrays

    def __reduce__(self) -> Any:
        return unpack, (self.head, self.arrays)


class StandIn:
    """Replies to each request with the same fragment."""

    def __init__(self, *parts: tuple[bytes, list[Any]]) -> None:
        self._reply = Parcel(*[Sealed(*part) for part in parts])

    def answer(self, update: Any, method: str, *args: Any) -> Any:  # noqa: ARG002  as a worker is called
        """Call one of the methods below."""
        return getattr(self, method)(*args)

    def collect(self, ask: Any) -> Parcel:  # noqa: ARG002
        """Return the fragment."""
        return self._reply

    def close(self) -> None:
        """Do nothing."""


def sealed(value: Any) -> tuple[bytes, list[Any]]:
    """Return a part for `StandIn`."""
    packed = pack(value)
    return packed.head, [np.frombuffer(buffer, dtype=np.uint8) for buffer in packed.buffers]


def fragment() -> Fragment:
    """Return a fragment of zeros."""
    room = (ENVS, STEPS)
    ids, action = (np.zeros(room, dtype=np.int64) for _ in range(2))
    observation, next_observation = (np.zeros((*room, 4), dtype=np.float32) for _ in range(2))
    reward, log_prob = (np.zeros(room, dtype=np.float32) for _ in range(2))
    terminated, truncated = (np.zeros(room, dtype=np.bool_) for _ in range(2))
    rows = Rows(
        observation=[observation],
        outputs=[action, log_prob],
        next_observation=[next_observation],
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        valid=None,
    )
    return Fragment(rows, ids, None, 0)  # no step counts, as without max_frames_per_traj


def service_of(place: str, n_workers: int) -> CollectorService:
    """Return an asynchronous collection from stand-ins, which replace nothing but the collecting."""
    body, places = fragment(), backend(place)

    def job(name: Name) -> Job:
        head = Head(name.life, 0, FRAMES, STEPS, b"", 0)
        resources = {"num_cpus": 0.01} if place == "ray" else {}
        return Job(partial(StandIn, sealed(head), sealed(body)), name, resources=resources)

    fleet = Fleet(places, job, n_workers, Survival(placement_timeout_s=PLACED_WITHIN_S))
    fleet.start()
    group = Fragments(fleet, Channel(places.share), dict.fromkeys(range(n_workers), FRAMES))
    layout = Layout((ENVS,), ("observation",), ("action", "action_log_prob"))
    described = dict.fromkeys(range(n_workers), Description(ENVS, STEPS, layout, Manifest.of(None), {}))
    options = AnyOptions(create_env_fn="stand-ins", frames_per_batch=FRAMES, sync=False, backend=place)
    source, settings = Source("stand-ins", {}, None), WorkerOptions()
    jobs, access = WorkerJobs(options, [WorkerRequest(source, None, settings, FRAMES)] * n_workers), Access("stand-ins")
    jobs.described.update(described)
    return CollectorService(options, group, jobs, access, WeightPublisher(group, jobs, access, None))


def cost_ms(service: CollectorService, draws: int) -> float:
    """Return the CPU milliseconds of this process per batch: the median of ten stretches."""
    for _ in range(draws // 5):
        service.draw()
    found = []
    for _ in range(STRETCHES):
        began = time.process_time()
        for _ in range(draws // STRETCHES):
            service.draw()
        found.append((time.process_time() - began) / (draws // STRETCHES) * 1e3)
    return statistics.median(found)


def main() -> int:
    """Measure every number of workers."""
    command_line = parser(__doc__)
    command_line.add_argument("--backend", default="process", choices=("process", "ray"))
    options = command_line.parse_args()
    quiet_threads()
    if options.backend == "ray":
        begin_ray()
    costs = {}
    for n_workers in SIZES:
        service = service_of(options.backend, n_workers)
        costs[n_workers] = cost_ms(service, QUICK_DRAWS if options.quick else DRAWS)
        service.close(10.0)
    rows = {f"{n_workers} workers": [cost] for n_workers, cost in costs.items()}
    table(f"CPU time of the driver per fragment of {FRAMES} frames, {options.backend}", {"ms": ".3f"}, rows)
    few, many = SIZES[0], SIZES[-1]
    cheap = verdict(f"{options.backend}: {many} workers", costs[many], ".2f ms", maximum=MOST_MS)
    growth = verdict(f"{options.backend}: times the cost of {few}", costs[many] / costs[few], ".2f", maximum=many / few)
    return ended([cheap, growth])


if __name__ == "__main__":
    sys.exit(main())
