"""Who says that an episode is complete and what it earned: the env's flags and our sums, or a monitor in the env."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from swath.keys import NEXT, Key
from swath.rollout.hosts.infos import info_of
from swath.rollout.hosts.tensordict_reading import mean_of
from swath.rollout.loop import Step

Score: TypeAlias = tuple[float, int]
"""Return and length of an episode."""

Scoring: TypeAlias = Callable[[Step, int, Score], Score | None]
"""Asked where the env says that an episode of this slot ended, with our sums: its score, or `None` if it goes on."""

_EPISODE = "episode"


def own_sums(step: Step, slot: int, sums: Score) -> Score:  # noqa: ARG001  one signature for all
    """Every end counts, with the rewards and steps we saw."""
    return sums


def summing(keys: Sequence[Key], num_envs: int) -> Scoring:
    """Scores by what the env itself has summed: the mean of these entries of `"next"`, of all agents, at the end."""

    def scored(step: Step, slot: int, sums: Score) -> Score:
        return float(mean_of(step.outputs[0].get(NEXT), keys, num_envs)[slot]), sums[1]

    return scored


def monitored(step: Step, slot: int, sums: Score) -> Score | None:  # noqa: ARG001
    """Only a step whose info carries `"episode"` ends one, with the return and length told there.

    Wrappers above the monitor may end several times within one episode (a life lost) or change the rewards.
    """
    told = info_of(step.info, slot).get(_EPISODE)
    if not isinstance(told, Mapping) or not {"r", "l"} <= told.keys():
        return None
    return float(told["r"]), int(told["l"])


def if_monitored(step: Step, slot: int, sums: Score) -> Score:
    """What the info tells if it tells something, else our sums: for envs that cannot be looked into."""
    return monitored(step, slot, sums) or sums
