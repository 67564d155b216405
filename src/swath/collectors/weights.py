"""The publisher and receiver of a collector's weights, behind the collector's methods.

weights ─▶ mapped by the scheme ─▶ checked, copied ─▶ published, as one version
                                         └─ within one_version(): kept until its end
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from swath.collectors.gather import Fragments
from swath.collectors.jobs import WorkerJobs
from swath.group.local import Access
from swath.rollout.policies.calling import as_device
from swath.weights.schemes import PUBLISHERS, WeightSyncScheme
from swath.weights.snapshot import (
    POLICY,
    Manifest,
    Snapshot,
    initialize,
    plan_update,
    snapshot_of,
    take_snapshot,
    uninitialized,
)


@dataclass
class Publication:
    """Weights that are published as one version.

    Attributes:
        version: its number, or the one that it will probably get.
        models: checked copies by worker and model, `None` for a model without weights; under `None` for all workers.
        changes: functions that change tensors of this process, such as the acting policy's.
        newest: the last snapshot of each model, which workers share that get the same values.
    """

    version: int
    models: dict[int | None, dict[str, Snapshot | None]] = field(default_factory=dict)
    changes: list[Callable[[], None]] = field(default_factory=list)
    newest: dict[str, Snapshot] = field(default_factory=dict)

    def add(self, model_id: str, worker: int | None, snapshot: Snapshot | None) -> None:
        """Add a snapshot; it replaces earlier ones of the same model for the same workers."""
        if snapshot is not None:
            before = self.newest.get(model_id)
            snapshot = self.newest[model_id] = before if before is not None and before.equals(snapshot) else snapshot
        for snapshots in self.models.values() if worker is None else ():
            snapshots.pop(model_id, None)
        self.models.setdefault(worker, {})[model_id] = snapshot


class WeightPublisher:
    """Publishes the weights of one collector. Any thread may use it; versions are in the order of publications.

    Weights are copied, and checked here against what the workers' models need.

    Args:
        group: the workers.
        jobs: how workers are started, and their descriptions.
        access: access of the collection.
        member: the one worker in this process, if that is where it lives.

    Attributes:
        policy: the user's own policy, whose weights are published by default; `None` with only a factory.
        updater: the collector's weight updater, if it has one.
        schemes: schemes that send, by model.
        receivers: schemes that receive, by model.
        key: name by which readers find the collector.
    """

    def __init__(self, group: Fragments, jobs: WorkerJobs, access: Access, member: Any) -> None:
        self.policy = jobs.options.policy
        self.updater: Any = None
        self.schemes: dict[str, WeightSyncScheme] = {}
        self.receivers: dict[str, WeightSyncScheme] = {}
        self._group, self._jobs, self._access, self._member = group, jobs, access, member
        self._manifests: dict[str, Manifest] = {}
        self._receiving, self._this_thread = threading.RLock(), threading.local()
        self.key = jobs.key
        PUBLISHERS[self.key] = self

    def initialize(self) -> None:
        """Copy lazy layers that the first worker has initialised to the user's policy and to all workers.

        Raises:
            KeyError: weights of other names.
            ValueError: layers that the policy does not call when it acts.
        """
        if not (isinstance(self.policy, nn.Module) and uninitialized(self.policy)):
            return
        weights = snapshot_of(self._group.call_first("get_model", POLICY))
        initialize(self.policy, weights)
        plan_update(self.policy, weights)()
        if self._member is None:
            self._group.channel.publish({POLICY: weights}, version=0)

    def begin(self) -> None:
        """Publish the weights of schemes as version 0, the state at construction.

        A policy that was built in this process needs none: workers have copies of it.
        """
        has_factory = self._jobs.requests[0].options.policy_factory is not None
        first = {
            model_id: self._snapshot(model_id, source)
            for model_id, scheme in self.schemes.items()
            if scheme.sends and (has_factory or model_id != POLICY) and (source := self._source(model_id)) is not None
        }
        if first:
            self._group.channel.publish(first, version=0)

    def attach(self, model_id: str, scheme: WeightSyncScheme) -> None:
        """Add the scheme that serves a model from now on.

        Raises:
            RuntimeError: another scheme does, or the policy itself acts.
        """
        if self._member is not None:
            raise RuntimeError("in this process the policy itself acts; no scheme sends: call update_policy_weights_()")
        if self.schemes.setdefault(model_id, scheme) is not scheme:
            raise RuntimeError(f"another scheme serves {model_id!r} of this collector already; use that one")
        if scheme.sends:
            self._ask_manifest(model_id)

    def require_models(self, *model_ids: str) -> None:
        """Raise `KeyError` for models that cannot be updated."""
        models = {POLICY, *self.schemes}
        if unknown := sorted({*model_ids} - models):
            raise KeyError(f"no model {unknown}; known are {sorted(models)}")

    def publish(
        self, models: Mapping[str, Any], worker_ids: Any = None, change: Callable[[], None] | None = None
    ) -> int:
        """Publish weights by model as one version, all or nothing.

        Args:
            models: modules, TensorDicts, dicts; `None` for weights to be fetched; `{worker: weights}` for some workers.
            worker_ids: the workers that get them; the others keep theirs.
            change: changes tensors of this process, between two fragments.

        Returns:
            The version; within `one_version` the one that it will be.

        Raises:
            RuntimeError: there are no weights to fetch.
            TypeError, KeyError, ValueError: weights do not fit, or a worker is unknown.
        """
        self._access.require_open()
        workers: Sequence[int | None] = self.find_workers(worker_ids) or [None]
        sources = {model_id: models[model_id] for model_id in models if self._sends(model_id)}
        if models and not sources:
            return self._group.channel.version
        snapshots: list[tuple[str, int | None, Snapshot | None]] = []
        for model_id, source in sources.items():
            if not _is_by_worker(source):
                snapshot = self._snapshot(model_id, source)
                snapshots += [(model_id, worker, snapshot) for worker in workers]
            elif worker_ids is not None:
                raise ValueError("{worker: weights} names the workers: publish it without worker_ids")
            elif unknown := sorted(set(source) - set(self._workers)):
                raise ValueError(f"weights are for the workers {unknown}; this collector has {self._workers} only")
            else:
                by_worker = source.items()
                snapshots += [(model_id, worker, self._snapshot(model_id, weights)) for worker, weights in by_worker]
        current = getattr(self._this_thread, "publication", None)
        with self.one_version() if current is None else nullcontext(current) as publication:
            if not snapshots:  # another version of the same weights
                publication.models.setdefault(None, {})
            for snapshot_of_model in snapshots:
                publication.add(*snapshot_of_model)
            publication.changes += [] if change is None else [change]
        return publication.version

    @contextmanager
    def one_version(self) -> Iterator[Publication]:
        """Collect the publications of this thread within the block into one version; drop them after an exception.

        Raises:
            Closed: the collector was shut down.
        """
        self._access.require_open()
        outer = getattr(self._this_thread, "publication", None)
        publication = self._this_thread.publication = Publication(self._group.channel.version + 1)
        try:
            yield publication
        finally:
            self._this_thread.publication = outer
        if publication.models:
            publication.version = self._group.channel.publish_each(publication.models)
            for change in publication.changes:
                self._access.run_soon(change)

    def find_workers(self, worker_ids: Any) -> list[int] | None:
        """Return workers by index or by the device of their policies; `None` for all.

        Raises:
            TypeError: the one worker in this process is named, and there is no updater.
            ValueError: an unknown worker, or a device without policies.
        """
        if worker_ids is None:
            return None
        if self._member is not None and self.updater is None:
            raise TypeError("worker_ids: a Collector in this process has one worker; leave it out")
        listed = worker_ids if isinstance(worker_ids, list | tuple) else [worker_ids]
        if not listed:
            raise ValueError(f"worker_ids={worker_ids!r} is empty; workers are {self._workers}, None means all")
        return sorted({worker for entry in listed for worker in self._find(entry)})

    def wait(self, worker_ids: Any, timeout_s: float | None) -> None:
        """Wait until workers run the newest weights for them."""
        if self._member is not None:
            with self._access.control(timeout_s):
                return
        self._access.require_open()
        workers = self.find_workers(worker_ids) or self._workers
        tickets = self._group.send(dict.fromkeys(workers, ("weights_version",)))
        for worker, version in self._group.answers(tickets, timeout_s).items():
            self._group.records[worker].version = version

    def progress(self) -> dict[int, tuple[int, int]]:
        """Return life and number of fragments of each worker that is not given up."""
        records, statuses = self._group.records, sorted(self._group.fleet.statuses().items())
        present = {worker: status for worker, status in statuses if status.phase != "gone"}
        return {worker: (status.life, records[worker].fragments) for worker, status in present.items()}

    def has_source(self) -> bool:
        """Return whether the policy's weights can be published without passing any, or it has no weights."""
        if self.updater is not None:
            supplies: bool = self.updater.has_server_weights
            return supplies
        return self._source(POLICY) is not None or self._manifest(POLICY).empty or not self._sends(POLICY)

    def fetch(self, model_id: str = POLICY) -> Any:
        """Return the weights of a scheme's source, or of the user's own policy; `{}` for a model without weights.

        Raises:
            RuntimeError: the model has weights, but no source.
        """
        source = {} if self._manifest(model_id).empty else self._source(model_id)
        if source is None:
            raise RuntimeError(f"no weights of {model_id!r} to publish: pass weights, or give the collector a policy")
        return source

    def newest(self, model_id: str, worker: int | None, after: int) -> tuple[int, Snapshot] | None:
        """Return the last publication for a worker, or for all, and its number; `None` if that is not above `after`."""
        self._access.require_open()
        return self._group.channel.newest(worker, model_id, after)

    def receive_from(self, schemes: Mapping[str, WeightSyncScheme], collector: Any, worker_idx: int | None) -> None:
        """Register schemes as receivers; shut earlier receivers of the same models down.

        Raises:
            RuntimeError: a scheme is a sender in this process; nothing is registered then.
        """
        with self._receiving:
            for model_id, scheme in schemes.items():
                scheme.init_on_receiver(model_id=model_id, context=collector, worker_idx=worker_idx)
                self._ask_manifest(model_id)
            before = list(self.receivers.values())
            self.receivers.update(schemes)
            for old in before:
                if old not in self.receivers.values():
                    old.shutdown()

    def receive(self) -> None:
        """Take the newest weights of each receiver, as one version; do nothing if none are newer.

        An exception of one receiver is raised when the others have delivered, which they do only once.

        Raises:
            RuntimeError: a sender cannot be reached.
            KeyError, ValueError: weights do not fit.
        """
        errors: list[Exception] = []
        with self._receiving, self.one_version():
            for scheme in self.receivers.values():
                try:
                    if (weights := scheme.take_newest()) is not None:
                        scheme.apply_weights(weights)
                except Exception as error:  # noqa: BLE001  raised when the others have delivered
                    errors.append(error)
        if errors:
            raise errors[0]

    @property
    def _workers(self) -> list[int]:
        return sorted(self._group.fleet.statuses())

    def _sends(self, model_id: str) -> bool:
        scheme = self.schemes.get(model_id)
        return scheme is None or scheme.sends

    def _source(self, model_id: str) -> Any:
        scheme = self.schemes.get(model_id)
        source = None if scheme is None else scheme.source
        return self.policy if source is None and model_id == POLICY else source

    def _snapshot(self, model_id: str, weights: Any) -> Snapshot | None:
        """Return a checked copy of weights; `None` for the acting policy itself, which needs no copy."""
        scheme, source = self.schemes.get(model_id), self.fetch(model_id) if weights is None else weights
        if self._member is not None and source is self._member.module:
            return None
        if scheme is not None:
            source = scheme.prepare_weights(source, model_id, scheme.strategy, scheme.context)
        return take_snapshot(source, self._manifest(model_id))

    def _find(self, worker_id: Any) -> list[int]:
        """Return the workers of an index or a device."""
        if isinstance(worker_id, int) and not isinstance(worker_id, bool):
            if worker_id in self._workers:
                return [worker_id]
            raise ValueError(f"worker_ids={worker_id} is unknown; workers are {self._workers}")
        device, described = as_device("worker_ids", worker_id), self._jobs.described.items()
        devices = {worker: description.policy_device or torch.device("cpu") for worker, description in described}
        if workers := [worker for worker, place in devices.items() if place == device]:
            return workers
        raise ValueError(f"worker_ids={worker_id!r}: no policy runs on that device; workers and devices are {devices}")

    def _ask_manifest(self, model_id: str) -> None:
        """Ask a worker for the manifest of a model, so that updates need not wait for it."""
        with suppress(AttributeError):  # a worker may have the model later; an update raises if not
            self._manifest(model_id)

    def _manifest(self, model_id: str) -> Manifest:
        """Return the manifest of a model, as the first worker that answers has it."""
        if model_id == POLICY:
            return next(iter(self._jobs.described.values())).manifest
        if model_id not in self._manifests:
            self._manifests[model_id] = self._group.call_first("manifest_of", model_id)
        return self._manifests[model_id]


def _is_by_worker(weights: Any) -> bool:
    """Return whether weights have the form `{worker: weights}`.

    Raises:
        ValueError: numbers of workers and names are mixed as keys.
    """
    kinds = {isinstance(key, int) for key in weights} if isinstance(weights, dict) else set()
    if len(kinds) > 1:
        raise ValueError(f"weights mix worker numbers and names as keys: {list(weights)}; use one kind")
    return kinds == {True}


def weights_of(model_id: str | None, forms: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the weights that were passed in one of several forms, by model; `None` for weights to be fetched.

    Args:
        model_id: which model; `"policy"` by default.
        forms: arguments by name; `weights_dict` names the models itself.

    Raises:
        TypeError: `weights_dict` is no dict.
        ValueError: two were passed; the message names both.
    """
    passed = {name: value for name, value in forms.items() if value is not None}
    if len(passed) > 1:
        raise ValueError(f"{' and '.join(passed)} are both given; give one of them")
    models = passed.get("weights_dict")
    if models is None:
        return {POLICY if model_id is None else model_id: next(iter(passed.values()), None)}
    if not isinstance(models, Mapping):
        raise TypeError(f"weights_dict is {type(models).__name__}; it must be a dict of weights by model")
    if model_id is not None:
        raise ValueError("weights_dict and model_id are both given; the dict names the models")
    return models
