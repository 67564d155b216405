"""Where a collector's weights go out: the one way for its update methods, its updater, schemes and receivers.

weights ─▶ mapped by the scheme ─▶ checked, copied ─▶ put, as one version
                                         └─ within one_version(): kept until its end
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from swath.collect.making.devices import as_device
from swath.collect.service import CollectorService
from swath.weight_update.outlet import OUTLETS, Newest
from swath.weight_update.scheme import WeightSyncScheme
from swath.weights.manifest import Manifest, by_worker, take
from swath.weights.snapshot import POLICY, Snapshot

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


class WeightOutlet:
    """Publishes the weights of one collector. Any thread may use it; versions are in the order of publications.

    Weights are copied, and checked here against what the workers' models need.

    Args:
        collection: the collection and its workers.
        policy: the user's own policy, whose weights are fetched where none are given; `None` with a factory alone.

    Attributes:
        updater: the collector's weight updater, if it has one.
        schemes: by model.
        key: names the collector for those who read here; empty where nobody can.
    """

    def __init__(self, collection: CollectorService, policy: Any) -> None:
        self.policy = policy
        self.updater: Any = None
        self.schemes: dict[str, WeightSyncScheme] = {}
        self.key = collection.jobs.key
        self._mine = threading.local()
        self._collection = collection
        self._manifests: dict[str, Manifest] = {}

    def open(self) -> None:
        """Others may read here."""
        OUTLETS[self.key] = self

    def close(self) -> None:
        """Nobody reads here any more."""
        OUTLETS.pop(self.key, None)

    @property
    def version(self) -> int:
        """The newest that was published."""
        return self._collection.version

    @property
    def workers(self) -> Sequence[int]:
        """Indices of the workers."""
        return sorted(self._collection.group.fleet.standings())

    def require_open(self) -> None:
        """Raise `Closed` after shutdown."""
        self._collection.gate.require_open()

    def addressed(self, worker_ids: Any) -> list[int] | None:
        """Workers by index or by the device of their policies; `None` for all."""
        if worker_ids is None:
            return None
        wanted = worker_ids if isinstance(worker_ids, list | tuple) else [worker_ids]
        if not wanted:
            raise ValueError(f"worker_ids={worker_ids!r} names nobody; workers are {self.workers}, None means all")
        return sorted({worker for one in wanted for worker in self._named(one)})

    def wait(self, worker_ids: Any, timeout_s: float | None) -> None:
        """Wait until these workers run what is meant for them now."""
        calls, addressed = self._collection.open_group.to_all("touch"), self.addressed(worker_ids)
        asked = calls if addressed is None else {worker: calls[worker] for worker in addressed}
        for worker, version in self._collection.group.answers(self._collection.group.send(asked), timeout_s).items():
            self._collection.tracker.workers[worker].version = version

    def progress(self) -> dict[int, tuple[int, int]]:
        """By worker that is not given up, its life and how many fragments it has made."""
        known, standings = self._collection.tracker.workers, self._collection.group.fleet.standings()
        there = (worker for worker, one in sorted(standings.items()) if one.phase != "gone")
        return {worker: (standings[worker].life, known[worker].fragments) for worker in there}

    def attach(self, model_id: str, scheme: WeightSyncScheme) -> None:
        """A scheme serves this model from now on.

        Raises:
            RuntimeError: another one does.
        """
        other = self.schemes.setdefault(model_id, scheme)
        if other is not scheme:
            raise RuntimeError(f"another scheme serves {model_id!r} of this collector already; use that one")
        if scheme.sends:
            self.learn(model_id)

    def newest(self, model_id: str, worker: int | None, seen: int) -> Newest | None:
        """What was published last for a worker, or for all; `None` if that was no later than `seen`."""
        newest = self._collection.group.channel.newest(worker, model_id, seen)
        return None if newest is None else Newest(*newest)

    def learn(self, model_id: str) -> None:
        """Ask what the weights of a model must look like, so that updates need not wait for the answer."""
        with suppress(AttributeError):  # a worker may have it later; an update says so if not
            self._manifest(model_id)

    def begin(self, *, built_there: bool) -> None:
        """Let workers begin with what the schemes have; the first request brings it.

        It is version 0, the state at construction. Weights of a policy that is built in this process are there already.

        Args:
            built_there: whether the workers build the policy.
        """
        sources = {
            model_id: self.fetched(model_id)
            for model_id, scheme in self.schemes.items()
            if scheme.sends and (built_there or model_id != POLICY)
        }
        first = {model_id: self._item(model_id, source) for model_id, source in sources.items() if source is not None}
        if first:
            self._collection.group.channel.publish(first, version=0)

    def has_source(self) -> bool:
        """Whether there are weights of the policy to fetch where none are given, or none are needed."""
        return self.fetched() is not None or not self._has_weights(POLICY)

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

    def _has_weights(self, model_id: str) -> bool:
        return not self._manifest(model_id).empty

    def _taken(self, model_id: str, source: Any) -> Snapshot | None:
        return None if source is None else take(source, self._manifest(model_id))

    def _put(self, publication: Publication) -> int:
        """Make this the newest; the version."""
        channel, each = self._collection.group.channel, _once(publication.each)
        everyone: dict[int | None, Items] = {None: publication.everyone} if publication.everyone or not each else {}
        models = everyone | dict(each)
        version = channel.publish_each(models)
        for change in publication.also:
            self._change(change)
        return version

    def _change(self, change: Callable[[], None]) -> None:
        """Change tensors of this process, which act nowhere."""
        change()

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

    def _named(self, who: Any) -> list[int]:
        if isinstance(who, int) and not isinstance(who, bool):
            if who in self.workers:
                return [who]
            raise ValueError(f"worker_ids={who}: there is no such worker; workers are {self.workers}")
        device, described = as_device("worker_ids", who), self._collection.jobs.described
        places = {worker: one.policy_device or torch.device("cpu") for worker, one in described.items()}
        found = [worker for worker, place in places.items() if place == device]
        if not found:
            raise ValueError(f"worker_ids={who!r}: no policy runs there; workers and devices are {places}")
        return found

    def _manifest(self, model_id: str) -> Manifest:
        """What the weights of a model must look like, as the first worker that answers says."""
        if model_id not in self._manifests:
            first = next(iter(self._collection.jobs.described.values()))
            self._manifests[model_id] = first.manifest if model_id == POLICY else self._asked(model_id)
        return self._manifests[model_id]

    def _asked(self, model_id: str) -> Manifest:
        manifest: Manifest = self._collection.open_group.call_first("manifest_of", model_id)
        return manifest


def _once(each: dict[int, Items]) -> dict[int, Items]:
    """The same, with one snapshot for all workers that get the same values."""
    made: list[Snapshot] = []

    def known(snapshot: Snapshot | None) -> Snapshot | None:
        same = None if snapshot is None else next((other for other in made if _equal(other, snapshot)), None)
        if snapshot is None or same is not None:
            return same
        made.append(snapshot)
        return snapshot

    return {worker: {model_id: known(item) for model_id, item in items.items()} for worker, items in each.items()}


def _equal(one: Snapshot, other: Snapshot) -> bool:
    if one is other:
        return True
    if one.extras or other.extras or one.places != other.places:
        return False
    return all(np.array_equal(buffer, other.buffers[dtype]) for dtype, buffer in one.buffers.items())
