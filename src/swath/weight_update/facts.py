"""What a scheme says of itself."""

from __future__ import annotations

from typing import Any

from swath.weight_update.mail import EVERYONE
from swath.weight_update.sides import Receiving, Sending
from swath.weight_update.strategy import WeightStrategy


class SchemeFacts:
    """Read-only properties, and `repr`."""

    _strategy: WeightStrategy
    _sending: Sending | None
    _receiving: Receiving | None

    @property
    def strategy(self) -> WeightStrategy:
        """In which form receivers get weights."""
        return self._strategy

    @property
    def model_id(self) -> str | None:
        """Of the model that is served; `None` before it is known."""
        side = self._sending or self._receiving
        return None if side is None else side.model_id

    @property
    def context(self) -> Any:
        """The collector, or what holds the model; `None` if there is none, or not any more."""
        side = self._sending or self._receiving
        return None if side is None else side.context()

    @property
    def model(self) -> Any:
        """The model that was given; `None` if there was none, or is not any more."""
        if self._sending is not None:
            return self._sending.source.model()
        return None if self._receiving is None else self._receiving.model()

    @property
    def weights(self) -> Any:
        """The weights that were given, or those that the model has now, or `None`."""
        source = None if self._sending is None else self._sending.source
        given = None if source is None else source.weights if source.weights is not None else source.each
        return given if given is not None or self.model is None else self._strategy.extract_weights(self.model)

    @property
    def worker_idx(self) -> int | None:
        """Index of this reader; `None` if it has none."""
        return None if self._receiving is None or self._receiving.worker == EVERYONE else self._receiving.worker

    @property
    def initialized_on_sender(self) -> bool:
        """Whether this side, in this process, is the source."""
        return self._sending is not None and self._sending.here

    @property
    def initialized_on_receiver(self) -> bool:
        """Whether this side is a reader."""
        return self._receiving is not None

    @property
    def synchronized_on_sender(self) -> bool:
        """Whether the sender has connected."""
        return self._sending is not None and self._sending.synchronized

    @property
    def synchronized_on_receiver(self) -> bool:
        """Whether the receiver has connected."""
        return self._receiving is not None and self._receiving.synchronized

    def __repr__(self) -> str:
        """A status line."""
        side = "sender" if self.initialized_on_sender else "receiver" if self._receiving is not None else "not in use"
        return f"<{type(self).__name__} of {self.model_id!r}: {side}>"
