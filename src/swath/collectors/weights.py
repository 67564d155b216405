"""How weights come into a collector: the methods that all of them have, and the one way on which all of them go.

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
from swath.weights.snapshot import POLICY, Manifest, Snapshot, initialize, plan, snapshot_of, take, uninitialized
from swath.weights.updaters import WeightUpdaterBase


@dataclass
class Publication:
    """What becomes one version.

    Attributes:
        version: the number that it has, or will have.
        models: checked copies by worker and model, `None` for a model without weights; under `None` for all workers.
        also: changes of tensors of this process, which may be those of the policy that acts.
        newest: the last snapshot of each model, which workers share that get the same values.
    """

    version: int
    models: dict[int | None, dict[str, Snapshot | None]] = field(default_factory=dict)
    also: list[Callable[[], None]] = field(default_factory=list)
    newest: dict[str, Snapshot] = field(default_factory=dict)

    def add(self, model_id: str, worker: int | None, item: Snapshot | None) -> None:
        """Publish this, too, instead of what was to be published of the same model for the same workers."""
        if item is not None:
            before = self.newest.get(model_id)
            item = self.newest[model_id] = before if before is not None and before.equals(item) else item
        for own in self.models.values() if worker is None else ():
            own.pop(model_id, None)
        self.models.setdefault(worker, {})[model_id] = item


class WeightPublisher:
    """Publishes the weights of one collector. Any thread may use it; versions are in the order of publications.

    Weights are copied, and checked here against what the workers' models need.

    Args:
        collection: the collection and its workers.
        policy: the user's own policy, whose weights are fetched where none are given; `None` with a factory alone.

    Attributes:
        updater: the collector's weight updater, if it has one.
        schemes: that send, by model.
        receivers: schemes that weights are taken from, by model.
    """

    def __init__(self, collection: CollectorService, policy: Any) -> None:
        self.policy = policy
        self.updater: Any = None
        self.schemes: dict[str, WeightSyncScheme] = {}
        self.receivers: dict[str, WeightSyncScheme] = {}
        self._group = collection.group
        self._access, self._jobs = collection.access, collection.jobs
        self._here = collection.member
        self._manifests: dict[str, Manifest] = {}
        self._receiving, self._mine = threading.RLock(), threading.local()

    @property
    def key(self) -> str:
        """Names the collector for those who read its weights; empty when nobody can any more."""
        return "" if self._access.halted else self._jobs.key

    def initialize(self) -> None:
        """Give lazy layers of the user's policy, and those of all workers, what the first worker has initialised.

        Raises:
            KeyError: weights of other names.
            ValueError: layers that the policy does not call when it acts.
        """
        if not (isinstance(self.policy, nn.Module) and uninitialized(self.policy)):
            return
        weights = snapshot_of(self._group.call_first("get_model", POLICY))
        initialize(self.policy, weights)
        plan(self.policy, weights)()
        if self._here is None:
            self._group.channel.publish({POLICY: weights}, version=0)

    def begin(self) -> None:
        """Let workers begin with what the schemes have; the first request brings it.

        It is version 0, the state at construction. Weights of a policy that is built in this process are there already.
        """
        built_there = self._jobs.requests[0].options.policy_factory is not None
        first = {
            model_id: self._item(model_id, source)
            for model_id, scheme in self.schemes.items()
            if scheme.sends and (built_there or model_id != POLICY) and (source := self._source(model_id)) is not None
        }
        if first:
            self._group.channel.publish(first, version=0)

    def attach(self, model_id: str, scheme: WeightSyncScheme) -> None:
        """A scheme serves this model from now on.

        Raises:
            RuntimeError: another one does, or the policy itself acts.
        """
        if self._here is not None:
            raise RuntimeError("in this process the policy itself acts; no scheme sends: call update_policy_weights_()")
        if self.schemes.setdefault(model_id, scheme) is not scheme:
            raise RuntimeError(f"another scheme serves {model_id!r} of this collector already; use that one")
        if scheme.sends:
            self._learn(model_id)

    def require_models(self, *model_ids: str) -> None:
        """Raise `KeyError` for models that cannot be updated."""
        known = {POLICY, *self.schemes}
        if unknown := sorted({*model_ids} - known):
            raise KeyError(f"no model {unknown}; known are {sorted(known)}")

    def publish(self, given: Mapping[str, Any], worker_ids: Any = None, also: Callable[[], None] | None = None) -> int:
        """Weights by model as one version, all or nothing.

        Args:
            given: modules, TensorDicts, dicts; `None` for what is to be fetched; `{worker: weights}` for some workers.
            worker_ids: whom it is for; the others keep what they have.
            also: changes tensors of this process, between two fragments.

        Returns:
            The version; within `one_version` that which it will be.

        Raises:
            RuntimeError: there is nothing to fetch.
            TypeError, KeyError, ValueError: weights do not fit, or there is no such worker.
        """
        self._access.require_open()
        workers: Sequence[int | None] = self.addressed(worker_ids) or [None]
        sources = {model_id: given[model_id] for model_id in given if self._sends(model_id)}
        if given and not sources:
            return self._group.channel.version
        items: list[tuple[str, int | None, Snapshot | None]] = []
        for model_id, source in sources.items():
            if not _by_worker(source):
                item = self._item(model_id, source)
                items += [(model_id, worker, item) for worker in workers]
            elif worker_ids is not None:
                raise ValueError("{worker: weights} names the workers: publish it without worker_ids")
            elif unknown := sorted(set(source) - set(self._workers)):
                raise ValueError(f"weights are for the workers {unknown}; this collector has {self._workers} only")
            else:
                items += [(model_id, worker, self._item(model_id, own)) for worker, own in source.items()]
        kept = getattr(self._mine, "kept", None)
        with self.one_version() if kept is None else nullcontext(kept) as publication:
            if not items:  # another version of the same weights
                publication.models.setdefault(None, {})
            for one in items:
                publication.add(*one)
            publication.also += [] if also is None else [also]
        return publication.version

    @contextmanager
    def one_version(self) -> Iterator[Publication]:
        """What this thread publishes within becomes one version at the end; nothing does after an exception.

        Raises:
            Closed: the collector was shut down.
        """
        self._access.require_open()
        outer, made = getattr(self._mine, "kept", None), Publication(self._group.channel.version + 1)
        self._mine.kept = made
        try:
            yield made
        finally:
            self._mine.kept = outer
        if made.models:
            made.version = self._group.channel.publish_each(made.models)
            for change in made.also:
                self._access.soon(change)

    def addressed(self, worker_ids: Any) -> list[int] | None:
        """Workers by index or by the device of their policies; `None` for all.

        Raises:
            TypeError: the one worker in this process is named, and there is no updater.
            ValueError: there is no such worker or device.
        """
        if worker_ids is None:
            return None
        if self._here is not None and self.updater is None:
            raise TypeError("worker_ids: a Collector in this process has one worker; leave it out")
        wanted = worker_ids if isinstance(worker_ids, list | tuple) else [worker_ids]
        if not wanted:
            raise ValueError(f"worker_ids={worker_ids!r} names nobody; workers are {self._workers}, None means all")
        return sorted({worker for one in wanted for worker in self._named(one)})

    def wait(self, worker_ids: Any, timeout_s: float | None) -> None:
        """Wait until these workers run what is meant for them now."""
        if self._here is not None:
            with self._access.control(timeout_s):
                return
        self._access.require_open()
        tickets = self._group.send(dict.fromkeys(self.addressed(worker_ids) or self._workers, ("touch",)))
        for worker, version in self._group.answers(tickets, timeout_s).items():
            self._group.workers[worker].version = version

    def progress(self) -> dict[int, tuple[int, int]]:
        """By worker that is not given up, its life and how many fragments it has made."""
        known, standings = self._group.workers, sorted(self._group.fleet.statuses().items())
        return {worker: (one.life, known[worker].fragments) for worker, one in standings if one.phase != "gone"}

    def has_source(self) -> bool:
        """Whether there are weights of the policy to publish where none are given, or none are needed."""
        if self.updater is not None:
            supplies: bool = self.updater.supplies
            return supplies
        return self._source(POLICY) is not None or self._manifest(POLICY).empty or not self._sends(POLICY)

    def fetched(self, model_id: str = POLICY) -> Any:
        """The weights of a scheme's source, or of the user's own policy; nothing for a model without weights.

        Raises:
            RuntimeError: there are none.
        """
        source = {} if self._manifest(model_id).empty else self._source(model_id)
        if source is None:
            raise RuntimeError(f"no weights of {model_id!r} to publish: pass weights, or give the collector a policy")
        return source

    def newest(self, model_id: str, worker: int | None, seen: int) -> tuple[int, Snapshot] | None:
        """What was published last for a worker, or for all, and its number; `None` if it was no later than `seen`."""
        return self._group.channel.newest(worker, model_id, seen)

    def receive_from(self, schemes: Mapping[str, WeightSyncScheme], collector: Any, worker_idx: int | None) -> None:
        """Make these receivers for the collector; those that had the same models are shut down.

        Raises:
            RuntimeError: one of them is a sender in this process; nothing is registered then.
        """
        with self._receiving:
            for model_id, scheme in schemes.items():
                scheme.init_on_receiver(model_id=model_id, context=collector, worker_idx=worker_idx)
                self._learn(model_id)
            self._group.receive, before = self.receive, list(self.receivers.values())
            self.receivers.update(schemes)
            for old in before:
                if old not in self.receivers.values():
                    old.shutdown()

    def receive(self) -> None:
        """Take the newest of each receiver, as one version; if there is nothing newer nothing happens.

        What one of them raises is raised when the others are taken: they bring what is newer only once.

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
                except Exception as error:  # noqa: BLE001  raised when the others are taken
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

    def _item(self, model_id: str, given: Any) -> Snapshot | None:
        """A copy; of the policy that acts itself there is nothing to copy."""
        scheme, source = self.schemes.get(model_id), self.fetched(model_id) if given is None else given
        if self._here is not None and source is self._here.module:
            return None
        if scheme is not None:
            source = scheme.prepare_weights(source, model_id, scheme.strategy, scheme.context)
        return take(source, self._manifest(model_id))

    def _named(self, who: Any) -> list[int]:
        if isinstance(who, int) and not isinstance(who, bool):
            if who in self._workers:
                return [who]
            raise ValueError(f"worker_ids={who}: there is no such worker; workers are {self._workers}")
        device = as_device("worker_ids", who)
        places = {worker: one.policy_device or torch.device("cpu") for worker, one in self._jobs.described.items()}
        if found := [worker for worker, place in places.items() if place == device]:
            return found
        raise ValueError(f"worker_ids={who!r}: no policy runs there; workers and devices are {places}")

    def _learn(self, model_id: str) -> None:
        """Ask what the weights of a model must look like, so that updates need not wait for the answer."""
        with suppress(AttributeError):  # a worker may have it later; an update says so if not
            self._manifest(model_id)

    def _manifest(self, model_id: str) -> Manifest:
        """What the weights of a model must look like, as the first worker that answers says."""
        if model_id == POLICY:
            return next(iter(self._jobs.described.values())).manifest
        if model_id not in self._manifests:
            self._manifests[model_id] = self._group.call_first("manifest_of", model_id)
        return self._manifests[model_id]


def _by_worker(weights: Any) -> bool:
    """Whether these are weights of their own for some workers.

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
    # What is done after shutdown, whatever that raises.
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
        are copied into the policy at once, or right after the running batch; there, within draws, the user's own
        module acts, so that without weights there is nothing to copy, and in the background a snapshot of it, which
        gets what the module has now. With a weight updater all this is the updater's business.

        Args:
            policy_or_weights: a module, a TensorDict, a dict of tensors, nested or as `state_dict()` gives, or
                `{worker: weights}`; `None` for the weights that the collector's own policy has now.
            weights: a TensorDict or dict.
            policy: a module.
            worker_ids: whom it is for: an int, a list of ints, a device, or a list of devices where policies run; not
                with one worker in this process.
            model_id: which model; `"policy"` by default.
            weights_dict: `{model_id: weights}`, all in one version.
            wait: return when every addressed worker that is up runs this version or a newer one.
            timeout_s: how long to wait, in seconds; `None` for `fragment_timeout_s`.
            policy_weights: the old name of the first argument.

        Raises:
            TypeError: not weights, or `worker_ids` where there is one worker.
            KeyError: names do not fit, or an unknown model.
            ValueError: shapes do not fit, two forms at once, or no such worker. In all cases nothing is published.
            RuntimeError: no weights, and nothing to fetch them from.
            WorkerLate: `wait`, and somebody does not run it in time; the weights are published all the same.
        """
        if policy_weights is not None:
            warn("policy_weights= is now policy_or_weights=", DeprecationWarning)
        forms = {"policy_or_weights": policy_or_weights, "policy_weights": policy_weights, "weights": weights}
        given = weights_of(model_id, {**forms, "policy": policy, "weights_dict": weights_dict})
        patience = deadline("timeout_s", timeout_s)
        self._require_ready()
        updater = self._publisher.updater
        if updater is None:
            self._publisher.require_models(*given)
            self._publisher.publish(given, worker_ids)
        else:
            if model_id is not None or weights_dict is not None:
                form, kind = "weights_dict" if model_id is None else "model_id", type(updater).__name__
                raise ValueError(f"{form} is given, but the weight updater {kind} serves the policy alone")
            self._publisher.addressed(worker_ids)
            with self._publisher.one_version():
                updater.push_weights(given[POLICY], worker_ids)
        if wait:
            self._publisher.wait(worker_ids, patience)

    def publish_weights(self, weights: Any, *, worker_ids: Any = None, model_id: str = POLICY) -> int:
        """Publish weights past any updater.

        Args:
            weights: as in `update_policy_weights_`.
            worker_ids: as there.
            model_id: which model.

        Returns:
            The version; within a push of an updater that which the push will be.
        """
        self._require_ready()
        self._publisher.require_models(model_id)
        return self._publisher.publish({model_id: weights}, worker_ids)

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Bring weights into this collector.

        With registered receivers: the newest of each; if there is nothing newer nothing happens, and nobody waits.
        Without: those that are passed, past any updater; or as `update_policy_weights_()`, and nothing happens if there
        is no source.

        Args:
            policy_or_weights: a module, a TensorDict or a dict.
            weights: a TensorDict or dict.
            policy: a module.

        Raises:
            ValueError: two sources, or one beside registered receivers.
            RuntimeError: a sender cannot be reached.
        """
        self.collection.access.require_open()
        given = weights_of(None, {"policy_or_weights": policy_or_weights, "weights": weights, "policy": policy})[POLICY]
        if self._publisher.receivers:
            if given is not None:
                raise ValueError("weights are given, but this collector takes its weights from registered receivers")
            self._publisher.receive()
        elif given is not None:
            self.publish_weights(given)
        elif self._publisher.updater is not None or self._publisher.has_source():
            self.update_policy_weights_()

    def register_scheme_receiver(
        self, weight_recv_schemes: Mapping[str, WeightSyncScheme], *, synchronize_weights: bool = True
    ) -> None:
        """Take weights from these schemes from now on: the newest of each at the start of every batch.

        Args:
            weight_recv_schemes: by model; one that was registered for the same model is shut down.
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
        """Delivers weights in its own way; an instance, a class or a callable can be assigned, `None` removes it."""
        updater: WeightUpdaterBase | None = self._publisher.updater
        return updater

    @weight_updater.setter
    def weight_updater(self, updater: Any) -> None:
        self.collection.access.require_open()
        made = updater
        if isinstance(updater, type) and issubclass(updater, WeightUpdaterBase):
            made = updater.from_policy(self._publisher.policy) or updater()
        elif not isinstance(updater, WeightUpdaterBase) and callable(updater):
            made = updater()
        if isinstance(made, WeightUpdaterBase):
            made.register_collector(self)
        elif made is not None:
            wanted = "an instance of a WeightUpdaterBase, a class of these, or a callable that makes one"
            raise TypeError(f"weight_updater is of type {type(made).__name__}; give {wanted}")
        self._publisher.updater = made

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
        """The newest version that was published; 0 at construction."""
        return self.collection.version

    def get_policy_version(self) -> int:
        """The same as `policy_version`."""
        return self.collection.version

    def _begin_weights(self, options: AnyOptions) -> None:
        """Set up the updater, schemes that send and that receive, and what workers begin with.

        Raises:
            TypeError: something that is neither.
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

    def _require_ready(self) -> None:
        self._background.raise_kept()
        self.collection.access.require_open()
