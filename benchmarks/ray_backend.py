"""What the Ray backend costs beside bare actors: a small call, a large parcel, many workers, a new life.

    python benchmarks/ray_backend.py [--workers 1 16] [--rounds 8]

Contenders run in turns (see `rounds.py`); shown are medians, and the driver's CPU time, in all its threads, where that
is what counts on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
import torch

from figures import table, verdict
from swath.workers.base import Handle, Job
from swath.workers.packing import Parcel
from swath.workers.ray.backend import RayBackend
from swath.workers.tickets import Name

ARRAYS, BYTES = 9, 6_000_000
DEADLINE_S = 120.0


class Worker:
    """Gives what it has."""

    def __init__(self) -> None:
        self.arrays = [np.ones(BYTES, np.uint8) for _ in range(ARRAYS)]

    def echo(self, value: Any) -> Any:
        """A small answer."""
        return value

    def parcel(self) -> Parcel:
        """54 MB."""
        return Parcel({"frames": 1}, self.arrays)

    def arrays_of_numpy(self) -> list[Any]:
        """The same, as Ray takes it."""
        return self.arrays

    def tensors(self) -> list[Any]:
        """The same, as most users would send it."""
        return [torch.from_numpy(array) for array in self.arrays]

    def pid(self) -> int:
        """Of its process."""
        return os.getpid()


class Ours:
    """Workers of the backend."""

    def __init__(self, backend: RayBackend, count: int) -> None:
        self.backend = backend
        self.workers: list[Handle] = [backend.spawn(Job(Worker, Name(index, 0))) for index in range(count)]
        for worker in self.workers:
            backend.wait([worker.ready], DEADLINE_S)

    def ask(self, method: str, *args: Any) -> Any:
        """One call of the first worker."""
        ticket = self.backend.call(self.workers[0], method, *args)
        self.backend.wait([ticket])
        return ticket.value

    def keep_busy(self, calls: int) -> None:
        """Ask whoever has answered again."""
        asked = {self.backend.call(worker, "echo", 1): worker for worker in self.workers}
        left = calls
        while left > 0:
            for ticket in self.backend.wait(list(asked)):
                left -= 1
                worker = asked.pop(ticket)
                asked[self.backend.call(worker, "echo", ticket.value)] = worker
        while asked:
            for ticket in self.backend.wait(list(asked)):
                del asked[ticket]

    def end(self) -> None:
        """Kill them."""
        for worker in self.workers:
            self.backend.kill(worker)


class Bare:
    """Plain actors, waited for with `ray.wait`."""

    def __init__(self, count: int) -> None:
        kind = ray.remote(num_cpus=1)(Worker)
        self.actors = [kind.remote() for _ in range(count)]
        ray.get([actor.echo.remote(1) for actor in self.actors])

    def ask(self, method: str, *args: Any) -> Any:
        """One call of the first actor."""
        return ray.get(getattr(self.actors[0], method).remote(*args))

    def end(self) -> None:
        """Kill them."""
        for actor in self.actors:
            ray.kill(actor)

    def keep_busy(self, calls: int) -> None:
        """Ask whoever has answered again."""
        asked = {actor.echo.remote(1): actor for actor in self.actors}
        for _ in range(calls):
            reference = ray.wait(list(asked))[0][0]
            actor = asked.pop(reference)
            asked[actor.echo.remote(ray.get(reference))] = actor
        ray.get(list(asked))


def copied(arrays: list[Any]) -> None:
    """Into memory of one's own, as a batch does it."""
    for array in arrays:
        np.asarray(array).copy()


def compare(title: str, contenders: dict[str, Callable[[], None]], per: int, rounds: int) -> None:
    """Medians over the rounds, of `per` units of work."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            wall, cpu = time.perf_counter(), time.process_time()
            work()
            spent[name].append(((time.perf_counter() - wall) / per, (time.process_time() - cpu) / per))
    rows = {
        name: [statistics.median(column) * 1e6 for column in zip(*pairs, strict=True)] for name, pairs in spent.items()
    }
    table(title, {"µs": ",.0f", "of the driver's CPU": ",.0f"}, rows)


def times(count: int, work: Callable[[], Any]) -> Callable[[], None]:
    """The work, repeated."""

    def repeated() -> None:
        for _ in range(count):
            work()

    return repeated


def lives(backend: RayBackend, workers: int) -> None:
    """How long it takes to bring workers up, and to have the next life of one that was killed."""
    began = time.perf_counter()
    ours = Ours(backend, workers)
    verdict(f"{workers} workers up after", time.perf_counter() - began, ".2f s")
    for life in range(1, 4):
        pid, began = ours.ask("pid"), time.perf_counter()
        os.kill(pid, 9)
        backend.wait([ours.workers[0].ended], DEADLINE_S)
        noticed = time.perf_counter() - began
        ours.workers[0] = backend.spawn(Job(Worker, Name(0, life)))
        ours.ask("echo", 1)
        again = time.perf_counter() - began
        verdict(f"killed: life {life} answers after", again, ".2f s", note=f"noticed after {noticed * 1e3:.0f} ms")
    ours.end()


def small_call(ours: Ours, bare: Bare, rounds: int) -> None:
    """There and back."""
    small = {"bare actor": lambda: bare.ask("echo", 1), "worker": lambda: ours.ask("echo", 1)}
    compare("a small call", {name: times(300, work) for name, work in small.items()}, 300, rounds)


def large_parcel(ours: Ours, rounds: int) -> None:
    """From an actor to memory of one's own; an actor each, for those that have used the store before are quicker."""
    tensors, arrays = Bare(1), Bare(1)
    large = {
        "bare actor, tensors": lambda: copied(tensors.ask("tensors")),
        "bare actor, arrays": lambda: copied(arrays.ask("arrays_of_numpy")),
        "worker, parcel": lambda: copied(ours.ask("parcel").open()),
    }
    compare(f"{ARRAYS * BYTES / 1e6:.0f} MB, copied once here", large, 1, rounds)
    tensors.end()
    arrays.end()


def many(ours: Ours, bare: Bare, rounds: int) -> None:
    """All are kept busy."""
    contenders = {"bare actors, ray.wait": lambda: bare.keep_busy(1000), "workers": lambda: ours.keep_busy(1000)}
    title = f"a small call of each of {len(ours.workers)} workers that are asked again when they have answered"
    compare(title, contenders, 1000, rounds)


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    most = max(asked.workers)
    backend = RayBackend({"num_cpus": 3 * most + 3, "log_to_driver": False}, workers=100 * most)
    lives(backend, 2)
    for count in asked.workers:
        ours, bare = Ours(backend, count), Bare(count)
        if count == 1:
            small_call(ours, bare, asked.rounds)
            large_parcel(ours, 3 * asked.rounds)
        many(ours, bare, asked.rounds)
        ours.end()
        bare.end()
    backend.close()


if __name__ == "__main__":
    main()
