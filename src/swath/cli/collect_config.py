"""What a collection is made of: the values of `swath collect`'s options, checked in one place."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from swath.cli.failure import UsageError
from swath.cli.numbers import require_in_range
from swath.cli.places import INLINE, require_room

if TYPE_CHECKING:
    from pathlib import Path

OF_THE_DATA = ("env", "greedy", "max_episode_steps", "envs", "workers", "backend", "seed")
"""Which options say what the data are, beside the policy's weights; the others say how many and how."""


@dataclass(frozen=True)
class CollectConfig:
    """The options of one collection.

    Attributes:
        env: as it is named.
        frames: how many there are to be in the end.
        policy: a run's folder or a checkpoint; `None` for random actions.
        greedy: whether the policy takes its most probable actions.
        max_episode_steps: where episodes are truncated; `None`: where the env does so.
        envs: envs that a worker steps together.
        workers: how many workers collect.
        backend: where they live.
        batch: most frames that are written at a time.
        seed: root of all seeds.
        device: where the policy is.
        threads: torch's threads in this process; other processes have one.

    Raises:
        UsageError: a number out of range, or options that contradict each other; the message names the option.
    """

    env: str
    frames: int = 100_000
    policy: Path | None = None
    greedy: bool = False
    max_episode_steps: int | None = None
    envs: int = 8
    workers: int = 1
    backend: str = INLINE
    batch: int = 10_000
    seed: int = 0
    device: str = "cpu"
    threads: int = 1

    def __post_init__(self) -> None:
        require_in_range(self)
        require_room(self.workers, self.backend)
        if self.greedy and self.policy is None:
            raise UsageError("--greedy is about the actions of a policy; name one with --policy")

    def settings(self, policy: str) -> dict[str, Any]:
        """What the data are collected with, as plain values.

        Args:
            policy: tells who acts from others.
        """
        return {**{name: getattr(self, name) for name in OF_THE_DATA}, "policy": policy}

    def batch_of(self, frames: int) -> int:
        """Frames of a batch, of equal batches that make up as many and hardly more; as many from every env."""
        step = self.envs * self.workers
        return ceil(ceil(frames / ceil(frames / self.batch)) / step) * step
