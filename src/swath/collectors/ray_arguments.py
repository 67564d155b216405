"""The arguments of `RayCollector` that others lack: keywords for inner collectors, numbers of workers, resources."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from swath.collectors.collector import Collector
from swath.collectors.multi import MultiAsyncCollector, MultiSyncCollector
from swath.collectors.options import CollectorOptions, LocalOptions, RayOptions, SharedOptions, WorkerOptions, defaults
from swath.collectors.remote_collector import RemoteCollector
from swath.collectors.request import SETTINGS, settings_of, spread
from swath.collectors.worker_request import WorkerRequest
from swath.options import Survival, count

WORDS = {"single": Collector, "sync": MultiSyncCollector, "async": MultiAsyncCollector}
KINDS = (Collector, MultiSyncCollector, MultiAsyncCollector)


@dataclass(frozen=True)
class Nesting:
    """What each actor is made of.

    Attributes:
        kind: the class that is built in it; `None` for a plain worker.
        number: of sub-processes in it, where the class has some.
        survival: of the whole; sub-processes are replaced as actors are.
    """

    kind: type[Any] | None = None
    number: int = 1
    survival: Survival = field(default_factory=Survival)

    @property
    def is_multi(self) -> bool:
        """Whether each actor has sub-processes."""
        return self.kind is not None and issubclass(self.kind, MultiSyncCollector | MultiAsyncCollector)

    def require_plain(self, what: str) -> None:
        """Raise `TypeError` for what only plain workers can do."""
        if self.kind is not None:
            raise TypeError(
                f"{what} does not pass through to collector_class={self.kind.__name__}; leave collector_class out"
            )

    def inside(
        self,
        workers: Sequence[WorkerRequest],
        settings: Sequence[WorkerOptions],
        further: Sequence[Mapping[str, Any]],
        *,
        whole: bool,
    ) -> tuple[WorkerRequest, ...]:
        """What each worker is made of, if collectors of this class are built in them.

        Args:
            workers: what they are made of.
            settings: by worker.
            further: keywords of the class itself, by worker.
            whole: whether batches are made of whole episodes.

        Raises:
            TypeError: batches of whole episodes, of other classes than `Collector`.
        """
        if self.kind is None:
            return tuple(workers)
        if whole:
            self.require_plain("trajs_per_batch")
        return tuple(
            replace(core, make=partial(RemoteCollector, kind=self.kind, keywords={**self._of_settings(one), **more}))
            for core, one, more in zip(workers, settings, further, strict=True)
        )

    def _of_settings(self, settings: WorkerOptions) -> dict[str, Any]:
        """What is not at its default; sub-processes that are late are replaced before the actor is.

        Batches are moved to where they live by whoever joins them.
        """
        given = {name: getattr(settings, name) for name in SETTINGS if name != "storing_device"}
        if given["on_env_error"] == "restart" and not self.is_multi:
            given["on_env_error"] = "raise"  # the actor is replaced
        given = {name: value for name, value in given.items() if value is not OF_WORKERS[name]}
        if self.is_multi:
            patience = self.survival.fragment_timeout_s
            given |= {
                "num_workers": self.number,
                "restarts": self.survival.restarts,
                "fragment_timeout_s": None if patience is None else patience / 2,
                "placement_timeout_s": self.survival.placement_timeout_s,
            }
        return given


def nesting_of(
    collector_class: Any, number: Any, envs_per_worker: int | None, survival: Survival
) -> tuple[Nesting, int | None]:
    """What each actor is made of, and how many envs are stepped together there.

    Args:
        collector_class: as given.
        number: `num_workers_per_collector`.
        envs_per_worker: as given.
        survival: of the whole.

    Raises:
        TypeError: no class that can be built in an actor.
        ValueError: two numbers of envs that differ.
    """
    kind = WORDS.get(collector_class, collector_class) if isinstance(collector_class, str) else collector_class
    if not (isinstance(kind, type) and issubclass(kind, KINDS)):
        raise TypeError(
            f"collector_class={collector_class!r} must be Collector ('single'), MultiSyncCollector ('sync'), "
            "MultiAsyncCollector ('async') of swath, or a class derived from one of them"
        )
    n = count("num_workers_per_collector", number)
    if issubclass(kind, MultiSyncCollector | MultiAsyncCollector):
        return Nesting(kind, n, survival), envs_per_worker
    if n > 1 and envs_per_worker not in (None, n):
        raise ValueError(
            f"num_workers_per_collector={n} and envs_per_worker={envs_per_worker} are both the number of envs "
            "that an actor steps together; give one of them"
        )
    return Nesting(None if kind is Collector else kind, 1, survival), n if n > 1 else envs_per_worker


OF_WORKERS = defaults(WorkerOptions)


COLLECTION = (
    "init_random_frames",
    "no_cuda_sync",
    "postproc",
    "pre_collect_hook",
    "post_collect_hook",
    "replay_buffer",
    "seed",
    "split_trajs",
    "trajs_per_batch",
    "trajs_per_write",
    "traj_format",
    "return_same_td",
    "reset_when_done",
    "use_buffers",
    "extend_buffer",
)
"""Keywords of `Collector` of which a collection has one value."""

ELSEWHERE = ("interruptor", "backend_options")
DECIDED = {one.name for one in fields(CollectorOptions)} - {*SETTINGS, *COLLECTION, "backend"}
MANY = ("num_workers", "collector_class", "cat_results", "update_at_each_batch")
"""Keywords of the multi classes that `RayCollector` sets itself, or that have no meaning in an actor."""


def number_of_workers(source: Any, num_collectors: int | None, *lists: Any) -> int | None:
    """How many workers there are; `None` where the list of sources says so.

    Args:
        source: an env source or a list of them.
        num_collectors: the number given.
        lists: further arguments that may be lists of one entry per worker.

    Raises:
        ValueError: lists of different lengths.
    """
    if num_collectors is not None or isinstance(source, list | tuple):
        return num_collectors
    lengths = {len(one) for one in lists if isinstance(one, list | tuple)}
    if len(lengths) > 1:
        raise ValueError(f"collector_kwargs and remote_configs are lists of lengths {sorted(lengths)}; give as many")
    return lengths.pop() if lengths else 1


def merged(
    own: Mapping[str, Any], at_default: Collection[str], collector_kwargs: Any, n_workers: int, nesting: Nesting
) -> list[dict[str, Any]]:
    """By worker, what a collector and its `collector_kwargs` say together: settings, and what a collection has once.

    Args:
        own: arguments of the face itself.
        at_default: those that nobody gave.
        collector_kwargs: keywords of `Collector`, a dict or a list of one per worker.
        n_workers: W.
        nesting: what is built in each actor; keywords of such a class are taken, too.

    Raises:
        TypeError: no keyword of `Collector`.
        ValueError: what the face decides; an argument given twice with different values; workers that differ in what
            a collection has only once.
    """
    rows = settings_of(own, n_workers)
    for worker, keywords in enumerate(spread("collector_kwargs", collector_kwargs or {}, n_workers)):
        if not isinstance(keywords, Mapping):
            raise TypeError(f"collector_kwargs has {type(keywords).__name__}; give a dict of keywords of Collector")
        row = rows[worker]
        for name, value in keywords.items():
            _require_known(name, nesting)
            if name in own and name not in at_default and not same(row[name], value):
                raise ValueError(f"{name}={row[name]!r} here, but {value!r} in collector_kwargs; give one of them")
            row[name] = value
    for worker, row in enumerate(rows):
        for name in COLLECTION:
            if not same(row.get(name), rows[0].get(name)):
                raise ValueError(f"collector_kwargs: {name} differs between workers 0 and {worker}; give one value")
    return rows


def of_collection(options: RayOptions, row: Mapping[str, Any]) -> LocalOptions:
    """The options of the collection, after `collector_kwargs`."""
    own = {one.name: getattr(options, one.name) for one in fields(SharedOptions)}
    return LocalOptions(**{**own, **{name: value for name, value in row.items() if name in {*SETTINGS, *COLLECTION}}})


def with_resources(workers: Sequence[WorkerRequest], remote_configs: Any) -> tuple[WorkerRequest, ...]:
    """These workers with what each asks of the cluster; torch has as many threads as there are whole CPUs, at least 1.

    Raises:
        TypeError: not a dict.
        ValueError: a list of another length.
    """
    rows = [{} if row is None else row for row in spread("remote_configs", remote_configs, len(workers))]
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(f"remote_configs has {type(row).__name__}; give a dict of options of ray.remote()")
    return tuple(
        replace(core, resources=row, threads=max(1, int(row.get("num_cpus") or 1)))
        for core, row in zip(workers, rows, strict=True)
    )


def whole_share(frames_per_batch: int, n_workers: int) -> int:
    """Frames of one worker in a synchronous batch.

    Raises:
        ValueError: not a whole number.
    """
    if frames_per_batch % n_workers:
        raise ValueError(
            f"frames_per_batch={frames_per_batch} cannot be shared by {n_workers} workers; "
            f"use a multiple of {n_workers}"
        )
    return frames_per_batch // n_workers


def _require_known(name: str, nesting: Nesting) -> None:
    if name in ELSEWHERE or (name == "backend" and not nesting.is_multi):
        raise ValueError(f"collector_kwargs has {name!r}, which workers on Ray cannot follow; leave it out")
    if name in DECIDED or (nesting.is_multi and name in MANY):
        raise ValueError(f"collector_kwargs has {name!r}, which RayCollector decides; pass it there, or leave it out")
    if nesting.kind is None and name not in (*SETTINGS, *COLLECTION):
        raise TypeError(f"collector_kwargs has {name!r}, which is no keyword of Collector")


def same(one: Any, other: Any) -> bool:
    """Whether two arguments say the same."""
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, bool | int | float | str | Mapping | list) and one == other
