"""All that a collector is asked for, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swath.collect.making.assembly import WorkerRequest
from swath.options import Budget, Entries, Hooks, Survival, Trajectories, count
from swath.weights.due import Automatic


@dataclass(frozen=True)
class Order:
    """In which order batches are made.

    Attributes:
        sync: every batch has a share of every worker; else every batch is of one worker.
        prefetch: how far ahead workers are asked; `None` for 0 if synchronous, else 1.
        max_staleness: most versions that a fragment may be behind; asynchronous only.
        preemptive_threshold: the part of the shares with which a batch is complete; synchronous only.
        cat_results: `None` or `"stack"` for a new leading dimension, an int to concatenate along, which is
            synchronous only.
    """

    sync: bool
    prefetch: int | None = None
    max_staleness: int | None = None
    preemptive_threshold: float | None = None
    cat_results: str | int | None = None

    def __post_init__(self) -> None:
        if self.prefetch is not None:
            count("prefetch", self.prefetch, least=0)
        if self.max_staleness is not None:
            count("max_staleness", self.max_staleness, least=0)
            if self.sync:
                raise ValueError("max_staleness is for asynchronous collection; synchronous batches are never stale")
        for name, value in (("preemptive_threshold", self.preemptive_threshold), ("cat_results", self.cat_dim)):
            if value is not None and not self.sync:
                raise ValueError(f"{name}={value!r} is for synchronous collection; leave it out")
        if self.preemptive_threshold is not None and not 0 <= self.preemptive_threshold <= 1:
            raise ValueError(f"preemptive_threshold={self.preemptive_threshold!r} must be between 0 and 1")
        if not (self.cat_results in (None, "stack") or type(self.cat_results) is int):
            raise ValueError(f"cat_results={self.cat_results!r} must be None, 'stack' or an int")

    def enough(self, n_workers: int) -> int | None:
        """With so many shares the others end; `None` waits for all."""
        return None if self.preemptive_threshold is None else int(n_workers * self.preemptive_threshold)

    @property
    def ahead(self) -> int:
        """How far ahead workers are asked."""
        return self.prefetch if self.prefetch is not None else int(not self.sync)

    @property
    def cat_dim(self) -> int | None:
        """The dimension along which shares are concatenated; `None` stacks them."""
        return self.cat_results if isinstance(self.cat_results, int) else None


@dataclass(frozen=True)
class CollectorRequest:
    """All that a collection is made of.

    Attributes:
        workers: what each of them is made of.
        order: in which order batches are made.
        budget: how much to collect.
        entries: what a batch holds.
        trajectories: how batches are made of episodes.
        hooks: functions of the user; the two around fragments are called in the workers.
        survival: what happens when workers die.
        automatic: when weights are published without being told to.
        buffer: where batches are written, if anywhere.
        seed: root of all seeds; `None` seeds nothing.
        name: of the face.
        index: of this collection inside a larger one.
        backend: `"process"`, `"thread"`, `"ray"` or `"inline"`; `"direct"` is the thread of the user.
        backend_options: its options.
        init_fn: runs first in each worker.
    """

    workers: tuple[WorkerRequest, ...]
    order: Order
    budget: Budget
    entries: Entries
    trajectories: Trajectories
    hooks: Hooks
    survival: Survival
    automatic: Automatic = field(default_factory=Automatic)
    buffer: Any = None
    seed: int | None = None
    name: str = "collector"
    index: int = 0
    backend: str = "direct"
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    init_fn: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        least = self.survival.min_workers
        if least is not None and least > len(self.workers):
            raise ValueError(f"min_workers={least} must be between 1 and the number of workers, {len(self.workers)}")
