"""Rollouts of `RayEvalWorker` in TorchRL's envs, without an actor."""

import cloudpickle
import pytest
import torch
from tensordict.nn import TensorDictModule

from swath.evaluation.eval_actor import Ask, EvalActor
from swath.evaluation.newest import Token

envs = pytest.importorskip("torchrl.envs")
pytest.importorskip("pygame", reason="CartPole renders with it")

STEPS = 12


def cartpole():
    return envs.GymEnv("CartPole-v1", render_mode="rgb_array", categorical_action_encoding=True)


def counted():
    return envs.TransformedEnv(cartpole(), envs.StepCounter(5))


def serial():
    return envs.SerialEnv(2, cartpole)


def upright():
    return TensorDictModule(
        lambda observation: (observation[..., 1:].sum(-1) > 0).long(), in_keys=["observation"], out_keys=["action"]
    )


@pytest.mark.parametrize(("env_maker", "lengths"), [(cartpole, [12]), (counted, [5]), (serial, [12, 12])])
def test_envs_are_played_and_filmed(env_maker, lengths):
    actor = EvalActor(cloudpickle.dumps((env_maker, upright)))
    parcel = actor.rollout(Ask(Token("a", 1), STEPS, until_any_done=False))
    assert parcel.head["episode_lengths"].tolist() == parcel.head["episode_rewards"].tolist() == lengths
    assert parcel.body.shape == (lengths[0], 400, 600, 3)
    assert torch.tensor(parcel.body).float().std() > 0
    actor.close()
