"""Observations that are no members of their space, infos that are no dicts: the env has failed, as if it had raised."""

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
    if strays is not None and moved.observation:
        _fail(moved, strays(moved.observation), alone=alone)


def fail_infos(moved: Transition, *, alone: bool) -> None:
    """Let envs whose info is no dict have failed, likewise; a vector env's infos are a dict, whatever they are."""
    if not isinstance(moved.info, Mapping):
        strange = {env: info for env, info in enumerate(moved.info) if not isinstance(info, Mapping)}
        errors = {env: TypeError(f"the env returned info={info!r}; it must be a dict") for env, info in strange.items()}
        _fail(moved, errors, alone=alone)


def _fail(moved: Transition, found: Mapping[int, Exception], *, alone: bool) -> None:
    """Let these envs have failed; where they only step together all have, first the one that is to blame."""
    if found and not alone:
        first = min(found)
        found = {first: found[first], **dict.fromkeys(range(len(moved.reward)), found[first])}
        moved.failed = list({**found, **dict(moved.failed)}.items())
    elif found:
        moved.failed = sorted({**found, **dict(moved.failed)}.items(), key=itemgetter(0))
