"""Collectors with many workers, and what is known of their places, for tests."""

from __future__ import annotations

from pathlib import Path

import torch
from collector_toys import InThread  # noqa: F401  handed on
from gymnasium import spaces
from torch import nn

import ray_cluster
from swath import MultiAsyncCollector, MultiSyncCollector, Restarts
from swath.testing import ENDLESS, Counting, CountingEnv, CountingEnvs, Script
from toys import Gate

PLACES = ["inline", "thread", "process"]
EVERYWHERE = [*PLACES, "ray"]
KINDS = {"sync": MultiSyncCollector, "async": MultiAsyncCollector}
LONG = Counting(script=Script(lengths=(ENDLESS,)))
WIDE = Counting(action_space=spaces.Discrete(1000), script=Script(lengths=(ENDLESS,)))
"""Every level is an action."""

AT_ONCE = Restarts(5, backoff_s=0.0)
"""Workers are replaced without delay."""

IDS, VERSION, MASK = ("collector", "traj_ids"), ("collector", "policy_version"), ("collector", "mask")


OF_MANY = {"workers", "workers_alive", "worker_frames"}
"""Keys of stats that are there with many workers."""


def numbered(n_workers=2, num_envs=2, counting=LONG):
    """One source of counting envs per worker, numbered through."""
    return [CountingEnvs(counting, first=worker * num_envs) for worker in range(n_workers)]


def fleet(kind="sync", sources=None, policy=None, **options):
    """A collector of two workers with two envs each, 5 steps of which are a share, unless asked otherwise."""
    options.setdefault("frames_per_batch", 20 if kind == "sync" else 10)
    options.setdefault("envs_per_worker", 2)
    options.setdefault("restarts", AT_ONCE)
    if options.get("backend") == "ray":
        del options["backend"]
        return ray_cluster.collector(sources or numbered(), policy, sync=kind == "sync", **options)
    return KINDS[kind](numbered() if sources is None else sources, policy, **options)


def drawn(collector, n):
    return [collector.next() for _ in range(n)]


def drawn_until(collector, is_enough):
    """Batches up to the first after which it is enough; `is_enough` is asked with each."""
    batches = [collector.next()]
    while not is_enough(batches[-1]):
        batches.append(collector.next())
    return batches


def made_by(batch):
    """The workers whose frames are in a batch, in order of rows."""
    ids = batch[IDS].reshape(-1, batch.shape[-1])
    return [int(row.max()) >> 47 for row in ids]


class Level(nn.Module):
    """Answers with its only weight, in a Box action, so that actions say which weights acted."""

    def __init__(self, level=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(float(level)))

    def forward(self, observation):
        return torch.ones(observation.shape[:-1], dtype=torch.int64) * self.weight.detach().long()


def level(value):
    return {"weight": torch.tensor(float(value))}


class Held(CountingEnv):
    """A counting env whose step number `at` goes through a gate, so that a test can act meanwhile."""

    def __init__(self, gate: Gate, at=3, number=0, counting=LONG):
        super().__init__(number, counting)
        self._gate, self._at, self._made = gate, at, 0

    def step(self, action):
        self._made += 1
        if self._made == self._at:
            self._gate.go_through()
        return super().step(action)


class Notebook:
    """What workers write down, one line each, from whatever process."""

    def __init__(self, path: Path):
        self.path = path

    def __call__(self, *words):
        with self.path.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    @property
    def lines(self):
        return self.path.read_text().splitlines() if self.path.exists() else []
