"""The two sides of a scheme: where weights come from, and where they go."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swath.collect.paths import follow
from swath.errors import Closed
from swath.weight_update.alone import Alone
from swath.weight_update.mail import EVERYONE, Address, Letter, Reader
from swath.weight_update.outlet import Outlet, outlet_of
from swath.weights.names import by_worker

Ref = Callable[[], Any]


def nothing() -> None:
    """What was never there."""


def weakly(value: Any) -> Ref:
    """A weak reference, also to `None`."""
    return nothing if value is None else weakref.ref(value)


@dataclass(frozen=True)
class Source:
    """What a sender sends when nothing is passed.

    Attributes:
        model: weak reference to a module.
        weights: a TensorDict or dict.
        each: weights by worker.
        spread: makes a worker's weights of its index and the weights of all.
        n_workers: for how many.
    """

    model: Ref = nothing
    weights: Any = None
    each: Mapping[int, Any] | None = None
    spread: Callable[[int, Any], Any] | None = None
    n_workers: int = 0

    def __post_init__(self) -> None:
        given = {"model": self.model(), "weights": self.weights, "params_map": self.each}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise ValueError(f"{' and '.join(names)} are both given; a scheme has one source of weights")

    @property
    def empty(self) -> bool:
        """Whether weights must be passed."""
        return self.all is None and self.each is None

    @property
    def all(self) -> Any:
        """The model or weights for all workers, or `None`."""
        return self.weights if self.weights is not None else self.model()

    def shared_out(self, weights: Any) -> Any:
        """Weights that were passed, or `None`, as they are sent: for all, or `{worker: weights}`."""
        if weights is None and self.each is not None:
            return dict(self.each)
        whole = self.all if weights is None else weights
        if self.spread is None or whole is None or by_worker(whole) is not None:
            return whole
        return {worker: self.spread(worker, whole) for worker in range(self.n_workers)}


@dataclass
class Sending:
    """The side that weights come from.

    Attributes:
        model_id: of the model.
        source: what is sent when nothing is passed.
        alone: where weights go without a collector.
        context: weak reference to the collector.
        synchronized: whether `connect` was called.
        pid: of the process that this side is in.
    """

    model_id: str
    source: Source
    alone: Alone
    context: Ref = nothing
    synchronized: bool = False
    pid: int = field(default_factory=os.getpid)

    @property
    def here(self) -> bool:
        """Whether this process made it, and not the one that this one was forked from."""
        return self.pid == os.getpid()

    def outlet(self) -> Outlet | None:
        """Of the collector; `None` for a scheme without one.

        Raises:
            Closed: the collector is gone.
        """
        if self.context is nothing:
            return None
        outlet = outlet_of(self.context())
        if outlet is None:
            raise Closed("the collector of this scheme is gone; initialise another scheme")
        return outlet

    def joined(self, later: Sending) -> Sending:
        """The same with what another initialisation adds.

        Raises:
            ValueError: for another model.
            RuntimeError: for another collector, while the first lives.
        """
        if later.model_id != self.model_id:
            raise ValueError(
                f"this scheme serves {self.model_id!r} and cannot serve {later.model_id!r}, too; make one for each"
            )
        mine, theirs = self.context(), later.context()
        if mine is not None and theirs is not None and mine is not theirs:
            raise RuntimeError("this scheme serves another collector; make one for each")
        self.alone.actors = later.alone.actors or self.alone.actors
        return replace(
            self,
            source=self.source if later.source.empty else later.source,
            context=self.context if theirs is None else later.context,
        )


@dataclass
class Receiving:
    """The side that reads weights.

    Attributes:
        model_id: of the model.
        context: weak reference to whatever holds the model.
        model: weak reference to the model.
        worker: index of the reader, or `EVERYONE`.
        synchronized: whether `connect` was called.
    """

    model_id: str
    context: Ref = nothing
    model: Ref = nothing
    worker: int = EVERYONE
    synchronized: bool = False
    _reader: Reader | None = None
    _seen: int = 0

    def newest(self, address: Address | None, timeout: float) -> Letter | None:
        """What was not seen yet.

        Raises:
            RuntimeError: the channel cannot be reached.
        """
        if self._reader is None:
            if address is None:
                raise RuntimeError(
                    "this scheme has no sender: initialise it on a sender first, and receive with a pickled copy of it"
                )
            self._reader = address.reader()
        letter = self._reader.newest(self.worker, self._seen, timeout)
        if letter is not None:
            self._seen = letter.serial
        return letter

    def target(self) -> Any:
        """The model; of a context without any, what the id leads to.

        Raises:
            RuntimeError: there is none.
            AttributeError: the id leads nowhere.
        """
        model, context = self.model(), self.context()
        if model is None and context is not None:
            find = getattr(context, "get_model", None)
            model = follow(context, self.model_id) if find is None else find(self.model_id)
        if model is None:
            raise RuntimeError(f"there is no model {self.model_id!r} here any more; initialise the receiver again")
        return model

    def close(self) -> None:
        """Let go of the channel."""
        if self._reader is not None:
            self._reader.close()
