"""Measure the cost of a delivered batch for the driver, and its growth with the number of workers.

    python benchmarks/driver.py [--backend process|ray] [--quick]

The workers are stand-ins on the real backend: they reply to every request at once with the same small fragment, so that
what is measured is asking, waiting, copying and delivering. CPU time of the driver's process, all its threads, per
fragment of 4 × 16 frames, asynchronous; also where workers write to a replay buffer, so that the driver gets no rows.
On Ray, 1,024 stand-ins share 16 actors, beside bare calls of as many actors
that return arrays of the same sizes: `ray.wait`, `ray.get`, and the next call. Ends with 1 if a target is missed.
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
from swath.collectors.messages import Description, Head, WorkerRequest, WriteRequest
from swath.collectors.options import AnyOptions, Trajectories, WorkerOptions
from swath.collectors.service import CollectorService
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
SIZES = {"process": (1, 4, 16, 64), "ray": (1, 4, 16, 64, 256, 1024)}
MOST_MS, MOST_TIMES_BARE = 0.6, 2.0
ACTORS, NAMESPACE = 16, "driver benchmark"
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
    observation = np.zeros((*room, 4), dtype=np.float32)
    reward, log_prob = (np.zeros(room, dtype=np.float32) for _ in range(2))
    terminated, truncated = (np.zeros(room, dtype=np.bool_) for _ in range(2))
    rows = Rows(
        observation=[observation],
        outputs=[action, log_prob],
        last_observation=[observation[:, -1]],
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        valid=None,
    )
    return Fragment(rows, ids, None, 0)  # no step counts, as without max_frames_per_traj


def service_of(place: str, n_workers: int, *, writes: bool = False) -> CollectorService:
    """Return an asynchronous collection from stand-ins, which replace nothing but the collecting, or also writing."""
    body, places = None if writes else fragment(), backend(place)

    def job(name: Name) -> Job:
        head = Head(name.life, 0, FRAMES, STEPS, b"", 0, writes=int(writes), frames_written=FRAMES if writes else 0)
        build = partial(StandIn, sealed(head), sealed(body))
        if place == "process":
            return Job(build, name)
        registered = f"{'writes' * writes}{name.worker % ACTORS}", NAMESPACE
        return Job(build, name, resources={"num_cpus": 0.01}, registered=registered)

    fleet = Fleet(places, job, n_workers, Survival(placement_timeout_s=PLACED_WITHIN_S))
    fleet.start()
    layout = Layout((ENVS,), ("observation",), ("action", "action_log_prob"))
    options = AnyOptions(create_env_fn="stand-ins", frames_per_batch=FRAMES, sync=False, backend=place)
    source, settings = Source("stand-ins", {}, None), WorkerOptions()
    jobs, access = WorkerJobs(options, [WorkerRequest(source, None, settings, FRAMES)] * n_workers), Access("stand-ins")
    jobs.described.update(dict.fromkeys(range(n_workers), Description(ENVS, STEPS, layout, Manifest.of(None), {})))
    jobs.writing = WriteRequest(Trajectories()) if writes else None
    shares = dict.fromkeys(range(n_workers), FRAMES)
    return CollectorService(Fragments(fleet, Channel(places.share), jobs, shares, lambda: None), jobs, access)


class BareCalls:
    """Calls of bare actors, which return the arrays of a fragment; n are open at any time."""

    def __init__(self, n_calls: int) -> None:
        import ray

        @ray.remote(num_cpus=0.01)
        class Bare:
            def __init__(self, reply: Any) -> None:
                self.reply = reply

            def collect(self) -> Any:
                return self.reply

        self._ray, reply = ray, sealed(fragment())
        actors = [Bare.remote(reply) for _ in range(min(n_calls, ACTORS))]
        ray.get([actor.collect.remote() for actor in actors])
        self._open = {
            actors[call % len(actors)].collect.remote(): actors[call % len(actors)] for call in range(n_calls)
        }

    def draw(self) -> Any:
        """Return an answer, and call its actor again."""
        (answer,), _ = self._ray.wait([*self._open], num_returns=1)
        actor = self._open.pop(answer)
        value = self._ray.get(answer)
        self._open[actor.collect.remote()] = actor
        return value

    def close(self, timeout: float) -> None:  # noqa: ARG002  as a service is closed
        """End the actors."""
        for actor in {*self._open.values()}:
            self._ray.kill(actor)


def cost_ms(service: CollectorService | BareCalls, draws: int) -> float:
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
    draws, sizes = QUICK_DRAWS if options.quick else DRAWS, SIZES[options.backend]
    kinds: dict[str, Any] = {
        "ms": partial(service_of, options.backend),
        "workers write, ms": partial(service_of, options.backend, writes=True),
    }
    if options.backend == "ray":
        kinds["bare calls, ms"] = BareCalls
    costs: dict[int, list[float]] = {n_workers: [] for n_workers in sizes}
    for n_workers, found in costs.items():
        for kind in kinds.values():
            service = kind(n_workers)
            found.append(cost_ms(service, max(draws, 2 * n_workers)))
            service.close(10.0)
    rows: dict[str, list[float]] = {f"{n_workers} workers": found for n_workers, found in costs.items()}
    table(
        f"CPU time of the driver per fragment of {FRAMES} frames, {options.backend}", dict.fromkeys(kinds, ".3f"), rows
    )
    name, (few, *_), (cost, _, *bare) = options.backend, sizes, costs[64]
    verdicts = [
        verdict(f"{name}: 64 workers × bare calls", cost / other, ".2f", maximum=MOST_TIMES_BARE) for other in bare
    ]
    if not bare:
        verdicts = [verdict(f"{name}: 64 workers", cost, ".2f ms", maximum=MOST_MS)]
    growth, most = costs[sizes[-1]][0] / costs[few][0], sizes[-1]
    return ended([*verdicts, verdict(f"{name}: {most} workers × 1 worker", growth, ".2f", maximum=most / few)])


if __name__ == "__main__":
    sys.exit(main())
