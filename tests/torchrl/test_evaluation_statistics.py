"""Running statistics of TorchRL's envs in evaluations: they stand still, and those that are sent are used."""

from functools import partial

import pytest
import torch
from tensordict.nn import TensorDictModule
from torchrl.envs import Compose, EnvCreator, GymEnv, StepCounter, TransformedEnv
from torchrl.envs.transforms import VecNorm, VecNormV2
from torchrl_toys import Counting, push

from swath.evaluators import Evaluator

KEYS = ["observation"]


def counting(kind=VecNormV2):
    return TransformedEnv(Counting(), Compose(StepCounter(), kind(in_keys=KEYS, decay=0.9)))


def alone(kind=VecNormV2):
    return TransformedEnv(Counting(), kind(in_keys=KEYS, decay=0.9))


def trained(make=counting, steps=12):
    env = make()
    env.rollout(steps, lambda td: td.set("action", torch.zeros(1)), break_when_any_done=False)
    return env


def pushing(env=None):
    return TensorDictModule(push, KEYS, ["action"])


def watching():
    """What the policy saw first, in each evaluation; and the `metrics_fn` that notes it."""
    seen = []

    def measure(batch):
        seen.append(float(batch["observation"][0, 0, 0]))
        return {}

    return seen, measure


def normalised(env):
    """What the env's own transform makes of an observation of 0."""
    return float(env.transform[1].loc["observation"].neg() / env.transform[1].scale["observation"])


@pytest.mark.parametrize("kind", [VecNorm, VecNormV2])
def test_an_instance_is_frozen_from_the_constructor_on_and_given_back_as_it_was(kind):
    env = trained(partial(alone, kind))
    before = {name: value.clone() for name, value in env.transform.get_extra_state().items()}
    assert not env.transform.frozen
    evaluator = Evaluator(env, pushing(), num_trajectories=2)
    try:
        assert env.transform.frozen
        evaluator.evaluate()
    finally:
        evaluator.shutdown()
    assert not env.transform.frozen
    assert {name: value.tolist() for name, value in env.transform.get_extra_state().items()} == {
        name: value.tolist() for name, value in before.items()
    }


def test_statistics_of_an_env_creator_are_shared_with_training_and_not_sent():
    creator, other = EnvCreator(partial(alone, VecNorm)), trained(partial(alone, VecNorm))
    with Evaluator(creator, policy_factory=pushing, num_trajectories=1) as evaluator:
        with pytest.raises(ValueError, match=r"EnvCreator.*shared with training.*env\.transform"):
            evaluator.evaluate(weights_dict={"env.transform": other.transform})
        assert evaluator.evaluate()["eval/num_episodes"] == 1


@pytest.mark.parametrize("place", ["thread", "process"])
@pytest.mark.parametrize("layout", [{}, {"num_envs": 3}], ids=str)
def test_statistics_that_are_sent_arrive_on_every_copy_and_are_used_as_they_are(place, layout):
    env = trained()
    weights = {"env.transform[1]": env.transform[1]}
    seen, measure = watching()
    options = {"num_trajectories": 3, "metrics_fn": measure, "backend": place}
    with Evaluator(counting, policy_factory=pushing, **options, **layout) as evaluator:
        for _ in range(2):
            evaluator.evaluate(weights_dict=weights)
    assert seen == [pytest.approx(normalised(env), rel=1e-5)] * 2


def test_an_id_that_leads_nowhere_is_a_key_error_with_those_there_are_and_nothing_is_applied():
    env, policy = trained(), pushing()
    good = {"env.transform[1]": env.transform[1]}
    with Evaluator(counting, policy, num_trajectories=1) as evaluator:
        for wrong in ("env.transform[7]", "env.nothing", "env", "value", "env.transform[0"):
            with pytest.raises(KeyError, match=r"env\.transform\[0\].*env\.transform\[1\]"):
                evaluator.evaluate(weights_dict={**good, wrong: env.transform[1]})
        assert evaluator.evaluate()["eval/policy_version"] > 0


def test_statistics_of_another_shape_are_refused_and_leave_the_old_ones():
    def cartpole():
        return TransformedEnv(GymEnv("CartPole-v1"), VecNormV2(in_keys=KEYS))

    env, other = trained(alone), cartpole()
    seen, measure = watching()
    with Evaluator(alone, policy_factory=pushing, num_trajectories=1, metrics_fn=measure) as evaluator:
        evaluator.evaluate(weights_dict={"env.transform": env.transform})
        with pytest.raises(ValueError, match=r"env\.transform.*shape"):
            evaluator.evaluate(weights_dict={"env.transform": other.transform})
        evaluator.evaluate()
    assert seen[0] == seen[1]
