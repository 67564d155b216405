"""From the options of a face to all that a collection is made of, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from swath.collectors.fragments import Automatic
from swath.collectors.options import LocalOptions, MultiOptions, WorkerOptions
from swath.collectors.worker_request import WorkerRequest
from swath.options import count
from swath.rollout.hosts.sources import Source
from swath.weights.snapshot import POLICY

SETTINGS = tuple(one.name for one in fields(WorkerOptions))
BY_WORKER = ("policy_factory", "create_env_kwargs", "device", "storing_device", "env_device", "policy_device")
"""Settings of which a list has one entry per worker."""


@dataclass(frozen=True)
class CollectorRequest:
    """All that a collection is made of.

    Attributes:
        options: of the face; those that it does not take are at their defaults.
        workers: what each of them is made of.
        automatic: when weights are published without being told to.
        name: of the face.
        backend: `"process"`, `"thread"`, `"ray"` or `"inline"`; `"direct"` is the thread of the user.
        backend_options: its options.
    """

    options: MultiOptions
    workers: tuple[WorkerRequest, ...]
    automatic: Automatic = field(default_factory=Automatic)
    name: str = "Collector"
    backend: str = "direct"
    backend_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        options, least = self.options, self.options.survival.min_workers
        for name in ("prefetch", "max_staleness"):
            if getattr(options, name) is not None:
                count(name, getattr(options, name), least=0)
        if self.sync and options.max_staleness is not None:
            raise ValueError("max_staleness is for asynchronous collection; synchronous batches are never stale")
        for name, value in (("preemptive_threshold", options.preemptive_threshold), ("cat_results", self.cat_dim)):
            if value is not None and not self.sync:
                raise ValueError(f"{name}={value!r} is for synchronous collection; leave it out")
        if options.preemptive_threshold is not None and not 0 <= options.preemptive_threshold <= 1:
            raise ValueError(f"preemptive_threshold={options.preemptive_threshold!r} must be between 0 and 1")
        if not (options.cat_results in (None, "stack") or type(options.cat_results) is int):
            raise ValueError(f"cat_results={options.cat_results!r} must be None, 'stack' or an int")
        if least is not None and least > len(self.workers):
            raise ValueError(f"min_workers={least} must be between 1 and the number of workers, {len(self.workers)}")

    @property
    def sync(self) -> bool:
        """Whether every batch has a share of every worker; else every batch is of one worker."""
        return self.options.sync is not False

    @property
    def enough(self) -> int | None:
        """With so many shares of a batch the others end; `None` waits for all."""
        part = self.options.preemptive_threshold
        return None if part is None else int(len(self.workers) * part)

    @property
    def ahead(self) -> int:
        """How far ahead workers are asked."""
        return int(not self.sync) if self.options.prefetch is None else self.options.prefetch

    @property
    def cat_dim(self) -> int | None:
        """The dimension along which shares are concatenated; `None` stacks them."""
        return self.options.cat_results if isinstance(self.options.cat_results, int) else None


def sources_of(create_env_fn: Any, n_workers: int | None, name: str) -> list[Any]:
    """One env source per worker.

    Args:
        create_env_fn: a source, or a list of one per worker.
        n_workers: how many workers; `None` for the length of the list.
        name: of that number, for messages.

    Raises:
        ValueError: no list and no number, an empty list, or a number that is not the length of the list.
    """
    if n_workers is not None:
        count(name, n_workers)
    if isinstance(create_env_fn, list | tuple):
        if not create_env_fn:
            raise ValueError("create_env_fn is an empty list; give one env source per worker")
        if n_workers not in (None, len(create_env_fn)):
            raise ValueError(
                f"{name}={n_workers} does not match the list of {len(create_env_fn)} env sources; leave it out"
            )
        return list(create_env_fn)
    if n_workers is None:
        raise ValueError(f"create_env_fn is one env source: say with {name}= how many workers get it, or give a list")
    return [create_env_fn] * n_workers


def spread(name: str, value: Any, n_workers: int) -> list[Any]:
    """One value per worker: of a list its entries, of anything else the same for all.

    Raises:
        ValueError: a list of another length.
    """
    if not isinstance(value, list | tuple):
        return [value] * n_workers
    if len(value) != n_workers:
        raise ValueError(
            f"{name} has {len(value)} entries for {n_workers} workers; give one per worker, or one for all"
        )
    return list(value)


def settings_of(options: Mapping[str, Any], n_workers: int) -> list[dict[str, Any]]:
    """By worker, the options; lists have one entry per worker.

    Raises:
        ValueError: a list of another length.
    """
    rows = [dict(options) for _ in range(n_workers)]
    for name in BY_WORKER:
        for row, value in zip(rows, spread(name, options[name], n_workers), strict=True):
            row[name] = value
    return rows


def requests_of(
    options: LocalOptions,
    envs: Sequence[Any],
    policy: Any,
    rows: Sequence[Mapping[str, Any]],
    shares: Sequence[int],
    **of_all: Any,
) -> tuple[WorkerRequest, ...]:
    """What each worker is made of.

    Args:
        options: of the collection.
        envs: the source of each.
        policy: of all of them; left out where a factory builds it and this is only the source of weights.
        rows: what each is set to, among other options.
        shares: frames asked of each at a time.
        **of_all: further fields of all of them.
    """
    schemes, made = options.weight_sync_schemes, []
    for env, row, share in zip(envs, rows, shares, strict=True):
        settings = {name: row[name] for name in SETTINGS if name in row}
        if options.trajectories.per_batch is not None:  # episodes are put together by their ids
            settings["track_traj_ids"] = True
        one = WorkerOptions(**settings)
        only_source = one.policy_factory is not None and isinstance(schemes, Mapping) and POLICY in schemes
        source = Source(env, one.env_kwargs, one.envs_per_worker)
        made.append(WorkerRequest(source, None if only_source else policy, one, share, **of_all))
    return tuple(made)
