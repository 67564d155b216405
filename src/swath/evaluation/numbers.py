"""From the episodes that were played to the result that is handed out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from swath.evaluation.request import EvalRequest, Stopped
from swath.evaluation.result import EpisodeRow, Episodes, EvalResult
from swath.evaluation.statistics import mean_interval, summarise
from swath.evaluation.worker import Footage
from swath.rollout.hosts.base import Seeding

NAMES = frozenset(
    {
        *("reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"),
        *("reward_ci_low", "reward_ci_high", "num_episodes", "frames", "episode_length", "duration_s", "fps"),
        *("step", "policy_version", "video", "episode_rewards", "episode_lengths"),
    }
)
"""What entries of results are called, those included that are there only if they are asked for."""


class Rounds:
    """Rounds of episodes until the request has enough.

    Args:
        request: says how many a round has, and when to stop.

    Attributes:
        due: the episodes of the round to be played.
        stopped: why no more are played; `None` while some are.
    """

    def __init__(self, request: EvalRequest) -> None:
        self._request = request
        self._rows: dict[int, EpisodeRow] = {}
        self.due = range(request.num_trajectories)
        self.stopped: Stopped | None = None

    def played(self, rows: Mapping[int, EpisodeRow]) -> None:
        """The round is over; its episodes by number.

        Raises:
            ValueError: some are missing.
        """
        missing = set(self.due) - set(rows)
        if missing:
            raise ValueError(f"episodes {sorted(missing)} of the round {self.due} were not played")
        self._rows.update(rows)
        n = len(self._rows)
        returns = np.array([self._rows[episode].returned for episode in range(n)])
        self.stopped = self._request.verdict(n, mean_interval(returns, self._request.seed))
        if self.stopped is None:
            self.due = range(n, n + self._request.num_trajectories)

    def episodes(self) -> Episodes:
        """All that were played, in their order."""
        return Episodes.by_number(self._rows)


@dataclass(frozen=True)
class Performed:
    """What came of an evaluation.

    Attributes:
        request: what was asked for.
        rounds: with all episodes.
        seconds: from the first reset to the last end, of the worker that took longest; of several rounds the sum.
        seeding: how far seeds reached.
        retries: how often a worker was lost and its share played again.
        footage: of each worker and round.
        unwritten: what recorders in the envs could not write, in words.
    """

    request: EvalRequest
    rounds: Rounds
    seconds: float
    seeding: Seeding
    retries: int = 0
    footage: Sequence[Footage] = ()
    unwritten: Sequence[str] = ()


def result_of(
    performed: Performed, prefix: str, films: Mapping[str, Any] | None = None, more: Mapping[str, Any] | None = None
) -> EvalResult:
    """The result of an evaluation that is over.

    Args:
        performed: what came of it.
        prefix: of the names in the result.
        films: what was filmed: the attributes of a result that begin with `video_`.
        more: further entries of the result, by name without prefix.
    """
    request, rounds, seconds = performed.request, performed.rounds, performed.seconds
    assert rounds.stopped is not None
    episodes = rounds.episodes()
    numbers: dict[str, Any] = {**summarise(episodes.returns, episodes.lengths, request.seed), "duration_s": seconds}
    numbers["fps"] = numbers["frames"] / seconds
    numbers |= {"step": request.step, "policy_version": request.policy_version, **(more or {})}
    return EvalResult(
        {f"{prefix}/{name}": value for name, value in numbers.items()},
        episodes,
        step=request.step,
        seeding=performed.seeding,
        stopped=rounds.stopped,
        retries=performed.retries,
        films=films,
    )
