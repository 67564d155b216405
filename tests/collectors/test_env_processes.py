"""Envs in other processes: the batches of one process, the ways of `on_env_error`, and what is refused."""

import os
import signal
from functools import partial

import gymnasium as gym
import pytest
import torch
from collector_toys import Counts
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from swath import Collector, Evaluator, MultiSyncCollector, evaluate_policy
from swath.errors import EnvProcessLost
from traces import left, require_no_more_than

CARTPOLE = partial(gym.make, "CartPole-v1")


def swing(observation):
    return torch.randint(0, 2, observation.shape[:-1])


def collect(env, kind=Collector, policy=swing, **options):
    """Return two batches as one."""
    options = {"frames_per_batch": 120, "seed": 3, "info_keys": ["x"], **options}
    with kind(env, policy, **options) as collector:
        return torch.cat([collector.next(), collector.next()], -1)


class Informed(gym.Wrapper):
    """Puts the position into the info."""

    def step(self, action):
        observation, *rest, info = self.env.step(action)
        return observation, *rest, {**info, "x": observation[0]}


def informed():
    return Informed(gym.make("CartPole-v1"))


def require_equal(batch, other):
    keys = set(batch.keys(include_nested=True, leaves_only=True))
    assert keys == set(other.keys(include_nested=True, leaves_only=True))
    assert not [key for key in keys if not batch[key].isnan().equal(other[key].isnan())]
    assert not [key for key in keys if not batch[key].nan_to_num().equal(other[key].nan_to_num())]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_same_seed_gives_the_batches_of_one_process(fork_server, number):
    batch = collect(informed, envs_per_worker=3, max_frames_per_traj=7)
    assert not batch["next", "x"].isnan().any()
    require_equal(batch, collect(informed, envs_per_worker=3, max_frames_per_traj=7, env_processes=number))


def test_each_process_has_what_a_callable_returns(fork_server):
    halves = SyncVectorEnv, [CARTPOLE] * 2
    batch = collect(partial(halves[0], halves[1] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    require_equal(batch, collect(partial(*halves, autoreset_mode=AutoresetMode.SAME_STEP), env_processes=2))


def test_workers_have_env_processes_of_their_own(fork_server):
    two = [informed] * 2
    require_equal(
        collect(two, MultiSyncCollector, envs_per_worker=2),
        collect(two, MultiSyncCollector, envs_per_worker=2, env_processes=2),
    )


def follow(observation):
    """Push in the direction in which the pole falls."""
    return (observation[..., 2] > 0).long()


class Fails(Informed):
    """Raises in its ninth step, once."""

    n_steps = 0

    def step(self, action):
        self.n_steps += 1
        if self.n_steps == 9:
            raise ZeroDivisionError("in the env")
        return super().step(action)


def failing():
    return Fails(gym.make("CartPole-v1"))


class Stop:
    """Ends each fragment after three steps, except every fourth."""

    n_calls = 0

    def collection_stopped(self):
        self.n_calls += 1
        return self.n_calls % 4 == 3


LISTED = {"envs_per_worker": 5, "max_frames_per_traj": 7}


@pytest.mark.parametrize(
    ("env", "kind", "options"),
    [
        (informed, Collector, LISTED),
        (informed, Collector, {**LISTED, "policy": Counts()}),
        (failing, Collector, {**LISTED, "on_env_error": "reset"}),
        (informed, Collector, {**LISTED, "interruptor": Stop}),
        ([informed] * 2, MultiSyncCollector, {"envs_per_worker": 3}),
    ],
    ids=["list", "recurrent", "failing", "interrupted", "workers"],
)
def test_overlap_gives_the_same_batches(fork_server, env, kind, options):
    def run(**more):
        arguments = {"policy": follow, **options, **more}
        if "interruptor" in arguments:
            arguments["interruptor"] = Stop()
        return collect(env, kind, **arguments)

    require_equal(run(), run(env_processes=3, overlap=True))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_overlap_gives_the_same_batches_of_vector_envs(fork_server, mode):
    make = partial(partial, SyncVectorEnv, autoreset_mode=mode)
    batch = collect(make([CARTPOLE] * 4), policy=follow, frames_per_batch=160)
    require_equal(
        batch, collect(make([CARTPOLE] * 2), policy=follow, frames_per_batch=160, env_processes=2, overlap=True)
    )


def test_random_frames_overlap_too(fork_server):
    batch = collect(informed, envs_per_worker=4, env_processes=2, overlap=True, init_random_frames=120)
    assert batch["action"].unique().tolist() == [0, 1]
    assert batch["next", "x"].equal(batch["next", "observation"][..., :1])


def pids(collector):
    return collector.env.map(lambda env: os.getpid())


@pytest.fixture
def build(fork_server):
    """Return a function that builds a collector of 4 envs in 2 processes."""
    collectors = []

    def build(env="CartPole-v1", **options):
        options = {"frames_per_batch": 40, "envs_per_worker": 4, "env_processes": 2, "seed": 1, **options}
        collectors.append(Collector(env, swing, **options))
        return collectors[-1]

    yield build
    for collector in collectors:
        collector.shutdown()


@pytest.mark.parametrize("overlap", [False, True])
def test_a_killed_process_is_an_exception_of_its_env_and_the_next_draw_has_another(build, overlap):
    collector = build(overlap=overlap)
    os.kill(pids(collector)[2], signal.SIGKILL)
    with pytest.raises(EnvProcessLost, match="was killed by SIGKILL") as raised:
        collector.next()
    assert "raised by env 2 (seed" in raised.value.__notes__[0]
    assert collector.next().shape == (4, 10)


@pytest.mark.parametrize("overlap", [False, True])
def test_reset_keeps_the_rows_of_the_other_envs(build, overlap):
    collector, other = build(on_env_error="reset", overlap=overlap), build(overlap=overlap)
    os.kill(pids(collector)[0], signal.SIGKILL)
    batch, expected = collector.next(), other.next()
    assert collector.stats()["env_errors"] == 2
    assert batch.shape == (4, 10)
    first = batch["collector", "traj_ids"][:2, 0].tolist()
    assert len({*first}) == 2
    assert batch["observation"][2:, 0].equal(expected["observation"][2:, 0])


def test_restart_begins_a_new_life_of_the_source(build):
    collector = build(on_env_error="restart")
    before = pids(collector)
    os.kill(before[0], signal.SIGKILL)
    assert collector.next().shape == (4, 10)
    assert collector.stats()["restarts"] == 1
    assert not {*before} & {*pids(collector)}


@pytest.mark.parametrize("overlap", [False, True])
def test_chaos_delivers_every_frame_once(build, overlap):
    collector = build(on_env_error="reset", total_frames=-1, overlap=overlap)
    frames, ids = 0, set()
    for turn in range(12):
        os.kill(pids(collector)[turn % 4], signal.SIGKILL)
        batch = collector.next()
        frames += batch.numel()
        rows = batch["collector", "traj_ids"].flatten().tolist()
        ids |= {*rows}
        assert min(rows) >= 0
    stats = collector.stats()
    assert frames == stats["frames"] == 12 * 40
    assert 12 <= stats["env_errors"] <= 12 * 2
    assert len(ids) >= 12 * 2


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_shutdown_closes_the_envs_and_leaves_no_process(build, tmp_path):
    collector = build(partial(Closes, tmp_path))
    before = pids(collector)
    collector.shutdown()
    assert not [pid for pid in before if lives(pid)]
    assert len([*tmp_path.iterdir()]) == 4


def test_shutdown_leaves_no_process_thread_descriptor_or_memory(fork_server):
    def lose_a_process(overlap):
        options = {"envs_per_worker": 4, "env_processes": 2, "frames_per_batch": 40, "info_keys": ["x"]}
        with Collector(informed, swing, **options, on_env_error="reset", overlap=overlap) as collector:
            os.kill(pids(collector)[0], signal.SIGKILL)
            collector.next()

    lose_a_process(overlap=False)
    before = left()
    for overlap in (False, True):
        lose_a_process(overlap)
    require_no_more_than(before)


class Closes(gym.Wrapper):
    """Leaves a file when it is closed."""

    def __init__(self, folder):
        super().__init__(gym.make("CartPole-v1"))
        self.folder = folder

    def close(self):
        (self.folder / str(id(self))).with_suffix(f".{os.getpid()}").touch()
        super().close()


def test_attributes_of_envs_are_read_in_their_processes(build):
    collector = build()
    assert collector.env.get_attr("spec.id") == ["CartPole-v1"] * 4
    assert collector.getattr_env("unwrapped.gravity") == 9.8
    assert collector.env.num_envs == 4
    assert collector.env.action_space == gym.make("CartPole-v1").action_space


def broken():
    raise OSError("no display")


def ending():
    os._exit(3)


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [(broken, OSError, "no display"), (ending, EnvProcessLost, "ended with exit code 3")],
)
def test_an_env_that_cannot_be_built_raises_from_the_constructor(build, source, error, message):
    with pytest.raises(error, match=message):
        build(source)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env_processes": 0}, "env_processes=0 must be at least 1"),
        ({"env_processes": 5}, "env_processes=5 for envs_per_worker=4: each process needs an env"),
        ({"envs_per_worker": None}, "env_processes=2 for a single env; say with envs_per_worker"),
        ({"env": gym.make("CartPole-v1")}, r"env_processes=2 build their own envs: .* no instance \(TimeLimit\)"),
        ({"step_timeout_s": 0}, "step_timeout_s=0 must be"),
        ({"step_timeout_s": 5, "env_processes": None}, "step_timeout_s=5 is for env processes; set env_processes"),
        (
            {"overlap": True, "env_processes": None},
            "overlap=True steps halves of env processes, but env_processes=None",
        ),
        ({"overlap": True, "env_processes": 1}, "env_processes=1; set it to 2 or more, or leave overlap out"),
        ({"overlap": True, "check_finite": True}, "leave check_finite=True or overlap=True out"),
    ],
)
def test_numbers_and_sources_that_do_not_fit_are_refused(build, options, message):
    with pytest.raises(ValueError, match=message):
        build(**options)


def go_left(observation):
    return torch.zeros(observation.shape[:-1], dtype=torch.int64)


def test_evaluations_have_the_same_numbers(fork_server):
    play = partial(evaluate_policy, go_left, "CartPole-v1", n_eval_episodes=8, return_episode_rewards=True, num_envs=4)
    assert play() == play(env_processes=2)
    results = []
    for env_processes in (None, 2):
        with Evaluator(
            "CartPole-v1", go_left, num_trajectories=8, num_envs=4, env_processes=env_processes
        ) as evaluator:
            results.append(evaluator.evaluate())
    assert results[0].returns.tolist() == results[1].returns.tolist()
    assert results[0].seeds.tolist() == results[1].seeds.tolist()


def normalised():
    return gym.wrappers.RecordEpisodeStatistics(gym.wrappers.NormalizeObservation(gym.make("CartPole-v1")))


def test_evaluations_do_not_update_running_statistics(fork_server):
    play = partial(evaluate_policy, go_left, normalised, n_eval_episodes=4, return_episode_rewards=True, num_envs=2)
    assert play() == play(env_processes=2)


def test_an_evaluation_of_a_list_of_envs_is_refused():
    with pytest.raises(ValueError, match="env_processes=2 for a list of envs"):
        evaluate_policy(go_left, ["CartPole-v1"] * 2, env_processes=2)
