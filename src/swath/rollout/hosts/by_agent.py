"""What multi-agent envs return, by agent, and what they promise: a misplaced key would show much later, in a batch.

reset ──▶ observations, infos               step ──▶ observations, rewards, terminateds, truncateds, infos
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, TypeAlias

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
        ValueError: an info of an agent that is not observed.
    """
    _check_infos("reset", observations, infos)


def check_step(returned: Step) -> None:
    """Check what a step returned.

    Raises:
        ValueError: flags without `"__all__"`, or an info of an agent that is not observed.
    """
    observations, _, terminateds, truncateds, infos = returned
    for name, flags in (("terminateds", terminateds), ("truncateds", truncateds)):
        if ALL not in flags:
            raise ValueError(f"step returned {name} of {_list(flags)} without {ALL!r}; both dicts of flags need it")
    _check_infos("step", observations, infos)


def _check_infos(what: str, observations: Mapping[Hashable, Any], infos: Mapping[Hashable, Any]) -> None:
    if infos.keys() <= observations.keys():
        return
    strangers = infos.keys() - observations.keys() - {COMMON}
    if strangers:
        raise ValueError(
            f"{what} returned infos of {_list(strangers)}, but observations of {_list(observations)}: infos are of "
            f"agents that are observed, or under {COMMON!r}"
        )


def _list(ids: Collection[Hashable]) -> str:
    return ", ".join(sorted(map(repr, ids))) or "nobody"
