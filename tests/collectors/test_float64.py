"""Observations of float64: float32 by default, with a warning where that cannot tell integers apart, or as they are."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import ray_cluster
from swath import Collector, MultiAsyncCollector, MultiSyncCollector, RayCollector
from swath.learn import make_policy

pytestmark = pytest.mark.usefixtures("fork_server")

START = 1_700_000_000.0
ONE = spaces.Box(0, np.inf, (1,), np.float64)
LARGE = r"the env returned 17000000\d\d\.0 for {} which becomes float32: .* pass keep_float64=True"


class Clock(gym.Env):
    """Observes unix time, a second a step; an episode takes 3 steps."""

    observation_space = ONE
    action_space = spaces.Discrete(2)

    def __init__(self, start=START):
        self._start = start

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return self._look(), {}

    def step(self, action):
        self._steps += 1
        return self._look(), 0.0, False, self._steps == 3, {}

    def _look(self):
        return np.array([self._start + self._steps])


class Nested(Clock):
    """Observes time in seconds below `"inner"`, and whole numbers and an image."""

    observation_space = spaces.Dict(
        inner=spaces.Tuple([ONE, spaces.Box(0, 2**40, (), np.int64)]), image=spaces.Box(0, 255, (2, 2), np.uint8)
    )

    def _look(self):
        return {"inner": (super()._look(), np.int64(2**32 + self._steps)), "image": np.zeros((2, 2), np.uint8)}


def times(batch, key="observation"):
    """Return the seconds since the start, in the order of the rows."""
    assert batch[key].dtype == batch["next", key].dtype == torch.float64
    steps, following = (entry.flatten() - START for entry in (batch[key], batch["next", key]))
    assert (following - steps).tolist() == [1.0] * batch.numel()
    return steps.tolist()


@pytest.mark.parametrize(
    "policy", [None, lambda observation: (observation[..., 0] - START).long() % 2], ids=["random", "own"]
)
@pytest.mark.parametrize("envs", [None, 2])
def test_an_option_keeps_the_dtype_for_batch_and_policy(envs, policy):
    with Collector(Clock, policy, frames_per_batch=8, envs_per_worker=envs, keep_float64=True) as collector:
        batch = collector.next()
    assert times(batch) == [0.0, 1, 2, 0, 1, 2, 0, 1] if envs is None else [0.0, 1, 2, 0] * 2
    if policy is not None:
        assert torch.equal(batch["action"], policy(batch["observation"]))


def test_entries_of_other_dtypes_stay_what_they_are():
    with Collector(Nested, frames_per_batch=3, keep_float64=True) as collector:
        batch = collector.next()
    assert times(batch, "inner_0") == [0, 1, 2]
    assert (batch["inner_1"] - 2**32).tolist() == [0, 1, 2]
    assert batch["image"].dtype == torch.uint8


@pytest.mark.parametrize("mode", AutoresetMode)
def test_vector_envs_keep_it_in_each_mode_also_in_last_observations(mode):
    env = SyncVectorEnv([Clock, Clock], autoreset_mode=mode)
    with Collector(env, frames_per_batch=16, keep_float64=True) as collector:
        batch = collector.next()
    valid = batch[batch["collector", "mask"]] if mode is AutoresetMode.NEXT_STEP else batch
    assert {*times(valid)} == {0.0, 1, 2}


@pytest.mark.parametrize("kind", [MultiSyncCollector, MultiAsyncCollector])
@pytest.mark.parametrize("backend", ["thread", "process"])
def test_collectors_with_workers_keep_it(kind, backend):
    with kind([Clock] * 2, frames_per_batch=6, keep_float64=True, backend=backend) as collector:
        assert {*times(collector.next())} == {0.0, 1, 2}


@pytest.mark.usefixtures("lent_actors")
def test_ray_collectors_keep_it():
    ray_cluster.up()
    with RayCollector([Clock] * 2, frames_per_batch=6, keep_float64=True, sync=True) as collector:
        assert {*times(collector.next())} == {0.0, 1, 2}


def test_networks_of_ours_take_it():
    policy = make_policy(Clock.observation_space, Clock.action_space)
    with Collector(Clock, policy, frames_per_batch=4, keep_float64=True) as collector:
        batch = collector.next()
    policy.update_encoder([batch["observation"]])
    assert policy.value([batch["observation"]]).dtype == torch.float32


# ---- without the option


def reached_late(start, steps):
    """Collect so many steps, which begin at `start`."""
    with Collector(partial(Clock, start), frames_per_batch=steps) as collector:
        return collector.next()


@pytest.mark.parametrize(("start", "message"), [(2**24 - 2, 16777216.0), (-(2**24) - 9, -16777225.0)])
def test_without_it_a_value_that_float32_cannot_tell_from_its_neighbours_warns_once(start, message):
    with pytest.warns(UserWarning, match=f"the env returned {message} for 'observation', which becomes") as caught:
        batch = reached_late(start, 6)
    assert len(caught) == 1
    assert batch["observation"].dtype == torch.float32


def test_it_warns_once_for_each_entry_and_names_it():
    with pytest.warns(UserWarning, match=LARGE.format("'inner_0',")) as caught:  # noqa: SIM117
        with Collector(Nested, frames_per_batch=12, envs_per_worker=2) as collector:
            collector.next()
    assert len(caught) == 1


@pytest.mark.parametrize("start", [np.inf, -np.inf, np.nan, -1e6, 2**24 - 4])
def test_numbers_that_float32_tells_apart_do_not_warn(start):
    np.testing.assert_array_equal(reached_late(start, 3)["next", "observation"][:, 0], np.arange(1, 4) + start)


def test_whole_numbers_of_an_env_whose_space_is_float64_warn_too():
    class Whole(Clock):
        def _look(self):
            return [int(START) + self._steps]

    with pytest.warns(UserWarning, match="which becomes float32"), Collector(Whole, frames_per_batch=3):
        pass


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_a_last_observation_of_a_vector_env_warns_too(mode):
    env = SyncVectorEnv([partial(Clock, 2.0**24 - 3)], autoreset_mode=mode)  # only the third step leads there
    with Collector(env, frames_per_batch=2) as collector:
        collector.next()
        with pytest.warns(UserWarning, match=r"16777216\.0 for 'observation'"):
            collector.next()
