"""Which policy acts for an agent: functions of the user's, called with as much as they take."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID


def everything_to_default(agent_id: Hashable, episode: Any, worker: Any = None, **_: Any) -> str:  # noqa: ARG001
    """The mapping unless somebody gives another: one policy acts for all."""
    return DEFAULT_POLICY_ID


@dataclass(frozen=True)
class Mapper:
    """A mapping function that is called with `worker` only if it takes one.

    Attributes:
        function: the user's.
        takes_worker: whether it does.
    """

    function: Callable[..., str]
    takes_worker: bool

    @classmethod
    def of(cls, function: Callable[..., str]) -> Mapper:
        """Look at the function once."""
        return cls(function, _takes(function, "worker"))

    def __call__(self, agent_id: Hashable, episode: Any, worker: Any = None) -> str:
        """The policy's id, for an agent and its episode; `episode` is None while spaces are inferred."""
        if self.takes_worker:
            return self.function(agent_id, episode, worker=worker)
        return self.function(agent_id, episode)


def without_episode(function: Callable[..., str]) -> Callable[[Hashable], str]:
    """The mapping of agents alone, for when there is no episode yet."""
    mapper = Mapper.of(function)

    def policy_of(agent_id: Hashable) -> str:
        try:
            return mapper(agent_id, None)
        except Exception as error:
            error.add_note(f"in policy_mapping_fn({agent_id!r}, None): episode is None while spaces are inferred")
            raise

    return policy_of


def _takes(function: Callable[..., Any], keyword: str) -> bool:
    try:
        parameters = signature(function).parameters.values()
    except ValueError:  # some functions that are built in have no signature to look at: they take no such keyword
        return False
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return any(p.kind is Parameter.VAR_KEYWORD or (p.name == keyword and p.kind in by_name) for p in parameters)
