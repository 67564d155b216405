"""`RayEvalWorker`: one rollout per submit, in an actor of Ray."""

import contextlib
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

import ray_cluster
from swath import RayEvalWorker
from swath.errors import Closed, PlacementFailed, Superseded, WorkerLost
from toys import Gate

NAME = "the tests' own"
NUMBERS = (
    *("reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"),
    *("reward_ci_low", "reward_ci_high", "num_episodes", "num_frames", "episode_length", "fps", "duration_s"),
    *("policy_version", "episode_rewards", "episode_lengths", "truncated", "frames", "frames_truncated"),
)
OPTIONS = {"num_gpus": 0, "num_cpus": 1}


class Steps(gym.Env):
    """Ends after so many steps, `None`: never; earns what the action is. A frame is as bright as its step.

    Waits at each step for as long as a gate is closed; raises for as long as a file is there.
    """

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(5)
    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, length=None, gate=None, breaks=None):
        self.length, self.gate, self.breaks = length, gate, breaks

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.made = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.made += 1
        if self.gate is not None:
            self.gate.go_through()
        if self.breaks is not None and self.breaks.exists():
            raise OSError("broken")
        return np.zeros(1, np.float32), float(action), self.made == self.length, False, {}

    def render(self):
        return np.full((4, 6, 3), min(self.made, 255), np.uint8)


class Constant(torch.nn.Module):
    def __init__(self, action=1):
        super().__init__()
        self.action = torch.nn.Parameter(torch.tensor(float(action)))

    def forward(self, observation):
        return torch.full(observation.shape[:-1], round(self.action.item()))


class Upright:
    """A policy without weights."""

    def __call__(self, observation):
        return (observation[..., 1:].sum(-1) > 0).long()


class Ones:
    def __call__(self, observation):
        return torch.ones(observation.shape[:-1], dtype=torch.long)


def cartpole():
    return gym.make("CartPole-v1")


def two():
    """Their first episodes have 3 and 9 steps."""
    return SyncVectorEnv([partial(Steps, 3), partial(Steps, 9)])


@pytest.fixture(scope="module")
def ray():
    return ray_cluster.up()


@pytest.fixture
def gate(tmp_path):
    gate = Gate.at(tmp_path / "gate")
    yield gate
    gate.open()


@pytest.fixture(scope="module")
def worker(ray):
    """For tests that leave it as it is; a fresh one takes seconds to import torch."""
    with RayEvalWorker(None, Steps, Constant, name=NAME, **OPTIONS) as worker:
        worker.submit(None, 1)
        worker.poll(None)
        yield worker


@pytest.fixture(scope="module")
def pair(ray):
    """Two envs and a policy without weights, with room for two frames."""
    with RayEvalWorker(None, two, Ones, max_video_bytes=2 * 4 * 6 * 3, **OPTIONS) as worker:
        yield worker


def kill(name):
    """Kill the actor of that name, and wait until it has none any more."""
    ray = ray_cluster.up()
    ray.kill(ray.get_actor(name, namespace="swath"))
    with contextlib.suppress(ValueError):
        while True:
            ray.get_actor(name, namespace="swath")


def played(worker, max_steps):
    worker.submit(None, max_steps)
    return worker.poll(None)


# Rollouts


def test_the_reward_is_a_return_and_each_step_has_a_frame(worker):
    worker.submit(Constant(2), 9)
    result = worker.poll(None)
    assert (result["reward"], result["episode_length"], result["num_frames"]) == (18.0, 9.0, 9)
    assert result["frames"].shape == (9, 4, 6, 3)
    assert result["frames"].dtype == torch.uint8
    assert result["frames"].device.type == "cpu"


def test_weights_are_those_of_the_moment_and_stay(worker):
    policy = Constant(2)
    worker.submit(policy, 3)
    with torch.no_grad():
        policy.action.fill_(3.0)
    first = worker.poll(None)
    worker.submit(policy, 3)
    second = worker.poll(None)
    worker.submit(None, 3)
    third = worker.poll(None)
    assert [result["reward"] for result in (first, second, third)] == [6.0, 9.0, 9.0]
    assert third["policy_version"] == second["policy_version"] == first["policy_version"] + 1


def test_a_later_submit_does_not_wait_for_an_earlier_one(worker):
    worker.submit(None, None)
    worker.submit(None, 2)
    assert worker.poll(None)["num_frames"] == 2
    assert worker.poll() is None


def test_another_handle_takes_over_what_is_played_and_the_first_is_told(ray, gate):
    with RayEvalWorker(None, partial(Steps, gate=gate), Constant, name="taken over", **OPTIONS) as worker:
        worker.submit(None, None)
        gate.await_arrival()
        gate.open()
        other = RayEvalWorker.from_name("taken over")
        assert played(other, 2)["num_frames"] == 2
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


def test_a_name_that_nobody_has_is_an_error_with_the_namespace(ray):
    with pytest.raises(ValueError, match="'nobody' in namespace 'elsewhere'"):
        RayEvalWorker.from_name("nobody", namespace="elsewhere")


DRIVER = """
import os
os.environ["RAY_AUTH_MODE"] = "disabled"
import ray
ray.init({address!r}, log_to_driver=False, logging_level="ERROR", namespace="another")
from swath import RayEvalWorker
import gymnasium as gym

class Policy:
    def __call__(self, observation):
        return (observation.sum(-1) > 0).long()

worker = RayEvalWorker(None, lambda: gym.make("CartPole-v1"), Policy, name="left", num_gpus=0, num_cpus=1)
worker.submit(None, 3)
print(worker.poll(None)["reward"])
"""


def test_a_later_driver_finds_and_ends_what_an_earlier_one_has_left(ray):
    address = ray.get_runtime_context().gcs_address
    script = textwrap.dedent(DRIVER).format(address=address)
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.split() == ["3.0"], done.stderr
    with RayEvalWorker.from_name("left") as found:
        found.submit(None, 4)
        assert found.poll(None)["reward"] == 4
        third = RayEvalWorker.from_name("left")
    with pytest.raises(WorkerLost, match="the handle that built it begins another"):
        played(third, 2)
    with pytest.raises(ValueError, match="no actor named"):
        RayEvalWorker.from_name("left")


def test_a_handle_that_found_the_actor_gets_its_loss_and_the_one_that_built_it_replaces_it(ray, gate):
    with RayEvalWorker(None, partial(Steps, gate=gate), Constant, name="lost once", **OPTIONS) as worker:
        other = RayEvalWorker.from_name("lost once")
        other.submit(None, 2)
        gate.await_arrival()
        kill("lost once")
        gate.open()
        with pytest.raises(WorkerLost, match=r"the handle that built it begins another.*from_name"):
            other.poll(None)
        assert played(worker, 2)["reward"] == 2
        assert played(RayEvalWorker.from_name("lost once"), 3)["reward"] == 3


# Faults


def test_an_actor_that_is_lost_at_work_or_idle_is_replaced_and_the_rollout_repeated(ray, gate):
    with RayEvalWorker(None, partial(Steps, gate=gate), Constant, name="repeated", **OPTIONS) as worker:
        worker.submit(Constant(3), 4)
        gate.await_arrival()
        kill("repeated")
        gate.open()
        result = worker.poll(None)
        assert (result["reward"], result["policy_version"]) == (12.0, 1)
        kill("repeated")
        again = played(worker, 2)
        assert (again["reward"], again["policy_version"]) == (6.0, 1)


def test_init_fn_runs_first_and_finds_no_torch(ray):
    def init():
        import sys

        sys.found = "torch" in sys.modules

    def policy():
        import sys

        if sys.found:
            raise AssertionError("torch was imported before init_fn")
        return Upright()

    with RayEvalWorker(init, cartpole, policy, **OPTIONS) as worker:
        assert played(worker, 2)["reward"] == 2


def test_without_room_it_says_so_and_ends_at_once(ray):
    worker = RayEvalWorker(None, cartpole, Upright, placement_timeout_s=0.5)
    worker.submit(None, 2)
    with pytest.raises(PlacementFailed, match="num_gpus=0"):
        worker.poll(None)
    worker.shutdown()
    with pytest.raises(Closed):
        worker.submit(None, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_restarts": 1}, "max_restarts"),
        ({"name": "x", "lifetime": "detached"}, "lifetime"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"start_timeout_s": float("inf")}, "start_timeout_s"),
        ({"retries": -1}, "retries"),
        ({"max_video_bytes": 0}, "max_video_bytes"),
        ({"reward_keys": []}, "reward_keys"),
    ],
    ids=str,
)
def test_bad_options_are_refused_before_anything_is_begun(options, said):
    with pytest.raises(ValueError, match=said):
        RayEvalWorker(None, cartpole, Upright, **options)
