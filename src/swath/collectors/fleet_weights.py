"""Where the weights of a collector with many workers go: onto the channel that its workers' requests come by."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from swath.collect.making.devices import as_device
from swath.collectors.fleet_assembly import Assembled
from swath.collectors.outlet import Items, Publication, WeightOutlet
from swath.weight_update.outlet import OUTLETS, Newest
from swath.weight_update.scheme import WeightSyncScheme
from swath.weights.manifest import Manifest
from swath.weights.names import POLICY
from swath.weights.snapshot import Snapshot, take

EVERYONE = -1
"""Stands for all workers, also for those to come."""


class FleetWeights(WeightOutlet):
    """Publishes snapshots, checked here against what the workers' models need.

    Args:
        assembled: the collection and its workers.
        policy: the user's own policy, whose weights are fetched where none are given; `None` with a factory alone.
    """

    def __init__(self, assembled: Assembled, policy: Any) -> None:
        super().__init__(policy)
        self._assembled, self._collection = assembled, assembled.collection
        self._channel = assembled.collection.group.channel
        self._manifests: dict[str, Manifest] = {}
        self.key = assembled.jobs.key
        self._serials = itertools.count(1)
        self._newest: dict[tuple[str, int], int] = {}
        OUTLETS[self.key] = self

    def close(self) -> None:
        """Nobody reads here any more."""
        OUTLETS.pop(self.key, None)

    @property
    def version(self) -> int:
        """The newest that was published."""
        return self._channel.version

    @property
    def workers(self) -> Sequence[int]:
        """Indices of the workers."""
        return sorted(self._assembled.fleet.standings())

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
        calls, addressed = self._collection.calls.calls("touch"), self.addressed(worker_ids)
        asked = calls if addressed is None else {worker: calls[worker] for worker in addressed}
        for worker, version in self._collection.group.answers(self._collection.group.send(asked), timeout_s).items():
            self._collection.books.workers[worker].version = version

    def progress(self) -> dict[int, tuple[int, int]]:
        """By worker that is not given up, its life and how many fragments it has made."""
        known, standings = self._collection.books.workers, self._assembled.fleet.standings()
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
        who = EVERYONE if worker is None else worker
        serial = max(self._newest.get((model_id, one), 0) for one in (EVERYONE, who))
        snapshot = self._channel.newest(who).get(model_id) if serial > seen else None
        return None if snapshot is None else Newest(serial, snapshot)

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
            self._channel.publish(first, version=0)

    def _has_weights(self, model_id: str) -> bool:
        return not self._manifest(model_id).empty

    def _taken(self, model_id: str, source: Any) -> Snapshot | None:
        return None if source is None else take(source, self._manifest(model_id))

    def _put(self, publication: Publication) -> int:
        version = self._publish(publication.everyone, _once(publication.each))
        for change in publication.also:
            change()
        self._note(publication)
        return version

    def _publish(self, everyone: Items, each: dict[int, Items]) -> int:
        return self._channel.publish_each(each, others=everyone or None) if each else self._channel.publish(everyone)

    def _note(self, publication: Publication) -> None:
        """Readers may take this from now on."""
        serial = next(self._serials)
        for who, items in {EVERYONE: publication.everyone, **publication.each}.items():
            self._newest.update({(model_id, who): serial for model_id in items})

    def _named(self, who: Any) -> list[int]:
        if isinstance(who, int) and not isinstance(who, bool):
            if who in self.workers:
                return [who]
            raise ValueError(f"worker_ids={who}: there is no such worker; workers are {self.workers}")
        device, described = as_device("worker_ids", who), self._assembled.described
        places = {worker: one.policy_device or torch.device("cpu") for worker, one in described.items()}
        found = [worker for worker, place in places.items() if place == device]
        if not found:
            raise ValueError(f"worker_ids={who!r}: no policy runs there; workers and devices are {places}")
        return found

    def _manifest(self, model_id: str) -> Manifest:
        """What the weights of a model must look like, as the first worker that answers says."""
        if model_id not in self._manifests:
            first = next(iter(self._assembled.described.values()))
            self._manifests[model_id] = first.manifest if model_id == POLICY else self._asked(model_id)
        return self._manifests[model_id]

    def _asked(self, model_id: str) -> Manifest:
        manifest: Manifest = self._collection.calls.call_first("manifest_of", model_id)
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
