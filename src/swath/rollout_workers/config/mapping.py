"""Which policy acts for an agent, and which policies learn: functions of the user's."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from inspect import Parameter, signature
from typing import Any, TypeAlias

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID

Mapping: TypeAlias = Callable[..., str]
"""`f(agent_id, episode, worker=None)`: the id of the policy that acts for the agent."""

PoliciesToTrain: TypeAlias = set[str] | list[str] | tuple[str, ...] | frozenset[str] | Callable[..., bool]


def everything_to_default(agent_id: Hashable, episode: Any, worker: Any = None, **_: Any) -> str:  # noqa: ARG001
    """The mapping unless somebody gives another: one policy acts for all."""
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


def ids_or_function(name: str, value: object) -> PoliciesToTrain | None:
    """The value, if it says which policies learn; None stands for all.

    Raises:
        TypeError: it does not; a string is no collection of ids here.
    """
    if value is None or callable(value):
        return value
    if isinstance(value, list | set | tuple | frozenset) and all(isinstance(each, str) for each in value):
        return value
    raise TypeError(
        f"{name}={value!r} is of type {type(value).__name__}; it must be a list, set or tuple of policy ids, "
        "or f(policy_id, batch=None) -> bool"
    )


def is_policy_to_train(value: object) -> Callable[..., bool] | None:
    """The question as a function `f(policy_id, batch=None) -> bool`; None if all learn.

    Raises:
        TypeError: it is no collection of ids and no function.
    """
    given = ids_or_function("is_policy_to_train", value)
    return given if given is None or callable(given) else partial(_is_among, frozenset(given))


def _is_among(ids: frozenset[str], policy_id: str, batch: Any = None) -> bool:  # noqa: ARG001
    return policy_id in ids
