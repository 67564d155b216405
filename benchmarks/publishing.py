"""What it costs the learner to publish 10 M parameters to two workers in the midst of their fragments.

    python benchmarks/publishing.py [--quick]      # needs swath[ray]

For workers in processes and on Ray. Publishing is held against three plain copies of the parameters and one write to
where workers can read them (`ray.put`; for processes a fourth copy), in turns. Workers stand in the midst of a step
until the end, so a publication that waits for them never ends. Then what 100 publications leave: bytes in Ray's store,
or in memory shared with processes, in multiples of one version. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
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
from torch import nn

import cluster
from figures import ended, table, verdict
from policies import quiet_threads
from swath import MultiAsyncCollector, RayCollector

SIDE, LAYERS, COPIES = 1000, 10, 3
SIZE = 4 * SIDE * SIDE * LAYERS
PUBLICATIONS, MOST_VERSIONS = 100, 2
FREED_S = 3.0


class Waiting(gym.Env):
    """Its second step takes until a file is there."""

    observation_space = gym.spaces.Box(-1, 1, (4,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, file: str) -> None:
        self._file, self._steps = Path(file), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        """Begin."""
        super().reset(seed=seed)
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002  whatever it is
        """Wait, but not the first time."""
        self._steps += 1
        while self._steps > 1 and not self._file.exists():
            time.sleep(0.05)
        return np.zeros(4, np.float32), 0.0, False, False, {}


class Large(nn.Module):
    """Ten million parameters of which none has an effect."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ParameterList(torch.randn(SIDE, SIDE) for _ in range(LAYERS))

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Action 0."""
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)


def spent(work: Callable[[], Any]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3


def blocked(publish: Callable[[], None], policy: Large, write: Callable[[Any], Any], rounds: int) -> tuple[float, ...]:
    """Milliseconds of publishing, a plain copy and a write, and the first as a part of what it may take."""
    flat = np.ones(SIZE // 4, np.float32)
    works = (publish, lambda: [layer.detach().clone() for layer in policy.layers], lambda: write(flat))
    for work in works:
        work()
    table = [[spent(work) for work in works] for _ in range(rounds)]
    part = statistics.median(own / (COPIES * copy + put) for own, copy, put in table)
    return *(statistics.median(column) for column in zip(*table, strict=True)), part


def shared() -> int:
    """Bytes of nameless memory that this process has; a block may be open twice."""
    blocks = {}
    for entry in Path("/proc/self/fd").iterdir():
        if entry.is_symlink() and "memfd:swath" in str(entry.readlink()):
            blocks[entry.stat().st_ino] = entry.stat().st_size
    return sum(blocks.values())


@contextmanager
def busy(place: str, policy: Large) -> Iterator[Any]:
    """A collector whose two workers are in the midst of a fragment."""
    with tempfile.TemporaryDirectory() as folder:
        end = Path(folder) / "end"
        sources = [partial(Waiting, str(end))] * 2
        asked = {"policy": policy, "frames_per_batch": 1}
        make = partial(RayCollector, sync=False) if place == "ray" else MultiAsyncCollector
        with make(sources, **asked) as collector:
            for _ in sources:
                collector.next()
            try:
                yield collector
            finally:
                end.touch()


def measure(place: str, rounds: int) -> bool:
    """Print what there is to say of one place; whether its targets are reached."""
    policy = Large()
    with busy(place, policy) as collector:
        publish, write = collector.update_policy_weights_, ray.put if place == "ray" else np.copy
        own, copy, put, part = blocked(publish, policy, write, rounds)
        for _ in range(PUBLICATIONS):
            publish()
        left = (min(cluster.stored_for(FREED_S)) if place == "ray" else shared()) / SIZE
    table(f"10 M parameters, {place}", {"ms": ".1f"}, {"publishing": [own], "a plain copy": [copy], "a write": [put]})
    quick = verdict(f"{place}: publishing, in {COPIES} copies and a write", part, ".2f", most=1)
    few = verdict(f"{place}: versions left of {PUBLICATIONS} publications", left, ".2f", most=MOST_VERSIONS + 0.1)
    return quick and few


def main() -> int:
    """Measure both places."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer turns: a look, not a measurement")
    rounds = 5 if parser.parse_args().quick else 31
    quiet_threads()
    cluster.begin()
    passed = [measure(place, rounds) for place in ("process", "ray")]
    ray.shutdown()
    return ended(passed)


if __name__ == "__main__":
    sys.exit(main())
