"""Running statistics of gymnasium's wrappers: sent by id, put into every copy of the env, used as they are."""

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from uneven_env import UnevenEnv

from swath.evaluators import Evaluator

MEAN, VAR = np.array([5.0, 1.0]), np.array([4.0, 0.25])
SENT = {"mean": MEAN, "var": VAR, "count": 50}


def normal():
    return NormalizeObservation(NormalizeReward(UnevenEnv()))


def still(observation):
    return torch.zeros(observation.shape[:-1], dtype=torch.int64)


@pytest.mark.parametrize("place", ["thread", "process"])
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
    ("sent", "error"),
    [
        ({"env.obs_rms": {**SENT, "mean": np.zeros(3)}}, ValueError),
        ({"env.obs_rms": SENT, "env.nothing": SENT}, KeyError),
        ({"env.obs_rms": SENT, "env.spec": SENT}, KeyError),
    ],
)
def test_what_does_not_fit_changes_nothing(sent, error):
    env = normal()
    with Evaluator(env, still, num_trajectories=1) as evaluator:
        before = env.obs_rms.mean.copy(), env.obs_rms.count
        with pytest.raises(error, match=r"mean|obs_rms"):
            evaluator.evaluate(weights_dict=sent)
        assert (env.obs_rms.mean == before[0]).all()
        assert env.obs_rms.count == before[1]
