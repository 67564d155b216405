"""Whether batches of a `WorkerSet` were made with what was the newest, and are whole.

batches ─▶ Ledger ─▶ the promised size, the number of the weights that their version says, frames whole and once
Told: weights, filters, mappings, with the time ─▶ the first rows of each life know all that was said before the kill
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rollout_worker_chaos_rows import KEPT, Rows, check_fragments, check_frames


class Said(NamedTuple):
    """One thing that the set was told: when, and what."""

    at: float
    what: Any


@dataclass
class Told:
    """All that the set was told, oldest first.

    Attributes:
        weights: versions.
        filters: how many observations of each policy all workers knew.
        mappings: the policies that agents may have.
        numbers: of the weights, by version.
    """

    weights: list[Said] = field(default_factory=list)
    filters: list[Said] = field(default_factory=list)
    mappings: list[Said] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)


class Ledger:
    """Keeps batches, and checks them when the clock has stopped.

    Args:
        frames: env steps that each batch must have.
        agents: of a sub-env.

    Attributes:
        told: what the set was told; whoever tells it writes here.
    """

    def __init__(self, frames: int, agents: int) -> None:
        self.told = Told()
        self._frames, self._agents = frames, agents
        self._parts: list[tuple[str, int, dict[str, Any]]] = []
        self._arrivals: list[float] = []

    @property
    def frames(self) -> int:
        """Env steps that are in the batches."""
        return self._frames * len(self._arrivals)

    def add(self, batch: Any, at: float) -> None:
        """One more; its versions may be the newest, or the one before for a fragment that was late by a call."""
        assert batch.env_steps() == self._frames, f"a batch has {batch.env_steps()} frames, not {self._frames}"
        for policy_id, rows in batch.as_multi_agent().policy_batches.items():
            kept = {name: np.array(rows[name]) for name in KEPT}
            self._parts.append((policy_id, len(self._arrivals), kept))
        self._arrivals.append(at)

    def check(self, steps: int, kills: Mapping[tuple[int, int], float]) -> int:
        """Raise an `AssertionError` that says what is not as it should be.

        Args:
            steps: of a fragment.
            kills: when the life before a life was killed, by worker and life.

        Returns:
            How many lives that replaced others were seen.
        """
        rows = Rows.of(self._parts)
        self._check_versions(rows)
        returned = 0
        for life, own in rows.by_life():
            check_frames(life, own)
            check_fragments(life, own, steps, self._agents)
            if life[1]:
                self._check_first(life, own, kills[life])
                returned += 1
        return returned

    def _check_versions(self, rows: Rows) -> None:
        """A batch has the newest weights, or those before where a fragment was late; and acts by them."""
        said = [each.what for each in self.told.weights]
        newest = {version: number for number, version in enumerate(said)}
        place = np.array([newest[version] for version in rows.version.tolist()])
        wrong = np.flatnonzero((place > rows.batch) | (place < rows.batch - 1))
        assert not len(wrong), f"batch {rows.batch[wrong[0]]} has version {rows.version[wrong[0]]}; said were {said}"
        numbers = np.array([self.told.numbers[version] for version in rows.version.tolist()])
        assert (rows.action == numbers).all(), "a row has the action of other weights than its version says"

    def _check_first(self, life: tuple[int, int], rows: Rows, killed: float) -> None:
        """The first rows of a life that replaces another know all that was said before."""
        first = rows[(rows.mark[:, 1] == 0) & (rows.mark[:, 2] == 0)]
        version = newest(self.told.weights, killed)
        assert (first.version >= version).all(), f"{life} begins with versions {first.version}, not {version}"
        seen = newest(self.told.filters, killed, {})
        for policy_id, n in zip(first.policy, first.seen, strict=True):
            least = seen.get(policy_id, 0)
            assert n > least, f"the filter of {policy_id!r} of {life} begins with {n:g}, which others had before"
        arrived = max(self._arrivals[batch] for batch in first.batch)
        allowed = current(self.told.mappings, killed, arrived)
        for policy_id, number in zip(first.policy, first.mark[:, 0], strict=True):
            wanted = {ids[number % self._agents] for ids in allowed}
            assert policy_id in wanted, f"{life} begins with policy {policy_id!r}; it was to be of {wanted}"


def newest(said: list[Said], at: float, otherwise: Any = None) -> Any:
    """What was said last before a moment."""
    return next((each.what for each in reversed(said) if each.at < at), otherwise)


def current(said: list[Said], begin: float, end: float) -> list[Any]:
    """What was the newest at some time from `begin` to `end`."""
    return [newest(said, begin), *(each.what for each in said if begin <= each.at <= end)]
