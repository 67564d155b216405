"""Every policy's class, spaces and settings, found out where they were left empty.

space of a policy  ◀─ its spec ◀─ spaces[pid] ◀─ agents of the env that map to it ◀─ the env's one space
                                                         ◀─ spaces["__env__"] ◀─ the config
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gymnasium import Space

from swath.rollout_workers.config.agent_spaces import AgentSpaces, ByAgentSpace, one_space
from swath.rollout_workers.config.policy_spec import PolicySpec

if TYPE_CHECKING:
    from swath.rollout_workers.config.holder import Holder

ENV_SPACES = "__env__"
Kind: TypeAlias = Literal["observation", "action"]
Spaces: TypeAlias = Mapping[str, tuple[Space[Any] | None, Space[Any] | None]]

_INDEX: dict[Kind, int] = {"observation": 0, "action": 1}


@dataclass(frozen=True)
class Surroundings:
    """Where the spaces of policies are looked for.

    Attributes:
        env: a sub-env, or None.
        spaces: by policy id, and of the env under `"__env__"`.
        mapping: which policy acts for an agent: `f(agent_id) -> policy id`.
        fallback: the config's own spaces.
    """

    env: Any
    spaces: Spaces
    mapping: Callable[[Any], str]
    fallback: Mapping[Kind, Space[Any] | None]

    def space(self, policy_id: str, kind: Kind) -> Space[Any]:
        """The space of a policy whose spec has none.

        Raises:
            ValueError: nobody has one, or agents of the policy have different ones.
        """
        for found in self._candidates(policy_id, kind):
            if found is not None:
                return found
        raise ValueError(
            f"policy {policy_id!r} has no {kind}_space: neither its PolicySpec, nor spaces[{policy_id!r}], the env, "
            f"spaces[{ENV_SPACES!r}] or config.{kind}_space has one; give one of them"
        )

    def _candidates(self, policy_id: str, kind: Kind) -> Iterator[Space[Any] | None]:
        yield self._given(policy_id, kind)
        agents = None if self.env is None else AgentSpaces.of(self.env, kind)
        if agents is not None:
            yield agents.of_policy(policy_id, self.mapping)
        elif self.env is not None:
            yield one_space(self.env, kind)
        yield self._elsewhere(policy_id, kind)
        yield self.fallback[kind]

    def _elsewhere(self, policy_id: str, kind: Kind) -> Space[Any] | None:
        """From an env that is elsewhere."""
        space = self._given(ENV_SPACES, kind)
        if isinstance(space, ByAgentSpace):
            return AgentSpaces(kind, dict[Any, Any](space.spaces), None).of_policy(policy_id, self.mapping)
        return space

    def _given(self, key: str, kind: Kind) -> Space[Any] | None:
        pair = self.spaces.get(key)
        return None if pair is None else pair[_INDEX[kind]]


def complete(
    policy_id: str, spec: PolicySpec, default_class: type | None, around: Surroundings, config: Holder
) -> PolicySpec:
    """The spec with nothing left empty; its config is a whole one.

    Raises:
        ValueError: it has no class or no space, and nobody else has one for it.
    """
    policy_class = spec.policy_class or default_class
    if policy_class is None:
        raise ValueError(
            f"policy {policy_id!r} has no class: give its PolicySpec a policy_class, or a default_policy_class"
        )
    spaces: dict[Kind, Space[Any] | None] = {"observation": spec.observation_space, "action": spec.action_space}
    found = {kind: around.space(policy_id, kind) if space is None else space for kind, space in spaces.items()}
    return PolicySpec(policy_class, found["observation"], found["action"], config)
