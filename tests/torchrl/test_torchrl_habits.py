"""More of what users of TorchRL count on: specs that fill themselves, private keys, nested flags, devices."""

import pytest
import torch
import torchrl_toys as toys
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torchrl.envs import (
    InitTracker,
    TransformedEnv,
)
from torchrl.modules import RandomPolicy
from torchrl_toys import Answer, Counting, push

from swath import Collector


def first(env, policy=None, *, frames=12, **options):
    """The first batch; the collector is shut down."""
    with Collector(env, policy, frames_per_batch=frames, **options) as collector:
        return next(iter(collector))


def pushing():
    return Answer(push)


class Sees(TensorDictModuleBase):
    """Notes the device of the TensorDict it gets."""

    in_keys, out_keys = ["observation"], ["action"]

    def forward(self, tensordict):
        self.device = tensordict.device
        return tensordict.set("action", push(tensordict["observation"]))


@pytest.mark.parametrize(
    "policy", [{"policy": RandomPolicy()}, {"policy_factory": RandomPolicy}], ids=["policy", "factory"]
)
def test_a_random_policy_of_torchrls_without_a_spec_gets_the_envs(policy):
    batch = first(Counting, **policy)
    assert batch["action"].unique().numel() > 6
    if "policy" in policy:
        assert policy["policy"].action_spec is not None


@pytest.mark.parametrize("key", ["_secret", ("out", "_secret"), ("_out", "secret")])
def test_private_entries_of_a_policy_are_not_delivered(key):
    policy = TensorDictSequential(pushing(), TensorDictModule(lambda x: x, ["observation"], [key]))
    batch = first(Counting, policy)
    keys = [(key,) if isinstance(key, str) else key for key in batch.keys(True, True)]
    assert not [key for key in keys if any(part.startswith("_") for part in key)]
    assert "action" in batch


def test_set_truncated_marks_the_last_step_also_where_flags_are_nested():
    env = TransformedEnv(toys.NestedKeys(), InitTracker()).add_truncated_keys()
    policy = Answer(lambda clock: torch.cat([clock, clock], -1).float(), ("sensors", "clock"), ("control", "motor"))
    batch = first(env, policy, frames=6, set_truncated=True)
    assert batch["next", "truncated"].flatten().tolist() == [False] * 5 + [True]
    assert batch["next", "part", "truncated"].flatten().tolist() == [False] * 5 + [True]
    assert bool(batch["next", "done"][-1])


def test_a_policy_sees_the_device_it_was_given_and_none_if_none_was():
    first(Counting, policy := Sees(), policy_device="cpu")
    assert policy.device == torch.device("cpu")
    batch = first(Counting, policy := Sees(), env_device="cpu")
    assert policy.device is None
    assert torch.equal(batch["action"], push(batch["observation"]))


def test_a_batch_whose_shapes_change_is_the_users_to_write_in():
    policy = Answer(lambda count: push(count.float()), "count")
    with Collector(toys.Growing, policy, frames_per_batch=6) as collector:
        _, batch = collector.next(), collector.next()
        assert [int(step["count"]) for step in batch.unbind(0)] == [2, 3, 4, 5, 6, 0]
        for step in batch.unbind(0):
            step["next", "count"].fill_(-7)
        assert [int(step["count"]) for step in batch.unbind(0)] == [2, 3, 4, 5, 6, 0]
        following = collector.next()
    assert [int(step["count"]) for step in following.unbind(0)] == [1, 2, 0, 1, 2, 3]
