"""From what was asked for to a policy: given, built by its factory, or random."""

from __future__ import annotations

from typing import Any

from swath.collect.making.policy_request import PolicyRequest
from swath.rollout.policies.factory import from_factory
from swath.rollout.policies.random_policy import RandomPolicy


class Given:
    """The policy as the user gave it, or as the factory builds it, once; random actions if there is neither.

    Args:
        asked: which policy.
    """

    def __init__(self, asked: PolicyRequest) -> None:
        self._asked = asked
        self._policy = RandomPolicy() if asked.policy is None else asked.policy
        self._to_build = asked.factory is not None

    def __call__(self, env: Any) -> Any:
        """The policy; a factory that wants an env gets the first one that is asked with."""
        if self._to_build:
            self._policy = from_factory(self._asked.single_factory(), env)
            self._to_build = False
        return self._policy
