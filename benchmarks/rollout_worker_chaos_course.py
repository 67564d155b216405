"""A set that is told new things all the time, as one that trains would be, and what it gives meanwhile.

weights before every batch ─▶ sample ─▶ Ledger
filters every second, a policy and a mapping function every four
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from rollout_worker_chaos_check import Ledger, Said
from rollout_worker_chaos_toys import Mapping
from swath import WorkerSet
from swath.testing.telling import Telling

FILTERS_EVERY_S, POLICY_EVERY_S = 1.0, 4.0


@dataclass
class Course:
    """A set, what it is told as if it was trained, and what it gave.

    Attributes:
        workers: the set.
        ledger: of its batches.
        frames: drawn while it was timed.
        seconds: for how long that was.
        policies: ids of all that there are.
        due: when filters are shared next, and when a policy is added.
    """

    workers: WorkerSet
    ledger: Ledger
    frames: int = 0
    seconds: float = 0.0
    policies: list[str] = field(default_factory=list)
    due: dict[str, float] = field(default_factory=lambda: {"filters": 0.0, "policy": inf})

    @property
    def rate(self) -> float:
        """Env steps per second."""
        return self.frames / self.seconds

    def draw(self, is_enough: Callable[[], bool]) -> None:
        """Sample until it is enough."""
        while not is_enough():
            if time.monotonic() >= self.due["policy"]:
                self._add_policy()
            self._publish()
            self.ledger.add(self.workers.sample(), time.monotonic())
            if time.monotonic() >= self.due["filters"]:
                self._share_filters()

    def draw_for(self, seconds: float) -> None:
        """Sample for so long, timed."""
        began, frames = time.monotonic(), self.ledger.frames
        self.draw(lambda: time.monotonic() - began >= seconds)
        self.frames += self.ledger.frames - frames
        self.seconds += time.monotonic() - began

    def _publish(self) -> None:
        number = len(self.ledger.told.numbers) + 1
        for policy in self.workers.local_worker().policy_map.values():
            policy.set_weights({"number": [number]})
        version = self.workers.sync_weights()
        self.ledger.told.numbers[version] = number
        self.ledger.told.weights.append(Said(time.monotonic(), version))

    def _share_filters(self) -> None:
        self.workers.sync_filters()
        known = {policy_id: own.rs.n for policy_id, own in self.workers.local_worker().filters.items()}
        self.ledger.told.filters.append(Said(time.monotonic(), known))
        self.due["filters"] = time.monotonic() + FILTERS_EVERY_S

    def _add_policy(self) -> None:
        """One that acts for the second agent; the one that did acts for the first."""
        self.policies.append(f"policy_{len(self.policies)}")
        newest = tuple(self.policies[-2:])
        self.workers.add_policy(self.policies[-1], Telling, policy_mapping_fn=Mapping(newest))
        self.ledger.told.mappings.append(Said(time.monotonic(), newest))
        self.due["policy"] = time.monotonic() + POLICY_EVERY_S
