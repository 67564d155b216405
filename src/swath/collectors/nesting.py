"""`collector_class` of `RayCollector`: what is built in each actor, and with which keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swath.collect.remote import Maker, RemoteWorker
from swath.collectors.collector import Collector
from swath.collectors.multi import MultiAsyncCollector, MultiSyncCollector
from swath.collectors.remote_collector import MakeCollector
from swath.collectors.worker_settings import SETTINGS, WorkerSettings
from swath.options import Survival, Trajectories, count

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

    def makers(
        self, settings: Sequence[WorkerSettings], further: Sequence[Mapping[str, Any]], whole: Trajectories
    ) -> list[Maker]:
        """What makes each worker.

        Args:
            settings: by worker.
            further: keywords of the class itself, by worker.
            whole: how batches are made of episodes.

        Raises:
            TypeError: batches of whole episodes, of other classes than `Collector`.
        """
        if whole.per_batch is not None:
            self.require_plain("trajs_per_batch")
        if self.kind is None:
            return [RemoteWorker] * len(settings)
        return [
            MakeCollector(self.kind, {**self._of_settings(one), **self._of_many(), **more})
            for one, more in zip(settings, further, strict=True)
        ]

    def _of_settings(self, settings: WorkerSettings) -> dict[str, Any]:
        """What is not at its default; batches are moved to where they live by whoever joins them."""
        given = {name: getattr(settings, name) for name in SETTINGS if name != "storing_device"}
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


_DEFAULTS = {name: getattr(WorkerSettings(), name) for name in SETTINGS}
