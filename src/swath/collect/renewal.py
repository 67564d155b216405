"""When a collection's weights are renewed without the user's saying so: taken from elsewhere, published by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swath.weights.channel import Channel
from swath.weights.due import Due
from swath.weights.register import Life


def nothing() -> None:
    """No weights come from elsewhere."""


@dataclass
class Renewal:
    """Renews weights at the start of every batch, and before a worker would use old ones for too long.

    Attributes:
        due: when the policy's weights are published.
        publish: publishes them.
        receive: takes the newest from elsewhere, if there is anything newer.
    """

    due: Due
    publish: Callable[[], None]
    receive: Callable[[], None] = nothing

    def at_draw(self) -> None:
        """The user draws; call it before workers are asked."""
        self.receive()
        if self.due.at_draw():
            self.publish()

    def before_request(self, life: Life, channel: Channel) -> None:
        """A worker is about to be asked for a fragment, with what the channel has for it."""
        if self.due.before_request(life, channel.version_for(life[0])):
            self.publish()

    def asked(self, life: Life, channel: Channel) -> None:
        """It was asked."""
        self.due.asked(life, channel.version_of(life[0]))
