"""What is known of a policy before it is built."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from swath.rollout_workers.config.checks import refuse
from swath.rollout_workers.config.copying import Copied, copied

if TYPE_CHECKING:
    from gymnasium import Space

_WANTED = "a dict of PolicySpec (or a tuple of up to four) by policy id, or a set, list or tuple of ids"


@dataclass
class PolicySpec(Copied):
    """A policy's class, spaces and settings; what is empty is found out when workers are built.

    Attributes:
        policy_class: None: the worker's `default_policy_class`.
        observation_space: before preprocessing; None: of the agents that it acts for.
        action_space: likewise.
        config: overrides of the worker's settings, or a whole `AlgorithmConfig`, which is taken as it is.
    """

    policy_class: type | None = None
    observation_space: Space[Any] | None = None
    action_space: Space[Any] | None = None
    config: Any = None

    def copy(self) -> PolicySpec:
        """A spec with a copy of the settings; class and spaces are shared."""
        return PolicySpec(self.policy_class, self.observation_space, self.action_space, copied(self.config))

    def get_state(self) -> dict[str, Any]:
        """The four by name, not copied."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def serialize(self) -> dict[str, Any]:
        """The four by name, with the class as `"module:name"` where it can be imported again by that."""
        return {**self.get_state(), "policy_class": _name_of(self.policy_class)}

    @classmethod
    def deserialize(cls, d: Mapping[str, Any]) -> PolicySpec:
        """What was serialized.

        Raises:
            ValueError: its class is named, and cannot be imported.
        """
        return cls(**{**d, "policy_class": _class_of(d["policy_class"])})


def specs(name: str, value: object) -> dict[str, PolicySpec]:
    """The policies as a dict of specs, whichever way they were given.

    Ids in a set are sorted, so that workers have their policies in one order wherever they live.

    Raises:
        ValueError: they were given in none of the ways.
    """
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        value = dict.fromkeys(value)
    if not isinstance(value, Mapping) or not value:
        refuse(name, value, _WANTED)
    return {_id(name, policy): _spec(f"{name}[{policy!r}]", spec) for policy, spec in value.items()}


def _id(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        refuse(f"the policy id in {name}", value, "a string that is not empty")
    return value


def _spec(name: str, value: object) -> PolicySpec:
    if value is None:
        return PolicySpec()
    if isinstance(value, list | tuple) and len(value) <= len(fields(PolicySpec)):
        return PolicySpec(*value)
    if not isinstance(value, PolicySpec):
        refuse(name, value, "a PolicySpec, or a tuple (policy_class, observation_space, action_space, config)")
    return value


def _name_of(policy_class: type | None) -> str | type | None:
    """`"module:name"`; the class itself if it is not found by that in another process."""
    if policy_class is None or policy_class.__module__ == "__main__":
        return policy_class
    name = f"{policy_class.__module__}:{policy_class.__qualname__}"
    found: object = sys.modules.get(policy_class.__module__)
    for part in policy_class.__qualname__.split("."):
        found = getattr(found, part, None)
    return name if found is policy_class else policy_class


def _class_of(named: object) -> Any:
    if not isinstance(named, str):
        return named
    module, _, path = named.partition(":")
    try:
        found: Any = import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as lost:
        raise ValueError(f"policy_class={named!r} cannot be imported: {lost}") from lost
    return found
