"""What a policy with a memory reads and an env lacks: supplied beside the env, by its transforms, or not at all."""

import gymnasium as gym
import pytest
import torch
import torchrl_toys as toys
from tensordict.nn import TensorDictModule
from torchrl.envs import GymEnv, InitTracker, SerialEnv, TensorDictPrimer, TransformedEnv
from torchrl_toys import Answer, Counting, push

from swath import Collector


def policy():
    return toys.gru(1)[1]


def first(env, *args, frames=12, **options):
    with Collector(env, *args, frames_per_batch=frames, **options) as collector:
        return next(iter(collector))


def written(env):
    return list(env.full_observation_spec.keys(True, True))


def test_transforms_around_the_env_supply_it_where_that_is_asked_for():
    env = Counting()
    with Collector(env, policy(), frames_per_batch=12, auto_register_policy_transforms=True) as collector:
        batch = next(iter(collector))
        assert {"is_init", "recurrent_state"} < set(written(collector.env))
        transforms = list(collector.env.transform)
        assert [type(transform) for transform in transforms] == [InitTracker, TensorDictPrimer]
        assert all(transform.parent is not None for transform in transforms)
    assert written(env) == ["observation"]
    beside = first(Counting(), policy())
    for key in ("action", "features", "is_init", "recurrent_state", ("next", "recurrent_state")):
        assert torch.equal(batch[key], beside[key]), key


def tracked():
    return TransformedEnv(Counting(), InitTracker())


def primed():
    return TransformedEnv(tracked(), toys.gru(1)[0].make_tensordict_primer())


@pytest.mark.parametrize("make", [tracked, primed, lambda: SerialEnv(2, tracked)], ids=["tracked", "primed", "serial"])
def test_what_the_env_writes_already_is_not_supplied_again(make):
    with Collector(make, policy(), frames_per_batch=4, auto_register_policy_transforms=True) as collector:
        assert [key for key in written(collector.env) if key[-1] == "is_init" or key == "is_init"] == ["is_init"]
        assert written(collector.env).count("recurrent_state") == 1
        assert next(iter(collector))["recurrent_state"].shape[-1] == 5


def test_an_env_that_lacks_nothing_is_not_wrapped():
    env = primed()
    for given in (policy(), Answer(push), push):
        options = {"frames_per_batch": 4, "auto_register_policy_transforms": True}
        with Collector(env, given, **options) as collector:
            assert collector.env is env
            collector.shutdown(close_env=False)


class Failing(Counting):
    """Fails once, in its fourth step."""

    failed = False

    def _step(self, tensordict):
        if int(self._step_nr) == 3 and not Failing.failed:
            Failing.failed = True
            raise ArithmeticError("once")
        return super()._step(tensordict)


def test_an_env_that_is_built_anew_gets_the_transforms_again():
    options = {"on_env_error": "restart", "auto_register_policy_transforms": True}
    with Collector(Failing, policy(), frames_per_batch=6, **options) as collector:
        batch = next(iter(collector))
        assert Failing.failed
        assert "recurrent_state" in written(collector.env)
    assert batch["is_init"][0]
    assert not batch["recurrent_state"][0].any()


def test_nothing_is_supplied_where_that_is_refused():
    with pytest.raises(KeyError, match="is_init"):
        Collector(Counting(), policy(), frames_per_batch=4, auto_register_policy_transforms=False)


def test_an_env_of_gymnasium_takes_no_transforms_and_is_supplied_beside():
    def count(observation, state, is_init):
        state = observation.new_zeros(1) if state is None else state
        return observation.sum().long() * 0, state + 1

    module = TensorDictModule(count, ["observation", "state", "is_init"], ["action", ("next", "state")])
    batch = first(lambda: gym.make("CartPole-v1"), module, auto_register_policy_transforms=True)
    assert batch["state"].flatten()[:4].tolist() == [0, 1, 2, 3]


class Needy(Counting):
    """Looks at the action."""

    def _step(self, tensordict):
        tensordict["action"].sum()
        return super()._step(tensordict)


@pytest.mark.parametrize("make", [Needy, lambda: GymEnv("CartPole-v1")])
def test_a_step_without_an_action_is_an_error_that_says_what_was_there_instead(make):
    silent = TensorDictModule(lambda observation: observation, ["observation"], ["value"])
    with (
        Collector(make(), silent, frames_per_batch=4) as collector,
        pytest.raises(KeyError, match=r"must answer with the action \['action'\]; the entries are .*'value'"),
    ):
        next(iter(collector))
