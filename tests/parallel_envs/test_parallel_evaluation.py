"""PettingZoo's parallel envs in evaluations."""

import pytest
from tensordict.nn import TensorDictModule, TensorDictSequential

from swath import Evaluator, evaluate_policy

pytest.importorskip("pettingzoo")

from herd import LENGTH, LIVES, NUMBER, Herd


def resting():
    """Return a policy whose actions are all 0."""
    keys = [((group, "observation"), (group, "action")) for group in ("cow", "dog")]
    zero = [TensorDictModule(lambda x: x[..., 0].long() * 0, [read], [written]) for read, written in keys]
    return TensorDictSequential(*zero)


def earned(*agents):
    """Return the reward of agents in an episode in which all actions are 0."""
    return sum(100 * NUMBER[agent] + 10 * step for agent in agents for step in range(1, LIVES[agent] + 1))


def evaluated(env=Herd, **options):
    arguments = {"policy": resting(), "reward_keys": ("next", "cow", "reward"), **options}
    with Evaluator(env, per_episode=True, **arguments) as evaluator:
        result = evaluator.evaluate()
    return [result[f"eval/episode_{name}"] for name in ("rewards", "lengths")]


@pytest.mark.parametrize("options", [{}, {"num_envs": 3}, {"num_envs": 3, "env_processes": 2}], ids=str)
def test_a_return_is_the_mean_over_the_agents_of_a_group(options):
    returns, lengths = evaluated(num_trajectories=6, **options)
    assert list(returns) == [earned("cow_0", "cow_1") / 2] * 6
    assert list(lengths) == [LENGTH] * 6


@pytest.mark.parametrize("processes", [None, 2])
def test_an_episode_may_end_with_that_of_a_group(processes):
    keys = {"reward_keys": ("next", "dog", "reward"), "done_keys": ("next", "dog", "done")}
    returns, lengths = evaluated(num_trajectories=2, num_envs=2, env_processes=processes, **keys)
    assert list(lengths) == [LIVES["dog"]] * 2
    assert list(returns) == [earned("dog")] * 2


def test_an_env_of_agents_has_no_reward_of_its_own():
    with pytest.raises(KeyError, match=r"'next', 'cow', 'reward'"):
        evaluate_policy(resting(), Herd, n_eval_episodes=2)
