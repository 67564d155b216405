"""When weights are published without being told to, and for whom. Pure: services ask before they send requests.

the user draws again ─▶ at_draw() ─▶ publish? ─▶ before_request(life, version) ─▶ publish? ─▶ asked(life, version)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from swath.options import count
from swath.weights.channel import Life


@dataclass(frozen=True)
class Automatic:
    """When a collector publishes its policy by itself.

    Attributes:
        each_draw: when the user draws again.
        first_draw: also at the first draw.
        most_fragments: of a worker on one version, before it picks up a newer one; `None` for no limit.
    """

    each_draw: bool = False
    first_draw: bool = False
    most_fragments: int | None = None

    @classmethod
    def asked(cls, *, after_each_batch: bool, interval: object = -1, before_first: bool = False) -> Automatic:
        """From the faces' arguments, where an interval of -1 is off and 0 is after each batch, as the flag.

        Raises:
            ValueError: the interval is no integer, or below -1.
        """
        most = count("max_weight_update_interval", interval, least=-1)
        each = after_each_batch or most == 0
        return cls(each, each and before_first, most if most > 0 and not each else None)

    @property
    def off(self) -> bool:
        """Whether only the user publishes."""
        return not self.each_draw and self.most_fragments is None


class _Mileage(NamedTuple):
    life: Life
    version: int
    fragments: int


class Due:
    """Who is due for weights.

    Args:
        rule: when.
    """

    def __init__(self, rule: Automatic) -> None:
        self.rule = rule
        self._draws = 0
        self._mileage: dict[int, _Mileage] = {}

    def at_draw(self) -> bool:
        """Whether to publish before workers are asked for this draw; call it once a draw."""
        first, self._draws = self._draws == 0, self._draws + 1
        return self.rule.first_draw if first else self.rule.each_draw

    def before_request(self, life: Life, version: int) -> bool:
        """Whether to publish before a worker is asked for a fragment.

        Args:
            life: of which worker.
            version: the newest that is meant for it, which the request would bring.
        """
        most = self.rule.most_fragments
        return most is not None and self._fragments(life, version) >= most

    def asked(self, life: Life, version: int) -> None:
        """A worker was asked for a fragment on this version."""
        self._mileage[life[0]] = _Mileage(life, version, self._fragments(life, version) + 1)

    def _fragments(self, life: Life, version: int) -> int:
        before = self._mileage.get(life[0])
        return before.fragments if before and (before.life, before.version) == (life, version) else 0
