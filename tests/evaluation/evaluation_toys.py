"""Small envs and policies whose returns and lengths follow from seeds in plain integers."""

from __future__ import annotations

from uneven_env import LONG, SHORT, played
from uneven_env import UnevenEnv as CoinEnv

from swath.evaluation.evaluate_policy import played as played_here
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import EvalResult, episodes_of

__all__ = ["LONG", "SHORT", "CoinEnv"]


class FaultyEnv(CoinEnv):
    """Raises at one step of its life, or at one reset."""

    def __init__(self, at_step=None, at_reset=None):
        super().__init__()
        self.at_step, self.at_reset = at_step, at_reset

    def reset(self, *, seed=None, options=None):
        if len(self.resets) == self.at_reset:
            raise KeyError("the simulator is gone")
        return super().reset(seed=seed)

    def step(self, action):
        if self.steps == self.at_step:
            self.at_step = None
            raise KeyError("the simulator is gone")
        return super().step(action)


def integer_policy(observation):
    """Actions from integers alone, the same whatever the batch size."""
    return (observation[..., 0] + observation[..., 1]) % 7


def expected(seed):
    """Return and length of the episode that starts from this seed, under the integer policy."""
    return played(seed)


def evaluate_once(policy, env, options, num_envs=None):
    runner = played_here(EvaluatorOptions(env, policy, num_envs=num_envs, **options))
    return EvalResult({}, episodes_of(runner.rows), seeding=runner.seeding)
