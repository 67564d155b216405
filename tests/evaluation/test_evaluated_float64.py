"""Observations of float64 in evaluations: kept if asked for, with a warning where float32 rounds integers."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import ray_cluster
from swath import Evaluator, RayEvalWorker, evaluate_policy

pytestmark = pytest.mark.usefixtures("fork_server")

START = 1_700_000_000
LARGE = "the env returned 1700000000.0 for 'observation', which becomes float32: .* pass keep_float64=True"


class Clock(gym.Env):
    """Observes unix time, a second per step; the reward is the action; an episode has 4 steps."""

    observation_space = gym.spaces.Box(0, np.inf, (1,), np.float64)
    action_space = gym.spaces.Discrete(8)

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return np.array([float(START)]), {}

    def step(self, action):
        self._steps += 1
        return np.array([float(START + self._steps)]), float(action), False, self._steps == 4, {}


class SecondsOf(torch.nn.Module):
    """Acts by the number of seconds since the start."""

    def forward(self, observation):
        return (observation[..., 0].double() - START).long().clamp(0, 7)


def tell_time(_env=None):
    return SecondsOf()


RIGHT, ROUNDED = 0.0 + 1 + 2 + 3, 0.0


@pytest.mark.parametrize("env", [Clock, Clock(), [Clock, Clock]], ids=["callable", "instance", "list"])
def test_evaluate_policy_keeps_it(env):
    assert evaluate_policy(SecondsOf(), env, 2, keep_float64=True) == (RIGHT, 0.0)


def test_evaluate_policy_warns_where_it_is_not_kept():
    with pytest.warns(UserWarning, match=LARGE) as caught:
        assert evaluate_policy(SecondsOf(), Clock, 2) == (ROUNDED, 0.0)
    assert len(caught) == 1


def test_an_object_with_predict_gets_it():
    class Model:
        def predict(self, observation, state=None, episode_start=None, deterministic=False):
            assert observation.dtype == np.float64
            return (observation[:, 0] - START).astype(np.int64), state

    assert evaluate_policy(Model(), Clock, 2, keep_float64=True)[0] == RIGHT


def evaluated(**options):
    dtypes = []
    measure = {"metrics_fn": lambda rows: dtypes.append(rows["observation"].dtype) or {}}
    with Evaluator(Clock, num_trajectories=2, keep_float64=True, **measure, **options) as evaluator:
        return evaluator.evaluate()["eval/reward"], dtypes


@pytest.mark.parametrize(
    "options",
    [{"policy": SecondsOf()}, {"policy_factory": tell_time, "backend": "process"}],
    ids=["policy", "factory in a process"],
)
def test_an_evaluator_keeps_it_also_for_metrics(options):
    assert evaluated(**options) == (RIGHT, [torch.float64])


@pytest.mark.usefixtures("lent_actors")
def test_evaluators_on_ray_keep_it():
    ray_cluster.up()
    assert evaluated(policy_factory=tell_time, backend="ray", num_gpus=0) == (RIGHT, [torch.float64])
    with RayEvalWorker(None, Clock, tell_time, num_gpus=0, keep_float64=True) as worker:
        worker.submit(None, None)
        assert worker.poll(None)["reward"] == RIGHT
