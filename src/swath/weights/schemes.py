"""Weight sync schemes: each names one model of a collector, and the source of its weights.

    sender: in `weight_sync_schemes` of a collector, whose updates go to that collector's channel ──▶ its workers
    reader: a copy of a sender, in `weight_recv_schemes` of another collector of the same process

A scheme does not choose how weights travel, and sends none by itself.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from swath.errors import warn_of_no_effect
from swath.options import one_of
from swath.weights.snapshot import POLICY, Flat, Snapshot, flat_weights, nest_weights, plan_update, replace_tensors

Form = Literal["tensordict", "state_dict"]


class WeightStrategy:
    """Extracts weights from a model and copies them into one.

    Args:
        extract_as: `"tensordict"` for nest_weights TensorDicts, `"state_dict"` for a dict with dotted names.

    Raises:
        ValueError: another form.
    """

    def __init__(self, extract_as: Form = "tensordict") -> None:
        one_of("strategy", extract_as, Form)
        self.extract_as = extract_as

    def extract_weights(self, source: Any) -> Any:
        """Return the weights themselves, not copies, without gradients.

        A TensorDict has a module's extra state under `"__extra_state__"`, as non-tensor data; a `state_dict` has it
        under torch's name.

        Args:
            source: a module, a TensorDict, or a dict, nested or dotted.

        Raises:
            TypeError: another source.
        """
        return self._to_form(flat_weights(source))

    def copied(self, snapshot: Snapshot) -> Any:
        """Return copies of the weights of a snapshot in this form."""
        tensors = {name: tensor.clone() for name, tensor in snapshot.tensors().items()}
        return self._to_form({**tensors, **snapshot.extras})

    def apply_weights(self, destination: Any, weights: Any, inplace: bool = True) -> None:
        """Copy weights into a model, all or nothing.

        Args:
            destination: a module, a TensorDict, or a dict, nested or dotted.
            weights: a module, a TensorDict, or a dict; names as in `update_policy_weights_`.
            inplace: whether the destination's tensors get the values; false puts new tensors in their place. A module's
                parameters stay parameters.

        Raises:
            TypeError: not weights.
            KeyError: a parameter is missing or a name unknown.
            ValueError: another shape, or a dtype that is not cast.
        """
        if not inplace:
            replace_tensors(destination)
        plan_update(destination, weights)()

    def _to_form(self, flat: Flat) -> Any:
        return OrderedDict(flat) if self.extract_as == "state_dict" else nest_weights(flat)


PUBLISHERS: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""The `WeightPublisher` of each collector of this process, by its key."""

HOW_TO_CONNECT = (
    "schemes connect collectors of one process (weight_sync_schemes= sends, a copy in weight_recv_schemes= receives); "
    "elsewhere call update_policy_weights_() of the collector that is to have the weights"
)


class WeightSyncScheme:
    """Brings weights to one model of a collector. Its methods may be called from any thread.

    A copy of a sender, made once a collector has it, is a reader of the same weights: give it to another collector of
    this process as one of its `weight_recv_schemes`.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights; the snapshot is the same.

    Attributes:
        strategy: the form in which readers get weights.
        model_id: id of the model; `None` before it is known.
        worker_idx: index of a reader's collector in a larger one; `None` if it has none.
        initialized_on_sender: whether it is a sender.
        initialized_on_receiver: whether it is a reader of a collector.

    Raises:
        ValueError: another strategy.
    """

    sends: ClassVar[bool] = True
    """Whether updates of the model publish anything."""

    _context: Callable[[], Any] | None
    _model: Callable[[], Any] | None

    def __init__(self, strategy: Form = "tensordict") -> None:
        self.strategy = WeightStrategy(strategy)
        self._read_from: tuple[str, str] | None = None
        self._last_serial = 0
        self.shutdown()

    def shutdown(self) -> None:
        """Disconnect from collector and model. A second call does nothing."""
        self.model_id: str | None = None
        self.worker_idx: int | None = None
        self.initialized_on_sender = self.initialized_on_receiver = False
        self._context = self._model = self._weights = None

    @staticmethod
    def from_backend(name: str, **keywords: Any) -> WeightSyncScheme:
        """Return a scheme for a backend.

        Args:
            name: `"none"` or `"direct"`, `"shared"` or `"thread"`, `"process"` or `"multiprocessing"`, `"ray"`.
            **keywords: keywords of the scheme's class.

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
        **unsupported: Any,
    ) -> None:
        """Set the source of the weights, and the collector that sends them. Collectors set themselves.

        Args:
            model_id: id of the model; `"policy"` by default.
            context: the collector; a weak reference is kept.
            model: the module whose weights are sent when none are passed; a weak reference is kept.
            weights: sent when none are passed, instead of a model's.
            **unsupported: `devices` and `num_workers` have no effect: a collector knows where its workers are. Others
                belong to schemes that send without a collector, and raise.

        Raises:
            RuntimeError: this is a reader, or serves another collector, or is to send without one.
            TypeError: `context` is no collector.
            ValueError: two sources, or another model than before.
        """
        if refused := unsupported.keys() - {"devices", "num_workers"}:
            raise RuntimeError(f"init_on_sender() takes no {', '.join(sorted(refused))}: {HOW_TO_CONNECT}")
        if any(value is not None for value in unsupported.values()):
            warn_of_no_effect(f"init_on_sender({', '.join(unsupported)})", "a collector knows where its workers are")
        if self._read_from is not None or self.initialized_on_receiver:
            raise RuntimeError("this scheme is a receiver; make another one to send with")
        if model is not None and weights is not None:
            raise ValueError("model and weights are both given; a scheme has one source of weights")
        served = model_id or self.model_id or POLICY
        if self.model_id not in (None, served):
            raise ValueError(f"this scheme serves {self.model_id!r} and cannot serve {served!r}; make one for each")
        if context is not None:
            if self.context not in (None, context):
                raise RuntimeError("this scheme serves another collector; make one for each")
            _require_publisher(context).attach(served, self)
            self._context = weakref.ref(context)
        if model is not None or weights is not None:
            self._model, self._weights = None if model is None else weakref.ref(model), weights
        self.model_id, self.initialized_on_sender = served, True

    def init_on_receiver(self, *, model_id: str, context: Any, worker_idx: int | None = None) -> None:
        """Register as a reader of a collector, as one of its `weight_recv_schemes`.

        Args:
            model_id: id of the collector's model.
            context: the collector; a weak reference is kept.
            worker_idx: its index in a larger collector, if it has one.

        Raises:
            RuntimeError: it is a sender in this process, or a copy of a sender in another process.
            TypeError: `context` is no collector.
        """
        if self.initialized_on_sender:
            raise RuntimeError("this scheme is a sender in this process; receive with a copy of it, as copy.copy gives")
        _require_publisher(context)
        if self.sends:
            self._sender()
        self.model_id, self.worker_idx, self._context = model_id, worker_idx, weakref.ref(context)
        self.initialized_on_receiver = True

    def take_newest(self) -> Any:
        """Return the newest weights of the sender that were not taken yet, in the form of the strategy, or `None`.

        Raises:
            RuntimeError: the sender cannot be reached, or was shut down.
        """
        if not self.sends:
            return None
        sender, model_id = self._sender()
        newest = sender.newest(model_id, self.worker_idx, self._last_serial)
        if newest is None:
            return None
        self._last_serial, snapshot = newest
        return self.strategy.copied(snapshot)

    def send(self, *_args: Any, **_keywords: Any) -> Any:
        """Raise `NotImplementedError`: collectors move weights."""
        raise NotImplementedError(f"a scheme moves no weights by itself: {HOW_TO_CONNECT}")

    receive = connect = create_transport = send

    def apply_weights(self, weights: Any, inplace: bool = True) -> None:
        """Publish weights on the reader's collector. May be overridden.

        Args:
            weights: weights in the form of the strategy.
            inplace: must be true.

        Raises:
            RuntimeError: no collector has this scheme as a reader.
            KeyError, ValueError: they do not fit, or `inplace=False`.
        """
        if not inplace:
            raise ValueError("inplace=False: a collector copies values into the tensors that it has; leave it out")
        if not self.initialized_on_receiver:
            raise RuntimeError(f"this scheme serves no collector: {HOW_TO_CONNECT}")
        _require_publisher(self.context).publish({self.model_id: weights})

    def prepare_weights(self, weights: Any, model_id: str, strategy: WeightStrategy, context: Any = None) -> Any:  # noqa: ARG002
        """Map weights before the snapshot is taken; by default they stay. May be overridden."""
        return weights

    @property
    def context(self) -> Any:
        """Return the collector; `None` if there is none, or it no longer exists."""
        return None if self._context is None else self._context()

    @property
    def model(self) -> Any:
        """Return the source model; `None` if there is none, or it no longer exists."""
        return None if self._model is None else self._model()

    @property
    def source(self) -> Any:
        """Return the model or weights for updates without weights; `None` if there are none."""
        return self.model if self._weights is None else self._weights

    @property
    def weights(self) -> Any:
        """Return the source weights, or the present weights of the source model, or `None`."""
        return self._weights if self.model is None else self.strategy.extract_weights(self.model)

    @property
    def read_from(self) -> tuple[str, str] | None:
        """Return the key of the publisher and the model that copies of this scheme read, if any."""
        publisher = publisher_of(self.context) if self.initialized_on_sender else None
        return self._read_from if publisher is None else (publisher.key, self.model_id or POLICY)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without connections; a copy of a sender reads from it."""
        state = {name: value for name, value in vars(self).items() if name not in ("_context", "_model", "_weights")}
        return {**state, "_last_serial": 0, "_read_from": self.read_from}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the state of a copy, which is not connected yet."""
        vars(self).update(state)
        self.shutdown()

    def __repr__(self) -> str:
        """Return a status line."""
        sender = "sender" if self.initialized_on_sender else "not in use"
        return f"<{type(self).__name__} of {self.model_id!r}: {'receiver' if self.initialized_on_receiver else sender}>"

    def _sender(self) -> tuple[Any, str]:
        """Return the publisher and the model to read.

        Raises:
            RuntimeError: there is none in this process.
        """
        key, model_id = self._read_from or ("", "")
        publisher = PUBLISHERS.get(key)
        if publisher is None:
            raise RuntimeError(
                f"this is no copy of a scheme that a collector of this process sends with: {HOW_TO_CONNECT}"
            )
        return publisher, model_id


class RayWeightSyncScheme(WeightSyncScheme):
    """Brings weights to one model.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights.
        backend: has no effect, because there are no process groups.
    """

    def __init__(self, strategy: Form = "tensordict", backend: str = "gloo") -> None:
        super().__init__(strategy)
        if backend != "gloo":
            warn_of_no_effect(f"backend={backend!r}", "weights travel by Ray's object store")


class SharedMemWeightSyncScheme(WeightSyncScheme):
    """Brings weights to one model.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights.
        sync: with both values updates wait for no worker; `update_policy_weights_(wait=True)` does.
        per_worker_weights: both values allow `{worker: weights}`.
    """

    def __init__(self, strategy: Form = "tensordict", sync: bool = True, per_worker_weights: bool = False) -> None:
        super().__init__(strategy)
        self.sync, self.per_worker_weights = sync, per_worker_weights


class MultiProcessWeightSyncScheme(SharedMemWeightSyncScheme):
    """Brings weights to one model.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights.
        sync: with both values updates wait for no worker; `update_policy_weights_(wait=True)` does.
    """

    def __init__(self, strategy: Form = "tensordict", sync: bool = True) -> None:
        super().__init__(strategy, sync)


MultiProcessedWeightSyncScheme = MultiProcessWeightSyncScheme


class NoWeightSyncScheme(WeightSyncScheme):
    """Brings no weights: updates of its model publish nothing, and the version stays.

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
"""Schemes by the name of a backend."""


def require_schemes(name: str, schemes: Any) -> dict[str, WeightSyncScheme]:
    """Check schemes and return them in a new dict, which is empty for `None`.

    Raises:
        TypeError: not a dict of schemes by model.
        ValueError: one scheme for two models.
    """
    if schemes is None:
        return {}
    items = schemes.items() if isinstance(schemes, Mapping) else [(None, schemes)]
    if not all(isinstance(model_id, str) and isinstance(scheme, WeightSyncScheme) for model_id, scheme in items):
        raise TypeError(f"{name}={schemes!r}: give a dict of schemes by model id, as 'policy'")
    if len({id(scheme) for scheme in schemes.values()}) < len(schemes):
        raise ValueError(f"{name} has one scheme for several models; make one for each")
    return dict(schemes)


def publisher_of(collector: Any) -> Any:
    """Return the `WeightPublisher` of a collector; `None` without a collector, or for an object that imitates one."""
    return getattr(getattr(collector, "collection", None), "weights", None)


def _require_publisher(context: Any) -> Any:
    publisher = publisher_of(context)
    if publisher is None:
        raise TypeError(f"context is of type {type(context).__name__}; it must be a collector")
    return publisher
