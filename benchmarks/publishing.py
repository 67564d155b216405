"""Measure the learner's cost of publishing 10 M parameters to two workers in the midst of their fragments.

    python benchmarks/publishing.py [--quick]      # needs swath[ray]

For workers in processes and on Ray, compared with one plain copy of the parameters (into new memory) and one write to
where workers can read them (`ray.put`; for processes a second copy). Workers stand in the midst of a step until the
end, so a publication that waits for them never ends. Also publications a second apart. Then what 100 publications
leave in Ray's store, or in memory shared with processes, in multiples of one version. Ends with 1 if a target is
missed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from ray._private import internal_api  # the size of the store; Ray's public ways need its dashboard
from torch import nn

from policies import quiet_threads
from rounds import begin_ray, ended, parser, table, verdict
from swath import MultiAsyncCollector, RayCollector

SIDE, LAYERS = 1000, 10
SIZE = 4 * SIDE * SIDE * LAYERS
PUBLICATIONS, MOST_VERSIONS, MOST_COST = 100, 2.1, 1.2
APART_S = 1.0
FREED_S = 3.0
"""Ray frees unused memory once a second."""


class Waiting(gym.Env):
    """Waits in its second step until a file exists."""

    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, file: str) -> None:
        self._file, self._steps = Path(file), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        """Begin an episode."""
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002  unused
        """Wait, except in the first step."""
        self._steps += 1
        while self._steps > 1 and not self._file.exists():
            time.sleep(0.05)
        return np.zeros(4, np.float32), 0.0, False, False, {}


class Large(nn.Module):
    """Ten million parameters without an effect."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.randn(SIDE, SIDE) for _ in range(LAYERS))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Return action 0."""
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)


def spent(work: Callable[[], Any]) -> float:
    """Return the milliseconds that the work takes."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def costs(publish: Callable[[], None], policy: Large, write: Callable[[Any], Any], rounds: int) -> list[list[float]]:
    """Return the milliseconds of publishing, a plain copy and a write per round; the first round is left out."""
    flat = np.random.default_rng(0).random(SIZE // 4, np.float32)
    works = (publish, lambda: [layer.detach().clone() for layer in policy.layers], lambda: write(flat))
    return [[spent(work) for work in works] for _ in range(rounds + 1)][1:]


def apart(publish: Callable[[], None], rounds: int) -> float:
    """Return the milliseconds of a publication a second after the last one: the median."""
    found = []
    for _ in range(rounds):
        time.sleep(APART_S)
        found.append(spent(publish))
    return statistics.median(found)


def stored() -> int:
    """Return the bytes in Ray's object store, after it had time to free unused memory."""
    smallest, until = SIZE * PUBLICATIONS, time.monotonic() + FREED_S
    while time.monotonic() < until:
        state = internal_api.get_state_from_address(ray.get_runtime_context().gcs_address)
        smallest = min(smallest, internal_api.get_memory_info_reply(state).store_stats.object_store_bytes_used)
    return int(smallest)


def shared() -> int:
    """Return the bytes of nameless memory of this process; a block may be open twice."""
    blocks = {}
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and "memfd:swath" in str(entry.readlink()):
            blocks[entry.stat().st_ino] = entry.stat().st_size
    return sum(blocks.values())


@contextmanager
def busy(place: str, policy: Large) -> Iterator[Any]:
    """Yield a collector whose two workers are in the midst of a fragment."""
    with tempfile.TemporaryDirectory() as folder:
        end = Path(folder) / "end"
        sources = [partial(Waiting, str(end))] * 2
        make = partial(RayCollector, sync=False) if place == "ray" else MultiAsyncCollector
        with make(sources, policy=policy, frames_per_batch=1) as collector:
            for _ in sources:
                collector.next()
            try:
                yield collector
            finally:
                end.touch()


def measure(place: str, rounds: int) -> bool:
    """Print the figures of one backend, and return whether its targets are reached."""
    policy = Large()
    with busy(place, policy) as collector:
        publish = collector.update_policy_weights_
        found = costs(publish, policy, ray.put if place == "ray" else np.copy, rounds)
        rested = apart(publish, min(rounds, 10))
        for _ in range(PUBLICATIONS):
            publish()
        n_versions = (stored() if place == "ray" else shared()) / SIZE
    names = ("publishing", "a plain copy", "a write")
    rows = {name: [statistics.median(column)] for name, column in zip(names, zip(*found, strict=True), strict=True)}
    table(f"10 M parameters, {place}", {"ms": ".1f"}, rows | {"publishing, a second apart": [rested]})
    cost = statistics.median(published / (copy + write) for published, copy, write in found)
    quick = verdict(f"{place}: publishing × a copy and a write", cost, ".2f", maximum=MOST_COST)
    few = verdict(f"{place}: versions left of {PUBLICATIONS} publications", n_versions, ".2f", maximum=MOST_VERSIONS)
    return quick and few


def main() -> int:
    """Measure both backends."""
    rounds = 5 if parser(__doc__).parse_args().quick else 31
    quiet_threads()
    begin_ray()
    return ended([measure(place, rounds) for place in ("process", "ray")])


if __name__ == "__main__":
    sys.exit(main())
