"""From the episodes that were played to the result that is handed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swath.evaluate.record import Films, Provenance
from swath.evaluate.request import EvalRequest
from swath.evaluate.result import EvalResult
from swath.evaluate.rounds import Rounds
from swath.evaluate.statistics import summarise
from swath.rollout.hosts.specs import Seeding

NAMES = frozenset(
    {
        *("reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"),
        *("reward_ci_low", "reward_ci_high", "num_episodes", "frames", "episode_length", "duration_s", "fps"),
        *("step", "policy_version", "video", "episode_rewards", "episode_lengths"),
    }
)
"""What entries of results are called, those included that are there only if they are asked for."""


@dataclass(frozen=True)
class Facts:
    """What is known of an evaluation beside its episodes.

    Attributes:
        seconds: from the first reset to the last end; of several rounds the sum.
        seeding: how far seeds reached.
        retries: how often a worker was lost and its share played again.
        films: what was filmed.
        more: further entries of the result, by name without prefix.
    """

    seconds: float
    seeding: Seeding
    retries: int = 0
    films: Films = field(default_factory=Films)
    more: Mapping[str, Any] = field(default_factory=dict)


def result_of(rounds: Rounds, facts: Facts, request: EvalRequest, prefix: str) -> EvalResult:
    """The result of rounds that are over."""
    assert rounds.stopped is not None
    episodes = rounds.episodes()
    numbers: dict[str, Any] = {**summarise(episodes.returns, episodes.lengths, request.seed)}
    numbers["duration_s"] = facts.seconds
    numbers["fps"] = numbers["frames"] / facts.seconds
    numbers["step"] = request.step
    numbers["policy_version"] = request.policy_version
    numbers.update(facts.more)
    return EvalResult(
        {f"{prefix}/{name}": value for name, value in numbers.items()},
        episodes,
        Provenance(request.step, facts.seeding, rounds.stopped, facts.retries),
        facts.films,
    )
