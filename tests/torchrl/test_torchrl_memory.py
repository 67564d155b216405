"""What a policy with a memory reads and an env lacks: supplied beside the env, by its transforms, or not at all."""

import gymnasium as gym
import pytest
import torch
import torchrl_toys as toys
from tensordict.nn import TensorDictModule
from torchrl.envs import InitTracker, SerialEnv, TransformedEnv
from torchrl_toys import Counting

from swath import Collector


def policy():
    return toys.lstm(1)[1]


def first(env, *args, frames=12, **options):
    with Collector(env, *args, frames_per_batch=frames, **options) as collector:
        return next(iter(collector))


def written(env):
    return list(env.full_observation_spec.keys(True, True))


@pytest.mark.parametrize("asked", [None, True])
def test_what_an_env_lacks_is_supplied_beside_it(asked):
    env = Counting()
    with Collector(env, policy(), frames_per_batch=12, auto_register_policy_transforms=asked) as collector:
        assert collector.env is env
        batch = next(iter(collector))
    by_transforms = first(primed(), policy())
    for key in ("action", "features", "is_init", "recurrent_state_h", ("next", "recurrent_state_c")):
        assert torch.equal(batch[key], by_transforms[key]), key


def tracked():
    return TransformedEnv(Counting(), InitTracker())


def primed():
    return TransformedEnv(tracked(), toys.lstm(1)[0].make_tensordict_primer())


@pytest.mark.parametrize("make", [tracked, primed, lambda: SerialEnv(2, tracked)], ids=["tracked", "primed", "serial"])
def test_what_the_env_writes_already_is_not_supplied_again(make):
    with Collector(make, policy(), frames_per_batch=4, auto_register_policy_transforms=True) as collector:
        assert [key for key in written(collector.env) if key[-1] == "is_init" or key == "is_init"] == ["is_init"]
        assert next(iter(collector))["recurrent_state_h"].shape[-1] == 5


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
