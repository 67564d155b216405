"""`RayEvalWorker`: one rollout per submit, in an actor of Ray."""

import gc
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from eval_mischief import Mischief
from gymnasium.vector import SyncVectorEnv

import ray_cluster
from swath import RayEvalWorker
from swath.errors import Closed, PlacementFailed, Superseded, WorkerLost
from toys import DEADLINE_S

NAME = "of the tests"
NUMBERS = (
    *("reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"),
    *("reward_ci_low", "reward_ci_high", "num_episodes", "num_frames", "episode_length", "fps", "duration_s"),
    *("policy_version", "episode_rewards", "episode_lengths", "truncated", "frames", "frames_truncated"),
)
OPTIONS = {"num_gpus": 0, "num_cpus": 1}


class Steps(gym.Env):
    """Ends after `length` steps, or never; the reward is the action, the brightness of a frame is the step."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(5)
    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, length=None, mischief=None):
        self.length, self.mischief = length, mischief

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.made = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.made += 1
        if self.mischief is not None:
            self.mischief.obey("step")
        return np.zeros(1, np.float32), float(action), self.made == self.length, False, {}

    def render(self):
        return np.full((4, 6, 3), min(self.made, 255), np.uint8)


class Constant(torch.nn.Module):
    def __init__(self, action=1):
        super().__init__()
        self.action = torch.nn.Parameter(torch.tensor(float(action)))

    def forward(self, observation):
        return torch.full(observation.shape[:-1], round(self.action.item()))


class Ones:
    """A policy without weights."""

    def __call__(self, observation):
        return torch.ones(observation.shape[:-1], dtype=torch.long)


def two():
    """Return two envs with episodes of 3 and 9 steps."""
    return SyncVectorEnv([partial(Steps, 3), partial(Steps, 9)])


@pytest.fixture(scope="module")
def ray():
    return ray_cluster.up()


@pytest.fixture(scope="module")
def mischief(tmp_path_factory):
    return Mischief.at(tmp_path_factory.mktemp("mischief"))


@pytest.fixture(scope="module")
def worker(ray, mischief):
    """Return a worker for all tests that do not break it; a new one takes seconds to import torch."""
    with RayEvalWorker(None, partial(Steps, mischief=mischief), Constant, name=NAME, **OPTIONS) as worker:
        yield worker


@pytest.fixture(scope="module")
def pair(ray):
    """Return a worker of two envs and a policy without weights, with room for two frames."""
    with RayEvalWorker(None, two, Ones, max_video_bytes=2 * 4 * 6 * 3, **OPTIONS) as worker:
        yield worker


def played(worker, max_steps, weights=None):
    worker.submit(weights, max_steps)
    return worker.poll(None)


# Rollouts


def test_the_reward_is_a_return_and_each_step_has_a_frame(worker):
    result = played(worker, 9, Constant(2))
    assert (result["reward"], result["episode_length"], result["num_frames"]) == (18.0, 9.0, 9)
    assert result["frames"].shape == (9, 4, 6, 3)
    assert result["frames"].dtype == torch.uint8
    assert result["frames"].device.type == "cpu"


def test_weights_are_those_of_the_moment_and_stay(worker):
    policy = Constant(2)
    worker.submit(policy, 3)
    with torch.no_grad():
        policy.action.fill_(3.0)
    results = [worker.poll(None), played(worker, 3, policy), played(worker, 3)]
    assert [result["reward"] for result in results] == [6.0, 9.0, 9.0]
    version = results[0]["policy_version"]
    assert [result["policy_version"] for result in results] == [version, version + 1, version + 1]


def test_a_later_submit_does_not_wait_for_an_earlier_one(worker):
    worker.submit(None, None)
    worker.submit(None, 2)
    assert worker.poll(None)["num_frames"] == 2
    assert worker.poll() is None


def test_another_handle_takes_over_what_is_played_and_the_first_raises_superseded(worker, mischief):
    mischief.order("step", "hang")
    worker.submit(None, None)
    mischief.gate.await_arrival()
    mischief.gate.open()
    assert played(RayEvalWorker.from_name(NAME), 2)["num_frames"] == 2
    with pytest.raises(Superseded, match="another handle"):
        worker.poll(None)
    assert worker.poll(None) is None


@pytest.mark.parametrize(("break_when_any_done", "lengths"), [(True, [3, 3]), (False, [3, 9])])
def test_a_batch_stops_with_the_first_that_is_done_or_goes_on_until_all_are(pair, break_when_any_done, lengths):
    pair.submit(None, 20, break_when_any_done=break_when_any_done)
    result = pair.poll(None)
    assert result.keys() == {*NUMBERS}
    assert result["episode_lengths"].tolist() == result["episode_rewards"].tolist() == lengths
    assert result["truncated"].tolist() == [False, lengths[1] == 3]
    assert (result["num_frames"], result["reward"]) == (sum(lengths), sum(lengths) / 2)
    assert result["frames"][:, 0, 0, 0].tolist() == [1, 2]
    assert result["frames_truncated"]


# Names


def test_a_name_is_taken_once(worker):
    with pytest.raises(ValueError, match="from_name"):
        RayEvalWorker(None, Steps, Constant, name=NAME, **OPTIONS)


def test_an_unknown_name_is_an_error_with_the_namespace(ray):
    with pytest.raises(ValueError, match="'unknown' in namespace 'elsewhere'"):
        RayEvalWorker.from_name("unknown", namespace="elsewhere")


DRIVER = """
import os
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
ray.init({address!r}, log_to_driver=False, logging_level="ERROR", namespace="another")
from swath import RayEvalWorker
import gymnasium as gym
policy = lambda: lambda observation: (observation.sum(-1) > 0).long()
worker = RayEvalWorker(None, lambda: gym.make("CartPole-v1"), policy, name="left", num_gpus=0, num_cpus=1)
worker.submit(None, 3)
print(worker.poll(None)["reward"])
"""


def test_a_later_driver_finds_and_ends_a_named_actor(ray):
    address = ray.get_runtime_context().gcs_address
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    command = [sys.executable, "-c", DRIVER.format(address=address)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.stdout.split() == ["3.0"], done.stderr
    with RayEvalWorker.from_name("left") as found:
        assert played(found, 4)["reward"] == 4
        third = RayEvalWorker.from_name("left")
    with pytest.raises(WorkerLost, match="the handle that built it begins another"):
        played(third, 2)
    with pytest.raises(ValueError, match="no actor named"):
        RayEvalWorker.from_name("left")


def test_any_handle_gets_the_newest_result_that_none_has_read(worker):
    other, third = RayEvalWorker.from_name(NAME), RayEvalWorker.from_name(NAME)
    worker.submit(Constant(2), 3)
    first = other.poll(60)
    assert (first["reward"], first["num_frames"], first["frames"].shape) == (6.0, 3, (3, 4, 6, 3))
    assert first.keys() == {*NUMBERS}
    assert third.poll(None) is None
    result = worker.poll(60)
    assert result.pop("frames").equal(first.pop("frames"))
    assert {name: result[name] for name in ("reward", "reward_ci_low", "policy_version")}.items() <= first.items()
    played(other, 2)
    assert (worker.poll(None), third.poll()) == (None, None)


class UntilFile(Steps):
    """Ends when a file exists."""

    def __init__(self, file, mischief):
        super().__init__(None, mischief)
        self.file = file

    def step(self, action):
        observation, reward, _, truncated, info = super().step(action)
        return observation, reward, self.file.exists(), truncated, info

    def render(self):
        return super().render()[:1, :1]


def test_another_handle_waits_for_a_rollout_and_plays_it_on_where_its_own_is_gone(ray, tmp_path):
    mischief = Mischief.at(tmp_path)
    mischief.order("step", "hang")
    first = RayEvalWorker(None, partial(UntilFile, tmp_path / "end", mischief), Constant, name="on", **OPTIONS)
    first.submit(None, None)
    with RayEvalWorker.from_name("on") as second:
        mischief.gate.await_arrival()
        mischief.gate.open()
        assert second.poll() is None
        del first
        gc.collect()
        (tmp_path / "end").touch()
        result = second.poll(60)
        assert result["num_frames"] == result["reward"] >= 1


# Faults


def test_a_lost_actor_is_an_error_for_from_name_and_its_builder_replaces_it_and_repeats(worker, mischief):
    version = [played(worker, 1, Constant(action))["policy_version"] for action in (2, 3)][-1]
    mischief.order("step", "kill")
    with pytest.raises(WorkerLost, match=r"the handle that built it begins another.*from_name"):
        played(RayEvalWorker.from_name(NAME), 2)
    lost_idle = played(worker, 2)
    mischief.order("step", "kill")
    lost_at_work = played(worker, 4)
    assert (lost_idle["reward"], lost_at_work["reward"]) == (6.0, 12.0)
    mischief.order("step", "kill", times=2)
    with pytest.raises(WorkerLost):
        played(worker, 2)
    after_too_many = played(worker, 2)
    for result in (lost_idle, lost_at_work, after_too_many):
        assert (result["policy_version"], result["reward"] / result["num_frames"]) == (version, 3)
    assert played(RayEvalWorker.from_name(NAME), 3)["num_frames"] == 3


def test_init_fn_runs_first_and_finds_no_torch(ray):
    def init():
        import sys

        sys.found = "torch" in sys.modules

    def policy():
        import sys

        if sys.found:
            raise AssertionError("torch was imported before init_fn")
        return Ones()

    with RayEvalWorker(init, two, policy, **OPTIONS) as worker:
        assert played(worker, 2)["reward"] == 2


def test_a_worker_without_room_raises_and_ends_at_once(ray):
    worker = RayEvalWorker(None, two, Ones, placement_timeout_s=0.5)
    worker.submit(None, 2)
    with pytest.raises(PlacementFailed, match="num_gpus=0"):
        worker.poll(None)
    worker.shutdown()
    with pytest.raises(Closed):
        worker.submit(None, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_restarts": 1}, "max_restarts"),
        ({"name": "x", "lifetime": "detached"}, "lifetime"),
        ({"retries": -1}, "retries"),
    ],
    ids=str,
)
def test_bad_options_are_refused_before_anything_is_begun(options, message):
    with pytest.raises(ValueError, match=message):
        RayEvalWorker(None, two, Ones, **options)
