"""Observations that are no members of their space: the env that gave one has failed, as one that raises has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import TypeAlias

from swath.rollout.hosts.base import EnvRaised, Transition
from swath.rollout.spaces import Leaves

Strays: TypeAlias = Callable[[Leaves], Mapping[int, Exception]] | None
"""Finds the rows of leaves `[B, …]` that are no members, with what is wrong; None: nobody looks."""


def require_members(strays: Strays, leaves: Leaves, envs: Sequence[int]) -> Leaves:
    """The leaves with which episodes of these envs begin.

    Raises:
        EnvRaised: one of these rows is none.
    """
    found = {} if strays is None else strays([leaf[list(envs)] for leaf in leaves])
    for row, error in found.items():
        raise EnvRaised(envs[row], error)
    return leaves


def fail_strays(strays: Strays, moved: Transition, *, alone: bool) -> None:
    """Let the envs of such rows have failed; all of them where they only step together."""
    if strays is None or not moved.observation:
        return
    found = strays(moved.observation)
    if not found:
        return
    if not alone:
        error = next(iter(found.values()))
        found = dict.fromkeys(range(len(moved.reward)), error)
    moved.failed = sorted({**found, **dict(moved.failed)}.items(), key=itemgetter(0))
