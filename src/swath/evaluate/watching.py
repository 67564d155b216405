"""What a watcher of an evaluation is shown: films, callbacks and the like, without a part in the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from swath.evaluate.ledger import Ledger
from swath.evaluate.quota import Quota
from swath.keys import Key
from swath.rollout.hosts.base import Host
from swath.rollout.loop import Actor, Step


class Performer(Actor, Protocol):
    """A policy that is bound to a host, and tells the keys of what it answers, those of the action first."""

    keys: tuple[Key, ...]


@dataclass(frozen=True)
class Scene:
    """An evaluation as it stands.

    Attributes:
        host: the envs.
        quota: which slot plays what.
        ledger: sums so far, complete episodes.
        playing: number of the episode that each slot plays; `None` where none is left.
        policy: what acts.
    """

    host: Host
    quota: Quota
    ledger: Ledger
    playing: Sequence[int | None]
    policy: Performer


class Watcher(Protocol):
    """Sees every step of every slot that plays. It runs in the thread that steps the envs; its exceptions pass."""

    def saw(self, step: Step, slot: int, scene: Scene) -> None:
        """A slot made this step; rewards are summed, an end is not yet booked."""

    def stepped(self, scene: Scene) -> None:
        """All slots made their step, and ends are booked."""
