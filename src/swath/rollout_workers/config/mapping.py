"""Which policy acts for an agent, and which policies learn: functions of the user's."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from inspect import Parameter, signature
from typing import Any, TypeAlias

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config.checks import LEARNERS, says_who_learns

Mapping: TypeAlias = Callable[..., str]
"""`f(agent_id, episode, worker=None)`: the id of the policy that acts for the agent."""


def everything_to_default(agent_id: Hashable, episode: Any, worker: Any = None, **_: Any) -> str:  # noqa: ARG001
    """The mapping of a new config: one policy acts for all."""
    return DEFAULT_POLICY_ID


def mapper(function: Mapping) -> Mapping:
    """The user's mapping as a function that takes `worker`, which is passed on only to one that takes it."""
    try:
        parameters = signature(function).parameters.values()
    except ValueError:  # some functions that are built in have no signature: they take no such keyword
        parameters = {}.values()
    if any(p.kind is Parameter.VAR_KEYWORD or p.name == "worker" for p in parameters):
        return function
    return lambda agent_id, episode, worker=None: function(agent_id, episode)  # noqa: ARG005


def is_policy_to_train(given: Any) -> Callable[..., bool] | None:
    """Which policies learn, as a function `f(policy_id, batch=None) -> bool`; None if all do.

    Raises:
        TypeError: it is no collection of ids and no function.
    """
    if given is not None and not says_who_learns(given):
        kind = type(given).__name__
        raise TypeError(f"is_policy_to_train={given!r} is of type {kind}; it must be {LEARNERS}")
    return given if given is None or callable(given) else partial(_is_among, frozenset(given))


def _is_among(ids: frozenset[str], policy_id: str, batch: Any = None) -> bool:  # noqa: ARG001
    return policy_id in ids
