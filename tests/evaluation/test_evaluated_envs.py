"""Envs in any form, and what of them stands still while they are evaluated."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from evaluator_toys import PLACES, evaluate_once
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from gymnasium.wrappers import vector as of_vectors
from uneven_env import Shifted, UnevenEnv

from swath.evaluators import Evaluator

pytestmark = pytest.mark.usefixtures("warm_processes")


class OtherSpaces(UnevenEnv):
    action_space = spaces.Discrete(3)


def coins(n):
    return SyncVectorEnv([UnevenEnv] * n)


@pytest.mark.parametrize(
    ("env", "num_envs", "error", "says"),
    [
        (coins(3), 2, ValueError, "num_envs=2 for .*which has 3 already"),
        (lambda: coins(3), 2, ValueError, "num_envs=2 for .*batched already"),
        ([UnevenEnv(), UnevenEnv()], 4, ValueError, "multiple of 2, or 2 for instances"),
        ([UnevenEnv, OtherSpaces], None, ValueError, "agree in their spaces"),
        ([lambda: coins(2)], None, ValueError, "batched already"),
        (lambda: None, None, TypeError, "returned None"),
        ("NoSuchEnv-v0", None, gym.error.NameNotFound, "NoSuchEnv"),
    ],
)
def test_what_cannot_be_meant_is_refused(env, num_envs, error, says):
    with pytest.raises(error, match=says):
        evaluate_once(Shifted(), env, num_envs)


# Running statistics and monitors


class FloatCoin(UnevenEnv):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return observation.astype(np.float64), info

    def step(self, action):
        observation, *rest = super().step(action)
        return observation.astype(np.float64), *rest


@pytest.mark.parametrize(
    ("make", "statistics"),
    [
        (lambda: NormalizeReward(NormalizeObservation(FloatCoin())), lambda env: [env.return_rms, env.env.obs_rms]),
        (lambda: SyncVectorEnv([lambda: NormalizeReward(FloatCoin())]), lambda env: [env.envs[0].return_rms]),
        (lambda: of_vectors.NormalizeObservation(SyncVectorEnv([FloatCoin] * 2)), lambda env: [env.obs_rms]),
        (lambda: of_vectors.NormalizeReward(SyncVectorEnv([FloatCoin] * 2)), lambda env: [env.return_rms]),
        (lambda: AsyncVectorEnv([lambda: NormalizeObservation(FloatCoin())] * 2), lambda env: env.get_attr("obs_rms")),
    ],
    ids=["single", "in a vector env", "observations of a vector env", "rewards of a vector env", "in other processes"],
)
def test_running_statistics_stand_still_and_go_on_afterwards(make, statistics):
    def learned():
        return [(np.array(each.mean).tolist(), float(each.count)) for each in statistics(env)]

    env = make()
    env.reset(seed=1)
    act = env.action_space.sample
    env.step(act())
    before = learned()
    result = evaluate_once(lambda observation: (observation[..., 0] > 0).int(), env, num_trajectories=2)
    assert len(result.returns) == 2
    assert learned() == before
    env.reset(seed=2)
    env.step(act())
    assert learned() != before
    env.close()


# Statistics that are sent


MEAN, VAR = np.array([5.0, 1.0]), np.array([4.0, 0.25])
SENT = {"mean": MEAN, "var": VAR, "count": 50}


def normal():
    return NormalizeObservation(NormalizeReward(UnevenEnv()))


def still(observation):
    return torch.zeros(observation.shape[:-1], dtype=torch.int64)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("num_envs", [None, 3])
def test_statistics_reach_every_copy(place, num_envs):
    seen = []

    def measure(batch):
        seen.append(batch["observation"][:, 0] * torch.tensor(VAR + 1e-8).sqrt() + torch.tensor(MEAN))
        return {}

    options = {"num_trajectories": 4, "metrics_fn": measure, "num_envs": num_envs, "backend": place}
    with Evaluator(normal, policy_factory=lambda: still, **options) as evaluator:
        evaluator.evaluate(weights_dict={"env.obs_rms": SENT})
        evaluator.evaluate()
    assert seen[0][:, 1].tolist() == pytest.approx([0.0] * 4, abs=1e-5)
    assert seen[0].tolist() == seen[1].tolist()
    assert len({round(token) for token in seen[0][:, 0].tolist()}) == 4


def test_the_first_name_is_looked_up_through_wrappers_and_in_envs_of_a_vector_env():
    env = SyncVectorEnv([normal, normal])
    with Evaluator(env, still, num_trajectories=2) as evaluator:
        evaluator.evaluate(weights_dict={"env.return_rms": {"mean": 0.5, "var": 2.0, "count": 9}})
        assert [(one.env.return_rms.mean, float(one.env.return_rms.var)) for one in env.envs] == [(0.5, 2.0)] * 2


@pytest.mark.parametrize(
    ("sent", "error", "says"),
    [
        ({"env.obs_rms": {**SENT, "mean": np.zeros(3)}}, ValueError, "mean"),
        ({"env.obs_rms": SENT, "env.nothing": SENT}, KeyError, "'policy', 'env.obs_rms'"),
        ({"env.obs_rms": SENT, "env.spec": SENT}, KeyError, "'policy', 'env.obs_rms'"),
        ({"env.obs_rms": SENT, "critic": torch.nn.Linear(1, 1)}, KeyError, "'policy', 'env.obs_rms'"),
    ],
)
def test_what_does_not_fit_changes_nothing(sent, error, says):
    env = normal()
    with Evaluator(env, still, num_trajectories=1) as evaluator:
        before = env.obs_rms.mean.copy(), env.obs_rms.count
        with pytest.raises(error, match=says):
            evaluator.evaluate(weights_dict=sent)
        assert (env.obs_rms.mean == before[0]).all()
        assert env.obs_rms.count == before[1]
        assert len(evaluator.evaluate().returns) == 1
