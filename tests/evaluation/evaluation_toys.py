"""Small envs and policies whose returns and lengths follow from seeds in plain integers."""

from __future__ import annotations

from uneven_env import LONG, SHORT, played
from uneven_env import UnevenEnv as CoinEnv

from swath.evaluation.evaluate_policy import played as played_here
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import EvalResult, episodes_of

__all__ = ["LONG", "SHORT", "CoinEnv"]


def integer_policy(observation):
    """Actions from integers alone, the same whatever the batch size."""
    return (observation[..., 0] + observation[..., 1]) % 7


def expected(seed):
    """Return and length of the episode that starts from this seed, under the integer policy."""
    return played(seed)


def evaluate_once(policy, env, options, num_envs=None):
    runner = played_here(EvaluatorOptions(env, policy, num_envs=num_envs, **options))
    return EvalResult({}, episodes_of(runner.rows), seeding=runner.seeding)
