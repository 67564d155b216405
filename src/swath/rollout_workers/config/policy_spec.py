"""Policies before they are built: their specs and spaces, which of them acts for an agent, and which learn.

space of a policy  ◀─ its spec ◀─ spaces[pid] ◀─ agents of the env that map to it ◀─ the env's one space
                                                         ◀─ spaces["__env__"] ◀─ the config
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import partial
from inspect import Parameter, signature
from typing import Any, Literal, TypeAlias

from gymnasium import Space, spaces

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config.checks import LEARNERS, Check, id_, is_learner_choice, must_be


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
    needed = "a PolicySpec, or a tuple (policy_class, observation_space, action_space, config)"
    return PolicySpec(*must_be(needed, lambda parts: isinstance(parts, list | tuple) and len(parts) <= 4)(name, value))


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


Kind: TypeAlias = Literal["observation", "action"]
Spaces: TypeAlias = Mapping[str, tuple[Space[Any] | None, Space[Any] | None]]


def env_space(env: Any, kind: Kind) -> Space[Any] | None:
    """Return the space of the env itself, or the dict of its agents' spaces, if each agent has one."""
    space, by_agent = _one_space(env, kind), _agent_spaces(env, kind)
    if space is None and by_agent and None not in by_agent.values():
        return spaces.Dict(dict[Any, Any](by_agent))
    return space


def policy_space(config: Any, policy_id: str, spec: PolicySpec, kind: Kind, env: Any, by_id: Spaces) -> Space[Any]:
    """Return the space of a policy from the first place that has one.

    Args:
        config: has a space for policies without one, and the mapping, which is called only if agents of one env have
            different spaces, with None for the episode.
        policy_id: the policy.
        spec: its spec.
        kind: which space.
        env: a sub-env, or None.
        by_id: spaces by policy id, and of the env under `"__env__"`.

    Raises:
        ValueError: there is none, or agents of the policy have different ones.
    """

    def candidates() -> Iterator[Space[Any] | None]:
        yield getattr(spec, f"{kind}_space")
        yield _select_space(by_id, policy_id, kind)
        by_agent = _agent_spaces(env, kind)
        yield _shared_space(policy_id, kind, by_agent, config.policy_mapping_fn) if by_agent else _one_space(env, kind)
        yield _select_space(by_id, "__env__", kind)
        yield getattr(config, f"{kind}_space")

    space = next((space for space in candidates() if space is not None), None)
    if space is None:
        places = f"its PolicySpec, nor spaces[{policy_id!r}], the env, spaces['__env__'] or config.{kind}_space"
        raise ValueError(f"policy {policy_id!r} has no {kind}_space: neither {places} has one; give env_creator or one")
    return space


def _select_space(spaces_by_id: Spaces, key: str, kind: Kind) -> Space[Any] | None:
    return (spaces_by_id.get(key) or (None, None))[kind == "action"]


def _shared_space(
    policy_id: str, kind: Kind, by_agent: Mapping[Any, Space[Any] | None], mapping: Callable[..., str]
) -> Space[Any] | None:
    """Return the space of the agents that map to the policy; None if none does and agents have several."""
    first_space = next(iter(by_agent.values()))
    if all(space == first_space for space in by_agent.values()):
        return first_space
    first, *others = [agent for agent in by_agent if mapping(agent, None) == policy_id] or [None]
    for agent in others:
        if by_agent[agent] != by_agent[first]:
            differ = f"but their {kind} spaces differ: {by_agent[first]} and {by_agent[agent]}"
            raise ValueError(f"agents {first!r} and {agent!r} both map to {policy_id!r}, {differ}; map them to two")
    return by_agent.get(first)


def _one_space(env: Any, kind: Kind) -> Space[Any] | None:
    """Return the space of a single-agent env, or of one sub-env of a vector env; None without env."""
    named = (getattr(env, name, None) for name in (f"single_{kind}_space", f"{kind}_space"))
    return next((space for space in named if isinstance(space, Space)), None)


def _agent_spaces(env: Any, kind: Kind) -> dict[Any, Space[Any] | None]:
    """Return spaces by agent of a multi-agent env; empty if no agents are known yet, and for any other env."""
    env = getattr(env, "unwrapped", env)
    space_of = getattr(env, f"get_{kind}_space", None)
    if not callable(space_of):
        return {}
    agents = getattr(env, "possible_agents", None) or getattr(env, "agents", None)
    if not agents:  # in an order that does not depend on hashes
        agents = sorted(getattr(env, "get_agent_ids", list)(), key=str)
    return {agent: space_of(agent) for agent in agents}
