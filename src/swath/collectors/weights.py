"""Weights of a collector: the methods by which users publish them, and the publisher behind these methods.

weights ─▶ mapped by the scheme ─▶ checked, copied ─▶ published, as one version
                                         └─ within one_version(): kept until its end
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from swath.collectors.background import Background
from swath.collectors.options import AnyOptions, Automatic
from swath.collectors.remote import weights_of
from swath.collectors.service import CollectorService
from swath.errors import warn
from swath.options import deadline
from swath.rollout.policies.calling import as_device
from swath.weights.schemes import PUBLISHERS, WeightSyncScheme, require_schemes
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
from swath.weights.updaters import WeightUpdaterBase


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
        collection: the collection and its workers.
        policy: the user's own policy, whose weights are published by default; `None` with only a factory.

    Attributes:
        updater: the collector's weight updater, if it has one.
        schemes: schemes that send, by model.
        receivers: schemes that receive, by model.
    """

    def __init__(self, collection: CollectorService, policy: Any) -> None:
        self.policy = policy
        self.updater: Any = None
        self.schemes: dict[str, WeightSyncScheme] = {}
        self.receivers: dict[str, WeightSyncScheme] = {}
        self._group = collection.group
        self._access, self._jobs = collection.access, collection.jobs
        self._member = collection.member
        self._manifests: dict[str, Manifest] = {}
        self._receiving, self._this_thread = threading.RLock(), threading.local()

    @property
    def key(self) -> str:
        """Return the key by which receivers find the collector; empty after shutdown."""
        return "" if self._access.halted else self._jobs.key

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
        """Let a scheme serve a model from now on.

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
        """Publish at the end, as one version, what this thread publishes within; nothing after an exception.

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
        present = {worker: standing for worker, standing in statuses if standing.phase != "gone"}
        return {worker: (standing.life, records[worker].fragments) for worker, standing in present.items()}

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
        if not self.receivers:
            return
        errors: list[Exception] = []
        with self._receiving, self.one_version():
            for scheme in self.receivers.values():
                try:
                    scheme.receive()
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


class TakesWeights:
    """Methods that publish weights, from any thread, before, during and between draws. After shutdown: `Closed`."""

    collection: CollectorService
    _publisher: WeightPublisher
    _background: Background
    # Called after shutdown, whatever that raises.
    _at_end: ExitStack
    _worker_idx: int | None

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        *,
        weights: Any = None,
        policy: Any = None,
        worker_ids: Any = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
        wait: bool = False,
        timeout_s: float | None = None,
        policy_weights: Any = None,
    ) -> None:
        """Publish weights under the next version. Values are read before this returns, and it waits for no worker.

        With many workers, each takes them with its next request, between two fragments. With one in this process they
        are copied into the policy at once, or right after the running batch; within draws the user's own module acts,
        so that nothing is copied without weights, and in the background a snapshot of it, which gets the module's
        present weights. A weight updater replaces all this.

        Args:
            policy_or_weights: a module, a TensorDict, a dict of tensors, nested or as `state_dict()` gives, or
                `{worker: weights}`; `None` for the weights that the collector's own policy has now.
            weights: a TensorDict or dict.
            policy: a module.
            worker_ids: the workers that get them: an int, a list of ints, a device, or a list of devices where policies
                run; not with one worker in this process.
            model_id: which model; `"policy"` by default.
            weights_dict: `{model_id: weights}`, all in one version.
            wait: return when every addressed worker that is up runs this version or a newer one.
            timeout_s: how long to wait, in seconds; `None` for `fragment_timeout_s`.
            policy_weights: the old name of the first argument.

        Raises:
            TypeError: not weights, or `worker_ids` where there is one worker.
            KeyError: names do not fit, or an unknown model.
            ValueError: shapes do not fit, two forms at once, or an unknown worker. In all cases nothing is published.
            RuntimeError: no weights, and no source to fetch them from.
            WorkerLate: `wait`, and a worker does not run the version in time; the weights are published all the same.
        """
        if policy_weights is not None:
            warn("policy_weights= is now policy_or_weights=", DeprecationWarning)
        forms = {"policy_or_weights": policy_or_weights, "policy_weights": policy_weights, "weights": weights}
        models = weights_of(model_id, {**forms, "policy": policy, "weights_dict": weights_dict})
        patience = deadline("timeout_s", timeout_s)
        self._require_ready()
        updater = self._publisher.updater
        if updater is None:
            self._publisher.require_models(*models)
            self._publisher.publish(models, worker_ids)
        else:
            if model_id is not None or weights_dict is not None:
                form, kind = "weights_dict" if model_id is None else "model_id", type(updater).__name__
                raise ValueError(f"{form} is given, but the weight updater {kind} serves the policy alone")
            self._publisher.find_workers(worker_ids)
            with self._publisher.one_version():
                updater.push_weights(models[POLICY], worker_ids)
        if wait:
            self._publisher.wait(worker_ids, patience)

    def publish_weights(self, weights: Any, *, worker_ids: Any = None, model_id: str = POLICY) -> int:
        """Publish weights without the weight updater.

        Args:
            weights: as in `update_policy_weights_`.
            worker_ids: as in `update_policy_weights_`.
            model_id: which model.

        Returns:
            The version; within a push of an updater the one that the push will have.
        """
        self._require_ready()
        self._publisher.require_models(model_id)
        return self._publisher.publish({model_id: weights}, worker_ids)

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Bring weights into this collector.

        With registered receivers: take the newest of each; without newer weights do nothing, at once. Without
        receivers: publish the argument without the updater, or call `update_policy_weights_()`, or do nothing without a
        source.

        Args:
            policy_or_weights: a module, a TensorDict or a dict.
            weights: a TensorDict or dict.
            policy: a module.

        Raises:
            ValueError: two sources, or a source and registered receivers.
            RuntimeError: a sender cannot be reached.
        """
        self.collection.access.require_open()
        forms = {"policy_or_weights": policy_or_weights, "weights": weights, "policy": policy}
        source = weights_of(None, forms)[POLICY]
        if self._publisher.receivers:
            if source is not None:
                raise ValueError("weights are given, but this collector takes its weights from registered receivers")
            self._publisher.receive()
        elif source is not None:
            self.publish_weights(source)
        elif self._publisher.updater is not None or self._publisher.has_source():
            self.update_policy_weights_()

    def register_scheme_receiver(
        self, weight_recv_schemes: Mapping[str, WeightSyncScheme], *, synchronize_weights: bool = True
    ) -> None:
        """Take weights from schemes from now on: the newest of each at the start of every batch.

        Args:
            weight_recv_schemes: by model; an earlier one for the same model is shut down.
            synchronize_weights: take the newest now, too, if there is one.

        Raises:
            TypeError: not a dict of schemes.
            RuntimeError: a scheme is a sender in this process, or its sender cannot be reached.
        """
        self.collection.access.require_open()
        schemes = require_schemes("weight_recv_schemes", weight_recv_schemes)
        self._publisher.receive_from(schemes, self, self._worker_idx)
        for scheme in schemes.values():
            self._at_end.callback(scheme.shutdown)
        if synchronize_weights:
            self._publisher.receive()

    @property
    def weight_updater(self) -> WeightUpdaterBase | None:
        """Return the weight updater; an instance, a class or a callable can be assigned, `None` removes it."""
        updater: WeightUpdaterBase | None = self._publisher.updater
        return updater

    @weight_updater.setter
    def weight_updater(self, updater: Any) -> None:
        self.collection.access.require_open()
        if isinstance(updater, type) and issubclass(updater, WeightUpdaterBase):
            updater = updater.from_policy(self._publisher.policy) or updater()
        elif not isinstance(updater, WeightUpdaterBase) and callable(updater):
            updater = updater()
        if isinstance(updater, WeightUpdaterBase):
            updater.register_collector(self)
        elif updater is not None:
            expected = "an instance or subclass of WeightUpdaterBase, or a callable that makes an instance"
            raise TypeError(f"weight_updater is of type {type(updater).__name__}; give {expected}")
        self._publisher.updater = updater

    def init_updater(self, *args: Any, **kwargs: Any) -> None:
        """Call `init` of the weight updater; without one do nothing."""
        self.collection.access.require_open()
        if self._publisher.updater is not None:
            self._publisher.updater.init(*args, **kwargs)

    def increment_version(self) -> int:
        """Publish the newest weights again under the next version, and return it."""
        return self._publisher.publish({})

    @property
    def policy_version(self) -> int:
        """Return the newest published version; 0 at construction."""
        return self.collection.version

    def get_policy_version(self) -> int:
        """Return `policy_version`."""
        return self.collection.version

    def _begin_weights(self, options: AnyOptions) -> None:
        """Set up the updater, sending and receiving schemes, and the first weights of workers.

        Raises:
            TypeError: neither an updater nor schemes.
            ValueError: automatic updates have nothing to publish.
        """
        publisher = self._publisher = PUBLISHERS[self] = WeightPublisher(self.collection, options.policy)
        publisher.initialize()
        self.weight_updater = options.weight_updater
        for model_id, scheme in require_schemes("weight_sync_schemes", options.weight_sync_schemes).items():
            scheme.init_on_sender(model_id=model_id, context=self)
        if options.automatic != Automatic() and not publisher.has_source():
            raise ValueError(
                "automatic updates of weights have no source: give a policy, an updater, or a scheme's weights"
            )
        publisher.begin()
        if options.weight_recv_schemes is not None:
            self.register_scheme_receiver(options.weight_recv_schemes)

    def _receive_registered(self) -> None:
        self._publisher.receive()

    def _require_ready(self) -> None:
        self._background.raise_error()
        self.collection.access.require_open()
