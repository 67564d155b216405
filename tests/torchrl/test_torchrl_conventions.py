"""What users of TorchRL count on beside the data: specs, flags, private keys, devices, transforms, replay buffers."""

import pytest
import torch
import torchrl.collectors
import torchrl_toys as toys
from torchrl.envs import (
    EnvCreator,
    InitTracker,
    ParallelEnv,
    SerialEnv,
    TransformedEnv,
)
from torchrl_differences import differences
from torchrl_toys import Answer, Counting, push

from swath import Collector


def first(env, policy=None, *, frames=12, **options):
    """The first batch; the collector is shut down."""
    with Collector(env, policy, frames_per_batch=frames, **options) as collector:
        return next(iter(collector))


def pushing():
    return Answer(push)


class Impatient(Counting):
    """With episodes as long as it has patience."""

    def __init__(self, patience=3):
        self.lengths = (patience,)
        super().__init__()


def test_random_draws_are_those_of_torchrls_collector_after_the_same_manual_seed():
    batches = []
    for kind in (Collector, torchrl.collectors.Collector):
        policy = toys.gaussian(1, 1)
        collector = kind(Counting(), policy, frames_per_batch=12, total_frames=12)
        torch.manual_seed(5)
        batches += [batch.clone() for batch in collector]
        collector.shutdown()
    assert differences(*batches, ignore={("collector", "policy_version")}) == []
    assert batches[0]["action"].unique().numel() == 12


def test_set_truncated_for_an_env_without_such_a_flag_is_refused():
    with pytest.raises(RuntimeError, match="truncated"):
        first(Counting, pushing(), set_truncated=True)


@pytest.mark.parametrize(
    "make", [lambda: Counting, Counting, lambda: EnvCreator(Counting), lambda: SerialEnv(1, Counting)]
)
def test_classes_instances_and_creators_are_sources_and_are_closed_in_the_end(make):
    with Collector(make(), pushing(), frames_per_batch=4) as collector:
        next(iter(collector))
        env = collector.env
    assert env.is_closed


@pytest.mark.parametrize("batched", [SerialEnv, lambda *args: ParallelEnv(*args, mp_start_method="fork")])
def test_keywords_for_a_batched_instance_reach_the_makers_of_its_envs(batched):
    env = batched(2, Impatient)
    batch = first(env, pushing(), frames=8, create_env_kwargs={"patience": 2})
    assert batch["next", "done"].squeeze(-1).int().tolist() == [[0, 1, 0, 1]] * 2


def test_set_truncated_marks_the_last_step_also_where_flags_are_nested():
    env = TransformedEnv(toys.NestedKeys(), InitTracker()).add_truncated_keys()
    policy = Answer(lambda clock: torch.cat([clock, clock], -1).float(), ("sensors", "clock"), ("control", "motor"))
    batch = first(env, policy, frames=6, set_truncated=True)
    assert batch["next", "truncated"].flatten().tolist() == [False] * 5 + [True]
    assert batch["next", "part", "truncated"].flatten().tolist() == [False] * 5 + [True]
    assert bool(batch["next", "done"][-1])


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
