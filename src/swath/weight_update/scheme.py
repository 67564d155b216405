"""What all weight sync schemes have in common: each names one model of a collector, and where its weights come from.

    sender: of a collector's `weight_sync_schemes` ── send ──▶ that collector's channel ──▶ its workers
    reader: a copy of a sender, in `weight_recv_schemes` of another collector of the same process

A scheme chooses names, and nothing of how weights travel.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, TypeAlias

from swath.errors import Closed
from swath.weight_update.outlet import OUTLETS, Outlet, outlet_of
from swath.weight_update.strategy import Form, WeightStrategy
from swath.weights.snapshot import POLICY

BY_COLLECTORS = (
    "schemes connect collectors of one process (weight_sync_schemes= sends, a copy in weight_recv_schemes= receives); "
    "elsewhere call update_policy_weights_() of the collector that is to have the weights"
)


Ref: TypeAlias = Callable[[], Any]


def _nothing() -> None:
    """A reference to nothing."""


@dataclass(frozen=True)
class Side:
    """What a scheme was initialised as.

    Attributes:
        model_id: of the model.
        context: weak reference to the collector.
        model: weak reference to the module that weights are fetched from.
        weights: what they are instead.
        worker_idx: of a reader's collector in a larger one.
        sends: whether it is a sender.
    """

    model_id: str
    context: Ref = _nothing
    model: Ref = _nothing
    weights: Any = None
    worker_idx: int | None = None
    sends: bool = False


class Origin(NamedTuple):
    """What a reader reads.

    Attributes:
        collector: key of the collector that publishes it.
        model_id: of the model there.
    """

    collector: str
    model_id: str


class WeightSyncScheme:
    """Serves one model of a collector with weights. Its methods may be called from any thread.

    A copy of a sender, made once a collector has it, is a reader of the same weights: give it to another collector of
    this process as one of its `weight_recv_schemes`.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which readers get weights; the snapshot is the same.

    Raises:
        ValueError: another strategy.
    """

    sends: ClassVar[bool] = True
    """Whether updates of the model publish anything."""

    sync: bool = False
    """Whether `send` waits for the workers."""

    def __init__(self, strategy: Form = "tensordict") -> None:
        self._strategy = WeightStrategy(strategy)
        self._side: Side | None = None
        self._origin: Origin | None = None
        self._seen = 0

    @classmethod
    def from_backend(cls, name: str, **keywords: Any) -> WeightSyncScheme:
        """The scheme for a place where workers live.

        Args:
            name: `"none"` or `"direct"`, `"shared"` or `"thread"`, `"process"` or `"multiprocessing"`, `"ray"`.
            **keywords: of the scheme's class.

        Raises:
            ValueError: another name.
        """
        kinds: Mapping[str, type[WeightSyncScheme]] = import_module("swath.weight_update.kinds").BACKENDS
        if name not in kinds:
            raise ValueError(f"backend={name!r} must be one of {', '.join(map(repr, kinds))}")
        return kinds[name](**keywords)

    def init_on_sender(
        self, *, model_id: str | None = None, context: Any = None, model: Any = None, weights: Any = None, **others: Any
    ) -> None:
        """Say where the weights come from, and which collector sends them. A collector does the second itself.

        Args:
            model_id: of the model; `"policy"` by default.
            context: the collector; a weak reference is kept.
            model: the module whose weights are sent when none are passed; a weak reference is kept.
            weights: what is sent then instead.
            **others: refused; TorchRL's schemes take `devices`, `num_workers` and others to find their workers.

        Raises:
            RuntimeError: this is a reader, or serves another collector.
            TypeError: `context` is no collector, or there are `others`.
            ValueError: two sources, or another model than before.
        """
        if others:
            raise TypeError(
                f"init_on_sender takes no {', '.join(others)}: a collector finds its own workers; leave them out, and "
                "give the scheme to the collector as weight_sync_schemes={model_id: scheme}"
            )
        if self._origin is not None:
            raise RuntimeError("this scheme is a copy of a sender, which reads; make another one to send with")
        if model is not None and weights is not None:
            raise ValueError("model and weights are both given; a scheme has one source of weights")
        asked = Side(model_id or self.model_id or POLICY, _weakly(context), _weakly(model), weights, sends=True)
        side = asked if self._side is None else _joined(self._side, asked)
        if context is not None:
            _required(context).attach(side.model_id, self)
        self._side = side

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
        self._source()
        self._side = Side(model_id, _weakly(context), worker_idx=worker_idx)

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
        side = self._side
        if side is None or not side.sends or side.context is _nothing:
            raise RuntimeError(f"this scheme sends for no collector: {BY_COLLECTORS}")
        outlet = outlet_of(side.context())
        if outlet is None:
            raise Closed("the collector of this scheme is gone; make another scheme")
        if self.sends:
            outlet.publish({side.model_id: weights}, worker_ids)
            if self.sync:
                outlet.wait(worker_ids, None)

    def receive(self) -> Any:
        """Bring the newest weights that were not seen yet into the reader's collector, and return them.

        Returns:
            A TensorDict or a `state_dict`, as the strategy says; `None` if there is nothing newer.

        Raises:
            RuntimeError: no collector has this scheme as a reader, or the sender's was shut down.
            KeyError, ValueError: the weights do not fit; they are not tried again.
        """
        self._require_receiver()
        outlet, model_id = self._source()
        found = None if outlet is None else outlet.newest(model_id, self.worker_idx, self._seen)
        if found is None:
            return None
        self._seen = found.serial
        weights = self._strategy.copied(found.snapshot)
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
        raise NotImplementedError("there are no transports to choose: all schemes put weights on one channel")

    def apply_weights(self, weights: Any, inplace: bool = True) -> None:
        """Publish received weights to the reader's collector. May be overridden.

        Raises:
            RuntimeError: no collector has this scheme as a reader.
            KeyError, ValueError: they do not fit, or `inplace=False`.
        """
        if not inplace:
            raise ValueError("inplace=False: a collector copies values into the tensors that it has; leave it out")
        side = self._require_receiver()
        _required(side.context()).publish({side.model_id: weights})

    def prepare_weights(
        self,
        weights: Any,
        model_id: str,  # noqa: ARG002  for those who override it
        strategy: WeightStrategy,  # noqa: ARG002
        context: Any = None,  # noqa: ARG002
    ) -> Any:
        """Map weights before the snapshot is taken. May be overridden; here they stay as they are."""
        return weights

    @property
    def source(self) -> Any:
        """The model or weights that a collector fetches where none are given; `None` if it has none."""
        side = self._side
        return None if side is None else side.model() if side.weights is None else side.weights

    def prepared(self, weights: Any) -> Any:
        """Weights as a collector is to publish them."""
        return self.prepare_weights(weights, self.model_id or POLICY, self._strategy, self.context)

    @property
    def strategy(self) -> WeightStrategy:
        """In which form readers get weights."""
        return self._strategy

    @property
    def model_id(self) -> str | None:
        """Of the model that is served; `None` before it is known."""
        return None if self._side is None else self._side.model_id

    @property
    def context(self) -> Any:
        """The collector; `None` if there is none, or not any more."""
        return None if self._side is None else self._side.context()

    @property
    def model(self) -> Any:
        """The model that was given; `None` if there was none, or is not any more."""
        return None if self._side is None else self._side.model()

    @property
    def weights(self) -> Any:
        """The weights that were given, or those that the model has now, or `None`."""
        model = self.model
        return self.source if model is None else self._strategy.extract_weights(model)

    @property
    def worker_idx(self) -> int | None:
        """Index of the reader's collector in a larger one; `None` if it has none."""
        return None if self._side is None else self._side.worker_idx

    @property
    def initialized_on_sender(self) -> bool:
        """Whether it is a sender."""
        return self._side is not None and self._side.sends

    @property
    def initialized_on_receiver(self) -> bool:
        """Whether it is a reader of a collector."""
        return self._side is not None and not self._side.sends

    @property
    def origin(self) -> Origin | None:
        """What copies of this scheme read; `None` before a collector has it."""
        outlet = outlet_of(self.context) if self.initialized_on_sender else None
        return self._origin if outlet is None else Origin(outlet.key, self.model_id or POLICY)

    def shutdown(self) -> None:
        """Forget both sides. Twice is fine."""
        self._side = None

    def __getstate__(self) -> dict[str, Any]:
        """All but the sides. A copy of a sender reads what that sends."""
        return {**vars(self), "_side": None, "_seen": 0, "_origin": self.origin}

    def __repr__(self) -> str:
        """A status line."""
        side = "not in use" if self._side is None else "sender" if self._side.sends else "receiver"
        return f"<{type(self).__name__} of {self.model_id!r}: {side}>"

    def _require_receiver(self) -> Side:
        if self._side is None or self._side.sends:
            raise RuntimeError(f"this scheme receives for no collector: {BY_COLLECTORS}")
        return self._side

    def _source(self) -> tuple[Outlet | None, str]:
        """The collector whose weights are read, and which of its models; none for a scheme that sends nothing.

        Raises:
            RuntimeError: there is none in this process, or it was shut down.
        """
        if not self.sends:
            return None, ""
        outlet = None if self._origin is None else OUTLETS.get(self._origin.collector)
        if outlet is None or self._origin is None:
            raise RuntimeError(
                f"this scheme is no copy of one that a collector of this process sends with: {BY_COLLECTORS}"
            )
        return outlet, self._origin.model_id


def _weakly(value: Any) -> Ref:
    return _nothing if value is None else weakref.ref(value)


def _joined(side: Side, later: Side) -> Side:
    """A sender with what another initialisation adds.

    Raises:
        ValueError: for another model.
        RuntimeError: for another collector, while the first lives, or of a receiver.
    """
    if not side.sends:
        raise RuntimeError("this scheme is a receiver; make another one to send with")
    if later.model_id != side.model_id:
        raise ValueError(
            f"this scheme serves {side.model_id!r} and cannot serve {later.model_id!r}, too; make one for each"
        )
    mine, theirs = side.context(), later.context()
    if mine is not None and theirs is not None and mine is not theirs:
        raise RuntimeError("this scheme serves another collector; make one for each")
    source = side if later.model() is None and later.weights is None else later
    context = side.context if theirs is None else later.context
    return replace(source, context=context)


def _required(context: Any) -> Outlet:
    outlet = outlet_of(context)
    if outlet is None:
        raise TypeError(f"context is of type {type(context).__name__}; it must be a collector")
    return outlet
