"""What multi-agent envs return, by agent, and what they promise: a misplaced key would show much later, in a batch.

reset ──▶ observations, infos               step ──▶ observations, rewards, terminateds, truncateds, infos
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, TypeAlias

from swath.rollout.hosts.returned import as_flag, as_reward

ByAgent: TypeAlias = dict[Any, Any]
"""Values by agent id; in flags also by `ALL`."""

Step: TypeAlias = tuple[ByAgent, Any, Any, Any, ByAgent]
"""Observations, rewards, terminated and truncated flags, infos: all of them dicts.

Those in the middle are `Any` to type checkers: gymnasium's base class declares a number and two booleans.
"""

ALL = "__all__"
"""The flag of the whole env, in both dicts of flags."""

COMMON = "__common__"
"""The key of an info that is for no agent alone."""


def check_reset(observations: Mapping[Hashable, Any], infos: Mapping[Hashable, Any]) -> None:
    """Check what a reset returned.

    Raises:
        TypeError: no dict where there must be one.
        ValueError: an info of an agent that is not observed.
    """
    _check_dicts("reset", {"observations": observations, "infos": infos})
    _check_infos("reset", observations, infos)


def check_step(returned: Step) -> None:
    """Check what a step returned.

    Raises:
        TypeError: no dict where there must be one.
        ValueError: flags without `"__all__"`, or that say neither yes nor no; an info of an agent that is not observed.
    """
    observations, rewards, terminateds, truncateds, infos = returned
    ends = {"terminateds": terminateds, "truncateds": truncateds}
    _check_dicts("step", {"observations": observations, "rewards": rewards, **ends, "infos": infos})
    for name, flags in ends.items():
        if ALL not in flags:
            raise ValueError(f"step returned {name} of {_list(flags)} without {ALL!r}; both dicts of flags need it")
        for agent, value in flags.items():
            if value and value is not True:
                as_flag(f"{name}[{agent!r}]", value)
    _check_infos("step", observations, infos)


def paid(rewards: ByAgent) -> tuple[ByAgent, float]:
    """The rewards as numbers, and their sum.

    Raises:
        ValueError: that of an agent is not one number.
    """
    try:
        return rewards, float(sum(rewards.values()))
    except (TypeError, ValueError):
        numbers = {agent: as_reward(reward, f" of agent {agent!r}") for agent, reward in rewards.items()}
        return numbers, sum(numbers.values())


def _check_dicts(what: str, returned: Mapping[str, Any]) -> None:
    for name, value in returned.items():
        if type(value) is not dict and not isinstance(value, Mapping):
            raise TypeError(f"{what} returned {name}={value!r}; it must be a dict by agent")


def _check_infos(what: str, observations: Mapping[Hashable, Any], infos: Mapping[Hashable, Any]) -> None:
    for agent, info in infos.items():
        if type(info) is not dict and not isinstance(info, Mapping):
            raise TypeError(f"{what} returned infos[{agent!r}]={info!r}; an info is a dict")
    strangers = infos.keys() - observations.keys() - {COMMON}
    if strangers:
        raise ValueError(
            f"{what} returned infos of {_list(strangers)}, but observations of {_list(observations)}: infos are of "
            f"agents that are observed, or under {COMMON!r}"
        )


def _list(ids: Collection[Hashable]) -> str:
    return ", ".join(sorted(map(repr, ids))) or "nobody"
