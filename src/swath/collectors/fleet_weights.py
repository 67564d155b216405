"""Where the weights of a collector with many workers go: onto the channel that its workers' requests come by."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from swath.collect.making.devices import as_device
from swath.collectors.fleet_assembly import Assembled
from swath.collectors.outlet import Items, Publication, WeightOutlet
from swath.weight_update.mail import EVERYONE, Post
from swath.weight_update.outlet import Reads
from swath.weights.manifest import Manifest
from swath.weights.names import POLICY
from swath.weights.snapshot import Snapshot, take


class FleetWeights(WeightOutlet):
    """Publishes snapshots, checked here against what the workers' models need.

    Args:
        assembled: the collection and its workers.
        policy: the user's own policy, whose weights are fetched where none are given; `None` with a factory alone.
    """

    def __init__(self, assembled: Assembled, policy: Any) -> None:
        super().__init__(policy)
        self._assembled, self._collection = assembled, assembled.collection
        self._channel = assembled.collection.desk.channel
        self._manifests: dict[str, Manifest] = {}

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
        tickets = self._collection.calls.send("touch", (), {}, self.addressed(worker_ids))
        self._collection.desk.known.versions |= self._collection.calls.answers(tickets, timeout_s)

    def progress(self) -> dict[int, tuple[int, int]]:
        """By worker that is not given up, its life and how many fragments it has made."""
        made = self._collection.desk.known.fragments
        standings = self._assembled.fleet.standings()
        return {
            worker: (one.life, made.get(worker, 0)) for worker, one in sorted(standings.items()) if one.phase != "gone"
        }

    def newest(self, model_id: str) -> Post:
        """Snapshots of what was published last."""
        found = {who: self._channel.newest(who).get(model_id) for who in (EVERYONE, *self._apart())}
        return {who: snapshot for who, snapshot in found.items() if snapshot is not None}

    def learn(self, model_id: str) -> None:
        """Ask what the weights of a model must look like, so that updates need not wait for the answer."""
        with suppress(AttributeError):  # a worker may have it later; an update says so if not
            self._manifest(model_id)

    def begin(self, *, built_there: bool) -> None:
        """Let workers begin with what the schemes were sent, or initialised with; the first request brings it.

        It is version 0, the state at construction. Weights of a policy that is built in this process are there already.

        Args:
            built_there: whether the workers build the policy.
        """
        first = Publication()
        for model_id, scheme in self.schemes.items():
            if not scheme.sends:
                continue
            for who, weights in self._first(model_id, scheme, built_there=built_there).items():
                first.add(self._of_model(model_id, weights, None if who == EVERYONE else [who]))
        if first.begun:
            self._channel.publish_each(first.each, version=0, others=first.everyone or None)

    def _first(self, model_id: str, scheme: Reads, *, built_there: bool) -> dict[int, Any]:
        sent = scheme.sent_to(EVERYONE)
        own = {worker: scheme.sent_to(worker) for worker in self.workers}
        post = {EVERYONE: sent, **{worker: one for worker, one in own.items() if not _equal(one, sent)}}
        found = {who: snapshot.weights() for who, snapshot in post.items() if snapshot is not None}
        source = self.fetched(model_id) if not found and (built_there or model_id != POLICY) else None
        return found if source is None else {EVERYONE: source}

    def _has_weights(self, model_id: str) -> bool:
        return not self._manifest(model_id).empty

    def _taken(self, model_id: str, source: Any) -> Snapshot | None:
        return None if source is None else take(source, self._manifest(model_id))

    def _put(self, publication: Publication) -> int:
        version = self._publish(publication.everyone, _once(publication.each))
        for change in publication.also:
            change()
        return version

    def _publish(self, everyone: Items, each: dict[int, Items]) -> int:
        return self._channel.publish_each(each, others=everyone or None) if each else self._channel.publish(everyone)

    def _snapshot(self, model_id: str, item: Snapshot | None) -> Snapshot | None:  # noqa: ARG002  it is one
        return item

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

    def _apart(self) -> list[int]:
        """Workers that were sent weights of their own after those for all."""
        of_all = self._channel.version_for(EVERYONE)
        return [worker for worker in self.workers if self._channel.version_for(worker) != of_all]

    def _manifest(self, model_id: str) -> Manifest:
        """What the weights of a model must look like, as the first worker that answers says."""
        if model_id not in self._manifests:
            first = next(iter(self._assembled.described.values()))
            self._manifests[model_id] = first.manifest if model_id == POLICY else self._asked(model_id)
        return self._manifests[model_id]

    def _asked(self, model_id: str) -> Manifest:
        manifest: Manifest = self._collection.calls.first("manifest_of", model_id)
        return manifest


def _once(each: dict[int, Items]) -> dict[int, Items]:
    """The same, with one snapshot for all workers that get the same values."""
    made: list[Snapshot] = []

    def known(snapshot: Snapshot | None) -> Snapshot | None:
        if snapshot is None:
            return None
        for other in made:
            if other is snapshot or _equal(other, snapshot):
                return other
        made.append(snapshot)
        return snapshot

    return {worker: {model_id: known(item) for model_id, item in items.items()} for worker, items in each.items()}


def _equal(one: Snapshot | None, other: Snapshot | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.extras or other.extras or one.places != other.places:
        return False
    return all(np.array_equal(buffer, other.buffers[dtype]) for dtype, buffer in one.buffers.items())
