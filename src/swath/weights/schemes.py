"""Weight sync schemes: each names one model of a collector, and where its weights come from.

    sender: of a collector's `weight_sync_schemes` ── send ──▶ that collector's channel ──▶ its workers
    reader: a copy of a sender, in `weight_recv_schemes` of another collector of the same process

A scheme chooses names, and nothing of how weights travel.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeAlias

from tensordict import TensorDict

from swath.errors import Closed, warn_of_no_effect
from swath.options import one_of
from swath.weights.snapshot import EXTRA_STATE, POLICY, Flat, Snapshot, flat_weights, is_extra, owner, plan, renew

Form = Literal["tensordict", "state_dict"]


class WeightStrategy:
    """How weights are taken out of a model and put into one.

    Args:
        extract_as: `"tensordict"` for nested TensorDicts, `"state_dict"` for a dict with dotted names.

    Raises:
        ValueError: another form.
    """

    def __init__(self, extract_as: Form = "tensordict") -> None:
        one_of("strategy", extract_as, Form)
        self.extract_as = extract_as

    def extract_weights(self, source: Any) -> Any:
        """The weights themselves, not copies, without gradients.

        Extra state of a module is under `"__extra_state__"` beside its weights, as non-tensor data; in a `state_dict`
        it has the name that torch gives it.

        Args:
            source: a module, a TensorDict, or a dict, nested or dotted.

        Raises:
            TypeError: anything else.
        """
        return self._formed(flat_weights(source))

    def copied(self, snapshot: Snapshot) -> Any:
        """The weights of a snapshot in this form, copies."""
        tensors = {name: tensor.clone() for name, tensor in snapshot.tensors().items()}
        return self._formed({**tensors, **snapshot.extras})

    def apply_weights(self, destination: Any, weights: Any, inplace: bool = True) -> None:
        """Copy weights into a model, all or nothing.

        Args:
            destination: a module, a TensorDict, or a dict, nested or dotted.
            weights: a module, a TensorDict, or a dict; names as in `update_policy_weights_`.
            inplace: whether the tensors there get the values; false puts new tensors in their place. A module's
                parameters stay parameters.

        Raises:
            TypeError: not weights.
            KeyError: a parameter is missing or a name unknown.
            ValueError: another shape, or a dtype that is not cast.
        """
        if not inplace:
            renew(destination)
        plan(destination, weights)()

    def __repr__(self) -> str:
        """As it is built."""
        return f"WeightStrategy(extract_as={self.extract_as!r})"

    def _formed(self, flat: Flat) -> Any:
        if self.extract_as == "state_dict":
            return OrderedDict(flat)
        nested = TensorDict({})
        for name, value in flat.items():
            if is_extra(name):
                nested.set_non_tensor((*filter(None, owner(name).split(".")), EXTRA_STATE), value)
            else:
                nested.set(tuple(name.split(".")), value)
        return nested


Ref: TypeAlias = Callable[[], Any]

PUBLISHERS: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
"""By collector of this process, its `WeightPublisher`: what publishes its weights."""

BY_COLLECTORS = (
    "schemes connect collectors of one process (weight_sync_schemes= sends, a copy in weight_recv_schemes= receives); "
    "elsewhere call update_policy_weights_() of the collector that is to have the weights"
)


class WeightSyncScheme:
    """Serves one model of a collector with weights. Its methods may be called from any thread.

    A copy of a sender, made once a collector has it, is a reader of the same weights: give it to another collector of
    this process as one of its `weight_recv_schemes`.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights; the snapshot is the same.

    Attributes:
        strategy: in which form readers get weights.
        model_id: of the model that is served; `None` before it is known.
        worker_idx: index of a reader's collector in a larger one; `None` if it has none.
        initialized_on_sender: whether it is a sender.
        initialized_on_receiver: whether it is a reader of a collector.

    Raises:
        ValueError: another strategy.
    """

    sends: ClassVar[bool] = True
    """Whether updates of the model publish anything."""

    sync: bool = False
    """Whether `send` waits for the workers."""

    def __init__(self, strategy: Form = "tensordict") -> None:
        self.strategy = WeightStrategy(strategy)
        self._read: tuple[str, str] | None = None
        self._seen = 0
        self.shutdown()

    def shutdown(self) -> None:
        """Forget whom it serves. Twice is fine."""
        self.model_id: str | None = None
        self.worker_idx: int | None = None
        self.initialized_on_sender = self.initialized_on_receiver = False
        self._context: Ref = _nothing
        self._model: Ref = _nothing
        self._weights: Any = None

    @staticmethod
    def from_backend(name: str, **keywords: Any) -> WeightSyncScheme:
        """The scheme for a place where workers live.

        Args:
            name: `"none"` or `"direct"`, `"shared"` or `"thread"`, `"process"` or `"multiprocessing"`, `"ray"`.
            **keywords: of the scheme's class.

        Raises:
            ValueError: another name.
        """
        if name not in _BACKENDS:
            raise ValueError(f"backend={name!r} must be one of {', '.join(map(repr, _BACKENDS))}")
        return _BACKENDS[name](**keywords)

    def init_on_sender(
        self,
        *,
        model_id: str | None = None,
        context: Any = None,
        model: Any = None,
        weights: Any = None,
        devices: Any = None,
        num_workers: int | None = None,
        **elsewhere: Any,
    ) -> None:
        """Say where the weights come from, and which collector sends them. A collector does the second itself.

        Args:
            model_id: of the model; `"policy"` by default.
            context: the collector; a weak reference is kept.
            model: the module whose weights are sent when none are passed; a weak reference is kept.
            weights: what is sent then instead.
            devices: has no effect: a collector knows where its workers are.
            num_workers: has no effect likewise.
            **elsewhere: of schemes that send without a collector: refused.

        Raises:
            RuntimeError: this is a reader, or serves another collector, or is to send without one.
            TypeError: `context` is no collector.
            ValueError: two sources, or another model than before.
        """
        if elsewhere:
            raise RuntimeError(f"init_on_sender() takes no {', '.join(elsewhere)}: {BY_COLLECTORS}")
        if (devices, num_workers) != (None, None):
            warn_of_no_effect(f"{devices=}, {num_workers=}", "a collector knows where its workers are")
        if self._read is not None or self.initialized_on_receiver:
            raise RuntimeError("this scheme is a receiver; make another one to send with")
        if model is not None and weights is not None:
            raise ValueError("model and weights are both given; a scheme has one source of weights")
        served = model_id or self.model_id or POLICY
        if self.model_id not in (None, served):
            raise ValueError(f"this scheme serves {self.model_id!r} and cannot serve {served!r}; make one for each")
        if context is not None:
            if self.context not in (None, context):
                raise RuntimeError("this scheme serves another collector; make one for each")
            _required(context).attach(served, self)
            self._context = weakref.ref(context)
        if model is not None or weights is not None:
            self._model, self._weights = _nothing if model is None else weakref.ref(model), weights
        self.model_id, self.initialized_on_sender = served, True

    def init_on_receiver(self, *, model_id: str, context: Any, worker_idx: int | None = None) -> None:
        """Be a reader for a collector, as one of its `weight_recv_schemes`.

        Args:
            model_id: of the collector's model.
            context: the collector; a weak reference is kept.
            worker_idx: its index in a larger collector, if it has one.

        Raises:
            RuntimeError: it is a sender in this process, or what it is a copy of sends in another one.
            TypeError: `context` is no collector.
        """
        if self.initialized_on_sender:
            raise RuntimeError("this scheme is a sender in this process; receive with a copy of it, as copy.copy gives")
        _required(context)
        if self.sends:
            self._sender()
        self.model_id, self.worker_idx, self._context = model_id, worker_idx, weakref.ref(context)
        self.initialized_on_receiver = True

    def send(self, weights: Any = None, worker_ids: Any = None) -> None:
        """Publish weights to the collector's workers; values are read before this returns.

        With `sync` wait until the workers run them, at most the collector's `fragment_timeout_s`.

        Args:
            weights: as in `update_policy_weights_`; `None` for the scheme's model or weights, or those of the
                collector's policy.
            worker_ids: whom they are for; by default for all.

        Raises:
            RuntimeError: no collector has this scheme as a sender, or there are no weights.
            Closed: its collector was shut down.
            WorkerLate: a worker does not run them in time; they are published all the same.
            TypeError, KeyError, ValueError: they do not fit; nothing is published.
        """
        publisher = self._publisher(serves=self.initialized_on_sender)
        if self.sends:
            publisher.publish({self.model_id: weights}, worker_ids)
            if self.sync:
                publisher.wait(worker_ids, None)

    def receive(self) -> Any:
        """Bring the newest weights that were not seen yet into the reader's collector, and return them.

        Returns:
            A TensorDict or a `state_dict`, as the strategy says; `None` if there is nothing newer.

        Raises:
            RuntimeError: no collector has this scheme as a reader, or the sender's was shut down.
            KeyError, ValueError: the weights do not fit; they are not tried again.
        """
        self._publisher(serves=self.initialized_on_receiver)
        sender, model_id = self._sender() if self.sends else (None, "")
        newest = None if sender is None else sender.newest(model_id, self.worker_idx, self._seen)
        if newest is None:
            return None
        self._seen, snapshot = newest
        weights = self.strategy.copied(snapshot)
        self.apply_weights(weights)
        return weights

    def connect(self, **keywords: Any) -> None:  # noqa: ARG002  it is refused, whatever they are
        """Not here.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"connect() is done by collectors: {BY_COLLECTORS}")

    def create_transport(self, **keywords: Any) -> Any:
        """Not here.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("there are no transports to choose: weights travel by the collector's channel")

    def apply_weights(self, weights: Any, inplace: bool = True) -> None:
        """Bring weights into the reader's collector, and on to its workers. May be overridden.

        Args:
            weights: what `receive` returns.
            inplace: must be true.

        Raises:
            RuntimeError: no collector has this scheme as a reader.
            KeyError, ValueError: they do not fit, or `inplace=False`.
        """
        if not inplace:
            raise ValueError("inplace=False: a collector copies values into the tensors that it has; leave it out")
        self._publisher(serves=self.initialized_on_receiver).publish({self.model_id: weights})

    def prepare_weights(self, weights: Any, model_id: str, strategy: WeightStrategy, context: Any = None) -> Any:  # noqa: ARG002
        """Map weights before the snapshot is taken. May be overridden; here they stay as they are."""
        return weights

    @property
    def context(self) -> Any:
        """The collector; `None` if there is none, or not any more."""
        return self._context()

    @property
    def model(self) -> Any:
        """The model that was given; `None` if there was none, or is not any more."""
        return self._model()

    @property
    def source(self) -> Any:
        """The model or weights that a collector fetches where none are given; `None` if it has none."""
        return self.model if self._weights is None else self._weights

    @property
    def weights(self) -> Any:
        """The weights that were given, or those that the model has now, or `None`."""
        return self._weights if self.model is None else self.strategy.extract_weights(self.model)

    @property
    def read_from(self) -> tuple[str, str] | None:
        """Which collector, by the key of its publisher, and which model copies of this scheme read, if any."""
        publisher = publisher_of(self.context) if self.initialized_on_sender else None
        return self._read if publisher is None else (publisher.key, self.model_id or POLICY)

    def __getstate__(self) -> dict[str, Any]:
        """All but whom it serves. A copy of a sender reads what that sends."""
        kept = {name: value for name, value in vars(self).items() if name not in ("_context", "_model", "_weights")}
        return {**kept, "_seen": 0, "_read": self.read_from}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Be a copy that serves nobody yet."""
        vars(self).update(state)
        self.shutdown()

    def __repr__(self) -> str:
        """A status line."""
        sender = "sender" if self.initialized_on_sender else "not in use"
        return f"<{type(self).__name__} of {self.model_id!r}: {'receiver' if self.initialized_on_receiver else sender}>"

    def _publisher(self, *, serves: bool) -> Any:
        """What publishes the weights of the collector that it serves."""
        if not serves or self._context is _nothing:
            raise RuntimeError(f"this scheme serves no collector: {BY_COLLECTORS}")
        publisher = publisher_of(self.context)
        if publisher is None:
            raise Closed("the collector of this scheme is gone; make another scheme")
        return publisher

    def _sender(self) -> tuple[Any, str]:
        """The publisher of the collector whose weights are read, and of which model.

        Raises:
            RuntimeError: there is none in this process, or it was shut down.
        """
        key, model_id = self._read or (None, "")
        for publisher in list(PUBLISHERS.values()):
            if publisher.key == key:
                return publisher, model_id
        raise RuntimeError(f"this is no copy of a scheme that a collector of this process sends with: {BY_COLLECTORS}")


class RayWeightSyncScheme(WeightSyncScheme):
    """Serves one model.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights.
        backend: has no effect: there are no process groups.
    """

    def __init__(self, strategy: Form = "tensordict", backend: str = "gloo") -> None:
        super().__init__(strategy)
        if backend != "gloo":
            warn_of_no_effect(f"backend={backend!r}", "weights travel by Ray's object store")


class SharedMemWeightSyncScheme(WeightSyncScheme):
    """Serves one model; `send` waits for the workers unless `sync=False`.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights.
        sync: whether `send` waits until the collector's workers run the weights.
        per_worker_weights: both values allow `{worker: weights}`.
    """

    def __init__(self, strategy: Form = "tensordict", sync: bool = True, per_worker_weights: bool = False) -> None:
        super().__init__(strategy)
        self.sync, self.per_worker_weights = sync, per_worker_weights


class MultiProcessWeightSyncScheme(SharedMemWeightSyncScheme):
    """Serves one model; `send` waits for the workers unless `sync=False`.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights.
        sync: whether `send` waits until the collector's workers run the weights.
    """

    def __init__(self, strategy: Form = "tensordict", sync: bool = True) -> None:
        super().__init__(strategy, sync)


MultiProcessedWeightSyncScheme = MultiProcessWeightSyncScheme


class NoWeightSyncScheme(WeightSyncScheme):
    """Serves one model with nothing: updates of it publish nothing, and the version stays.

    Args:
        strategy: `"tensordict"` or `"state_dict"`.
    """

    sends: ClassVar[bool] = False


_BACKENDS: Mapping[str, type[WeightSyncScheme]] = {
    "none": NoWeightSyncScheme,
    "direct": NoWeightSyncScheme,
    "shared": SharedMemWeightSyncScheme,
    "thread": SharedMemWeightSyncScheme,
    "process": MultiProcessWeightSyncScheme,
    "multiprocessing": MultiProcessWeightSyncScheme,
    "ray": RayWeightSyncScheme,
}
"""Schemes by the place where workers live."""


def require_schemes(name: str, schemes: Any) -> dict[str, WeightSyncScheme]:
    """The same as a new dict; empty for `None`.

    Raises:
        TypeError: not a dict of schemes by model.
        ValueError: one scheme for two models.
    """
    if schemes is None:
        return {}
    given = schemes.items() if isinstance(schemes, Mapping) else [(None, schemes)]
    if not all(isinstance(model_id, str) and isinstance(scheme, WeightSyncScheme) for model_id, scheme in given):
        raise TypeError(f"{name}={schemes!r}: give a dict of schemes by model id, as 'policy'")
    if len({id(scheme) for scheme in schemes.values()}) < len(schemes):
        raise ValueError(f"{name} has one scheme for several models; make one for each")
    return dict(schemes)


def publisher_of(collector: Any) -> Any:
    """What publishes a collector's weights; `None` without a collector, or for something that only acts as one."""
    return None if collector is None else PUBLISHERS.get(collector)


def _required(context: Any) -> Any:
    publisher = publisher_of(context)
    if publisher is None:
        raise TypeError(f"context is of type {type(context).__name__}; it must be a collector")
    return publisher


def _nothing() -> None:
    """A reference to nothing."""
