"""What a worker tells beside its answers: what it has done since it told last.

worker.counters, .recent_episodes ─▶ Account.tell ─▶ Told ─with the answer─▶ the set's books
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

Episodes: TypeAlias = tuple[tuple[float, int], ...]
"""Return and env steps of episodes, in the order of their ends."""


@dataclass(frozen=True)
class Told:
    """What a worker has done since it told last.

    Attributes:
        env_steps: that it has handed out.
        episodes: how many have ended by themselves.
        env_errors: how often an env has raised.
        last: the last of these episodes.
        version: of the weights that it has.
    """

    env_steps: int = 0
    episodes: int = 0
    env_errors: int = 0
    last: Episodes = ()
    version: int = 0


@dataclass(frozen=True)
class Answer:
    """What a call gave, and what its worker tells beside."""

    value: Any
    told: Told


class Account:
    """Knows what a worker has told.

    Args:
        worker: a `RolloutWorker`; what it has done up to now is not told.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self._before: dict[str, int] = worker.counters

    def tell(self, env_steps: int | None = None) -> Told:
        """What it has done since.

        Args:
            env_steps: that it has handed out; None: as it counts them itself, without rows of a dataset.
        """
        before, self._before = self._before, self._worker.counters
        new = {name: count - before[name] for name, count in self._before.items()}
        episodes, recent = new["episodes"], self._worker.recent_episodes
        last = recent[max(len(recent) - episodes, 0) :]
        steps = new["env_steps_sampled"] if env_steps is None else env_steps
        return Told(steps, episodes, new["episodes_faulty"], last, self._worker.policy_version)
