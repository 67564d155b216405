"""`collector_class` of `RayCollector`: what is built in each actor, and with which keywords."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swath.collect.remote import Maker, RemoteWorker
from swath.collectors.assembly import collected
from swath.collectors.base import BaseCollector
from swath.collectors.collector import Collector
from swath.collectors.multi import MultiAsyncCollector, MultiSyncCollector
from swath.collectors.remote_collector import MakeCollector
from swath.collectors.worker_settings import SETTINGS, WorkerSettings
from swath.options import Survival, Trajectories, count

WORDS = {"single": Collector, "sync": MultiSyncCollector, "async": MultiAsyncCollector}
KINDS = (Collector, MultiSyncCollector, MultiAsyncCollector)

NOT_INSIDE = {
    "num_workers": "num_workers_per_collector says how many there are",
    "collector_class": "the multi classes run Collector",
    "cat_results": "the inner batch [n, *B, T] is the actor's share",
    "update_at_each_batch": "weights come from RayCollector; use its update_after_each_batch",
}
"""Keywords of the multi classes that have no meaning in an actor, and why."""


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

    @property
    def known(self) -> frozenset[str]:
        """Keywords that `collector_kwargs` may have for this class beyond those of `Collector`."""
        if self.kind is None:
            return frozenset()
        own = _keywords(self.kind) - _keywords(Collector) - {*NOT_INSIDE}
        return own | {"backend"} if self.is_multi else own

    def require(self, name: str) -> None:
        """Check a keyword that is none of `Collector`.

        Raises:
            ValueError: the class has it, but it has no meaning in an actor.
            TypeError: the class does not have it.
        """
        if self.is_multi and name in NOT_INSIDE:
            raise ValueError(f"collector_kwargs has {name!r}: {NOT_INSIDE[name]}; leave it out")
        if name not in self.known:
            kind = Collector if self.kind is None else self.kind
            raise TypeError(f"collector_kwargs has {name!r}, which is no keyword of {kind.__name__}")

    def require_number(self, n: Any) -> None:
        """Check how many sub-processes further actors are to have.

        Raises:
            ValueError: others than those that are there.
        """
        if n not in (None, self.number):
            raise ValueError(
                f"num_envs={n}: actors here have {self.number} workers each, by which trajectory ids are numbered; "
                "give as many, or leave it out"
            )

    def makers(
        self, settings: Sequence[WorkerSettings], further: Sequence[Mapping[str, Any]], whole: Trajectories
    ) -> list[Maker]:
        """What makes each worker.

        Args:
            settings: by worker.
            further: keywords of the class itself, by worker.
            whole: how batches are made of episodes.
        """
        kind = self.kind
        if kind is None:
            return [RemoteWorker] * len(settings)
        return [
            MakeCollector(kind, {**self._of_settings(one, whole), **self._of_many(), **more})
            for one, more in zip(settings, further, strict=True)
        ]

    def _of_settings(self, settings: WorkerSettings, whole: Trajectories) -> dict[str, Any]:
        """What is not at its default; batches are moved to where they live by whoever joins them."""
        given = {name: getattr(settings, name) for name in SETTINGS if name != "storing_device"}
        given["track_traj_ids"] = collected(settings.entries, whole).track_ids
        if given["on_env_error"] == "restart" and not self.is_multi:
            given["on_env_error"] = "raise"  # the actor is replaced
        return {name: value for name, value in given.items() if value is not _DEFAULTS[name]}

    def _of_many(self) -> dict[str, Any]:
        """Sub-processes that are late are replaced before the actor is."""
        if not self.is_multi:
            return {}
        whole = self.survival
        patience = whole.fragment_timeout_s
        return {
            "num_workers": self.number,
            "restarts": whole.restarts,
            "fragment_timeout_s": None if patience is None else patience / 2,
            "placement_timeout_s": whole.placement_timeout_s,
        }


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
    kind = _class_of(collector_class)
    n = count("num_workers_per_collector", number)
    if issubclass(kind, MultiSyncCollector | MultiAsyncCollector):
        return Nesting(kind, n, survival), envs_per_worker
    if n > 1 and envs_per_worker not in (None, n):
        raise ValueError(
            f"num_workers_per_collector={n} and envs_per_worker={envs_per_worker} are both the number of envs "
            "that an actor steps together; give one of them"
        )
    return Nesting(None if kind is Collector else kind, 1, survival), n if n > 1 else envs_per_worker


def _class_of(given: Any) -> type[Any]:
    found = WORDS.get(given, given) if isinstance(given, str) else given
    if isinstance(found, type) and issubclass(found, KINDS):
        return found
    name = given.__name__ if isinstance(given, type) else repr(given)
    ours = {"Collector": "Collector", "SyncDataCollector": "Collector"}.get(name, name)
    hint = (
        f"; for {name} of {given.__module__} use swath.{ours}" if ours in _names() and isinstance(given, type) else ""
    )
    raise TypeError(
        f"collector_class={name} must be Collector ('single'), MultiSyncCollector ('sync'), MultiAsyncCollector "
        f"('async') of swath, or a class derived from one of them{hint}"
    )


def _names() -> list[str]:
    return [kind.__name__ for kind in KINDS]


def _keywords(kind: type[Any]) -> frozenset[str]:
    """Names that the constructors of a class take, its own and those of what it derives from."""
    own = [base.__init__ for base in kind.__mro__ if issubclass(base, BaseCollector) and "__init__" in vars(base)]
    taken = (one for init in own for one in inspect.signature(init).parameters.values())
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(one.name for one in taken if one.kind in named) - {"self"}


_DEFAULTS = {name: getattr(WorkerSettings(), name) for name in SETTINGS}
