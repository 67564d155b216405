"""Evaluations of a run's policy: always the same episodes, away from the training's envs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swath.cli.failure import told_if_unserved
from swath.evaluate.local import LocalEvaluation, Slots
from swath.evaluate.request import EvalRequest
from swath.evaluate.stopping import StopRule
from swath.rollout.hosts.base import first_of

if TYPE_CHECKING:
    from gymnasium import Env, Space

    from swath.cli.config import RunConfig
    from swath.evaluators import EvalResult


class Judge:
    """Evaluates policies on envs of its own.

    Args:
        config: says which env, how many episodes, and the root of their seeds.

    Raises:
        UsageError: the env's spaces cannot be served.
    """

    def __init__(self, config: RunConfig) -> None:
        self._seed, self._stop = config.seed, StopRule(config.eval_episodes)
        with told_if_unserved(config.env):
            self._evaluation = LocalEvaluation(config.env, Slots(min(config.envs, config.eval_episodes)))
        self._first: Env[Any, Any] = first_of(self._evaluation.env)

    @property
    def observation_space(self) -> Space[Any]:
        """Of one env."""
        return self._first.observation_space

    @property
    def action_space(self) -> Space[Any]:
        """Of one env."""
        return self._first.action_space

    def evaluate(self, policy: Any, step: int, version: int) -> EvalResult:
        """Play the episodes with the most probable actions; step and weight version are kept with the result."""
        return self._evaluation.run(policy, EvalRequest(self._stop, seed=self._seed, step=step, policy_version=version))

    def close(self) -> None:
        """Close the envs."""
        self._evaluation.close()
