"""Policies before they are built: their specs, which of them acts for an agent, and which learn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config.checks import LEARNERS, Check, id_, is_learner_choice, must_be

if TYPE_CHECKING:
    from gymnasium import Space


@dataclass
class PolicySpec:
    """A policy's class, spaces and settings; empty fields are filled when workers are built.

    Attributes:
        policy_class: None: the worker's `default_policy_class`.
        observation_space: before preprocessing; None: of the agents that it acts for.
        action_space: None: of the agents that it acts for.
        config: overrides of the worker's settings, or a whole `AlgorithmConfig`, which is used unchanged.
    """

    policy_class: type | None = None
    observation_space: Space[Any] | None = None
    action_space: Space[Any] | None = None
    config: Any = None

    def copy(self) -> PolicySpec:
        """Return a spec with a copy of the settings; class and spaces are shared."""
        return PolicySpec(self.policy_class, self.observation_space, self.action_space, copy_nested(self.config))

    def get_state(self) -> dict[str, Any]:
        """Return the four fields by name, not copied."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    serialize = get_state

    @classmethod
    def deserialize(cls, d: Mapping[str, Any]) -> PolicySpec:
        """Build a spec from its state."""
        return cls(**d)


def copy_nested(value: Any) -> Any:
    """Copy dicts, lists, tuples, sets, arrays and configs; share classes, functions and spaces."""
    if isinstance(value, dict | list):
        clone: Any = copy(value)  # keeps the class
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            clone[key] = copy_nested(item)
        return clone
    if isinstance(value, tuple):
        items = map(copy_nested, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value.copy() if hasattr(value, "copy") and not isinstance(value, type) else value


_BY_ID: Check[Any] = must_be(
    "a dict of PolicySpec (or a tuple of up to four) by policy id, or a set, list or tuple of ids",
    lambda value: isinstance(value, Mapping) and bool(value),
)


def _spec(name: str, value: Any) -> PolicySpec:
    if isinstance(value, PolicySpec):
        return value
    wanted = "a PolicySpec, or a tuple (policy_class, observation_space, action_space, config)"
    return PolicySpec(*must_be(wanted, lambda parts: isinstance(parts, list | tuple) and len(parts) <= 4)(name, value))


def read_specs(name: str, value: Any) -> dict[str, PolicySpec]:
    """Return the policies as a dict of specs, in whichever form they were given.

    Ids in a set are sorted, so that workers have their policies in one order wherever they live.

    Raises:
        ValueError: another form.
    """
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    by_id = _BY_ID(name, dict.fromkeys(value) if isinstance(value, list | tuple) else value)
    ids = [id_(f"the policy id in {name}", policy_id) for policy_id in by_id]
    return {pid: _spec(f"{name}[{pid!r}]", () if by_id[pid] is None else by_id[pid]) for pid in ids}


def map_to_default(agent_id: Hashable, episode: Any, worker: Any = None, **_: Any) -> str:  # noqa: ARG001
    """Map every agent to the default policy."""
    return DEFAULT_POLICY_ID


def with_worker_argument(function: Callable[..., str]) -> Callable[..., str]:
    """Return a mapping `f(agent_id, episode)`, which may take `worker`, as a function that does."""
    parameters = signature(function).parameters.values()
    if any(p.kind is Parameter.VAR_KEYWORD or p.name == "worker" for p in parameters):
        return function
    return lambda agent_id, episode, worker=None: function(agent_id, episode)  # noqa: ARG005


def is_policy_to_train(value: Any) -> Callable[..., bool] | None:
    """Return which policies learn as a function `f(policy_id, batch=None) -> bool`; None if all do.

    Raises:
        TypeError: it is no collection of ids and no function.
    """
    if value is not None and not is_learner_choice(value):
        kind = type(value).__name__
        raise TypeError(f"is_policy_to_train={value!r} is of type {kind}; it must be {LEARNERS}")
    return value if value is None or callable(value) else partial(_is_among, frozenset(value))


def _is_among(ids: frozenset[str], policy_id: str, batch: Any = None) -> bool:  # noqa: ARG001
    return policy_id in ids
