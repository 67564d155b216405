"""Conventions of TorchRL apart from the data: specs, flags, private keys, devices, transforms, replay buffers."""

import warnings

import pytest
import torch
import torchrl_toys as toys
from tensordict.nn import TensorDictModule
from torchrl.envs import (
    Compose,
    EnvCreator,
    InitTracker,
    ObservationNorm,
    ParallelEnv,
    RewardSum,
    SerialEnv,
    TransformedEnv,
    VecNormV2,
)
from torchrl_toys import Answer, Counting, push

from swath import Collector, MultiSyncCollector

pytestmark = pytest.mark.usefixtures("fork_server")


def first(env, policy=None, *, frames=12, **options):
    """Return the first batch of a collector, and shut it down."""
    with Collector(env, policy, frames_per_batch=frames, **options) as collector:
        return next(iter(collector))


def pushing():
    return Answer(push)


class Impatient(Counting):
    """An env with `patience` steps per episode."""

    def __init__(self, patience=3):
        self.lengths = (patience,)
        super().__init__()


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


class Reusing(Counting):
    """An env that writes all observations into one array."""

    lengths = (100,)

    def _seen(self):
        self.kept = getattr(self, "kept", torch.zeros(1))
        return {"observation": self.kept.copy_(self._step_nr)}


def test_batches_of_an_env_that_uses_its_memory_again_are_not_overwritten():
    with Collector(Reusing, pushing(), frames_per_batch=7) as collector:
        batches = [collector.next(), collector.next()]
    observation = [batch["next", "observation"].flatten().tolist() for batch in batches]
    assert observation == [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14]]


@pytest.mark.parametrize("env", [Counting, lambda: SerialEnv(2, Counting)])
def test_a_limit_of_steps_truncates_and_counts(env):
    batch = first(env, pushing(), frames=8, max_frames_per_traj=2)
    assert batch["step_count"].unique().tolist() == [0, 1]
    assert torch.equal(batch["next", "truncated"], batch["next", "step_count"] == 2)
    assert not batch["next", "terminated"].any()


def test_envs_per_worker_makes_a_batch_of_copies():
    for env in (Counting, Counting()):
        assert first(env, pushing(), frames=8, envs_per_worker=2).batch_size == (2, 4)
    with pytest.raises(ValueError, match="batched already"):
        first(lambda: Counting((2,)), pushing(), envs_per_worker=2)


def test_random_actions_come_from_the_spec_and_what_the_policy_would_write_is_nan():
    policy = TensorDictModule(lambda x: (x * 0, x + 5), ["observation"], ["action", "value"])
    with Collector(Counting, policy, frames_per_batch=4, init_random_frames=4, check_finite=True) as collector:
        first, second = collector.next(), collector.next()
    assert first["action"].any()
    assert first["value"].isnan().all()
    assert not second["action"].any()
    assert second["value"].flatten().tolist() == [5, 6, 7, 8]


def test_the_state_of_transforms_is_saved_and_restored():
    def normed(loc):
        return TransformedEnv(Counting(), Compose(RewardSum(), ObservationNorm(loc, 1.0, in_keys=["observation"])))

    with Collector(lambda: normed(7.0), pushing(), frames_per_batch=4) as first:
        saved = first.state_dict()
        assert first.getattr_env("transform[1].loc") == 7
    with Collector(lambda: normed(0.0), pushing(), frames_per_batch=4) as second:
        second.load_state_dict(saved)
        assert second.next()["observation"].flatten()[:4].tolist() == [7, 8, 9, 10]


def normalised():
    return TransformedEnv(Counting(), VecNormV2(["observation"]))


@pytest.mark.filterwarnings("ignore:VecNorm wasn")
def test_statistics_that_worker_processes_do_not_share_are_warned_of():
    policy = pushing()
    with (
        pytest.warns(
            UserWarning, match="statistics of an EnvCreator .* are not shared with workers in other processes"
        ),
        MultiSyncCollector([EnvCreator(normalised)], policy, frames_per_batch=4) as collector,
    ):
        assert collector.next().shape == (1, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        MultiSyncCollector([EnvCreator(Counting)], policy, frames_per_batch=4).shutdown()


def test_random_frames_leave_0_where_the_policy_reads_its_state():
    add = lambda observation, sums: (observation * 0, (0 if sums is None else sums) + observation)
    policy = TensorDictModule(add, ["observation", "sums"], ["action", ("next", "sums")])
    with Collector(Counting, policy, frames_per_batch=2, init_random_frames=2) as collector:
        first, second = collector.next(), collector.next()
    assert not first["next", "sums"].any()
    assert second["sums"].isfinite().all()
