"""Where a collector's weights go out: the one way for its update methods, its updater, schemes and receivers.

weights ─▶ mapped by the scheme ─▶ checked, copied ─▶ put, as one version
                                         └─ within one_version(): kept until its end
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from swath.weight_update.outlet import Newest
from swath.weight_update.scheme import WeightSyncScheme
from swath.weights.names import POLICY, by_worker

Items: TypeAlias = dict[str, Any]
"""By model, weights that were checked and copied; `None` for a model without weights."""

NO_SOURCE = "no weights of {model_id!r} to publish: pass weights, or give the collector a policy"


@dataclass
class Publication:
    """What becomes one version.

    Attributes:
        everyone: for all workers, also those to come.
        each: by worker, for some of them.
        also: changes of tensors of this process, which may be those of the policy that acts.
        begun: whether there is anything to publish, if only a version.
    """

    everyone: Items = field(default_factory=dict)
    each: dict[int, Items] = field(default_factory=dict)
    also: list[Callable[[], None]] = field(default_factory=list)
    begun: bool = False

    def add(self, items: Items, workers: Sequence[int] | None) -> None:
        """Publish these, too, instead of what was to be published of the same models for the same workers."""
        self.begun = True
        if workers is None:
            self.everyone.update(items)
            for own in self.each.values():
                for model_id in items:
                    own.pop(model_id, None)
        for worker in workers or ():
            self.each.setdefault(worker, {}).update(items)


class WeightOutlet(ABC):
    """Publishes the weights of one collector. Any thread may use it; versions are in the order of publications.

    Args:
        policy: the user's own policy, whose weights are fetched where none are given; `None` with a factory alone.

    Attributes:
        updater: the collector's weight updater, if it has one.
        schemes: by model.
        key: names the collector for those who read here; empty where nobody can.
    """

    key: str = ""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.updater: Any = None
        self.schemes: dict[str, WeightSyncScheme] = {}
        self._mine = threading.local()

    def close(self) -> None:  # noqa: B027  where nobody can read there is nothing to do
        """Nobody reads here any more."""

    def newest(self, model_id: str, worker: int | None, seen: int) -> Newest | None:  # noqa: ARG002  there is none
        """What was published last for a worker, or for all; `None` if that was no later than `seen`."""
        return None

    @property
    @abstractmethod
    def version(self) -> int:
        """The newest that was published."""

    @property
    @abstractmethod
    def workers(self) -> Sequence[int]:
        """Indices of the workers."""

    @abstractmethod
    def require_open(self) -> None:
        """Raise `Closed` after shutdown."""

    @abstractmethod
    def addressed(self, worker_ids: Any) -> list[int] | None:
        """Workers by index or by the device of their policies; `None` for all.

        Raises:
            ValueError: there is no such worker.
            TypeError: nobody can be named here.
        """

    @abstractmethod
    def wait(self, worker_ids: Any, timeout_s: float | None) -> None:
        """Wait until these workers, as far as they are up, run the newest version.

        Raises:
            WorkerLate: they do not in time.
        """

    @abstractmethod
    def progress(self) -> dict[int, tuple[int, int]]:
        """By worker that is not given up, its life and how many fragments it has made."""

    def has_source(self) -> bool:
        """Whether there are weights of the policy to fetch where none are given, or none are needed."""
        return self.fetched() is not None or not self._has_weights(POLICY)

    @abstractmethod
    def attach(self, model_id: str, scheme: WeightSyncScheme) -> None:
        """A scheme serves this model from now on.

        Raises:
            RuntimeError: another one does, or none can.
        """

    def learn(self, model_id: str) -> None:  # noqa: B027  in this process there is nothing to ask
        """A model will get weights: what must be asked about it is better asked now."""

    def require_models(self, *model_ids: str) -> None:
        """Raise `KeyError` for models that cannot be updated."""
        known = sorted({POLICY, *self.schemes})
        unknown = sorted(set(model_ids) - set(known))
        if unknown:
            raise KeyError(f"no model {unknown}; known are {known}")

    def publish(self, given: Mapping[str, Any], worker_ids: Any = None, also: Callable[[], None] | None = None) -> int:
        """Weights by model as one version, all or nothing.

        Args:
            given: modules, TensorDicts, dicts; `None` for what is to be fetched; `{worker: weights}` for one model.
            worker_ids: whom it is for; the others keep what they have.
            also: changes tensors of this process in the same moment.

        Returns:
            The version; within `one_version` that which it will be.

        Raises:
            RuntimeError: there is nothing to fetch.
            TypeError, KeyError, ValueError: weights do not fit, or there is no such worker.
        """
        self.require_open()
        workers, kept = self.addressed(worker_ids), self._kept
        sources = {model_id: source for model_id, source in given.items() if self._sends(model_id)}
        if given and not sources:
            return self.version
        publication = kept or Publication()
        each = {model_id: by_worker(source) for model_id, source in sources.items()}
        if any(own is not None for own in each.values()):
            if len(given) > 1 or worker_ids is not None or kept is not None:
                raise ValueError(
                    "{worker: weights} is one version of one model: publish it without worker_ids, without other "
                    "models, and not within a push of an updater"
                )
            for model_id, own in each.items():
                self._add_each(publication, model_id, own or {})
        else:
            publication.add({model_id: self._item(model_id, source) for model_id, source in sources.items()}, workers)
        if also is not None:
            publication.also.append(also)
        return self._put(publication) if kept is None else self.version + 1

    @contextmanager
    def one_version(self) -> Iterator[None]:
        """What this thread publishes within becomes one version at the end; nothing does after an exception."""
        outer, mine = self._kept, Publication()
        self._mine.kept = mine
        try:
            yield
        finally:
            self._mine.kept = outer
        if mine.begun:
            self._put(mine)

    def fetched(self, model_id: str = POLICY) -> Any:
        """The weights of a scheme's source, or of the user's own policy; `None` if there are none."""
        scheme = self.schemes.get(model_id)
        source = None if scheme is None else scheme.source
        return self.policy if source is None and model_id == POLICY else source

    def to_push(self) -> Any:
        """What an updater pushes that has no weights of its own: the policy's; nothing for one without any.

        Raises:
            RuntimeError: there are none.
        """
        if not self._has_weights(POLICY):
            return {}
        source = self.fetched()
        if source is None:
            raise RuntimeError(NO_SOURCE.format(model_id=POLICY))
        return source

    @abstractmethod
    def _has_weights(self, model_id: str) -> bool:
        """Whether the model has weights; without any only the version counts.

        Raises:
            AttributeError: no worker has such a model.
        """

    @abstractmethod
    def _taken(self, model_id: str, source: Any) -> Any:
        """Weights, checked and copied; `None` for a model without any."""

    @abstractmethod
    def _put(self, publication: Publication) -> int:
        """Make this the newest; the version."""

    @property
    def _kept(self) -> Publication | None:
        kept: Publication | None = getattr(self._mine, "kept", None)
        return kept

    def _sends(self, model_id: str) -> bool:
        scheme = self.schemes.get(model_id)
        return scheme is None or scheme.sends

    def _add_each(self, publication: Publication, model_id: str, each: Mapping[int, Any]) -> None:
        unknown = sorted(set(each) - set(self.workers))
        if unknown:
            raise ValueError(f"weights are for the workers {unknown}; this collector has {sorted(self.workers)} only")
        for worker, own in each.items():
            publication.add({model_id: self._item(model_id, own)}, [worker])

    def _item(self, model_id: str, given: Any) -> Any:
        scheme = self.schemes.get(model_id)
        source = self.fetched(model_id) if given is None else given
        mapped = source if scheme is None else scheme.prepared(source)
        if mapped is None and self._has_weights(model_id):
            raise RuntimeError(NO_SOURCE.format(model_id=model_id))
        return self._taken(model_id, mapped)
