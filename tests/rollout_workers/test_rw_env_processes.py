"""Sub-envs in processes: the batches of one process, failures and lost processes, and what is refused."""

import os
import signal
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from mock_envs import MultiAgentCartPole
from swath import WorkerSet
from swath.errors import EnvProcessLost
from swath.rollout_workers import AlgorithmConfig, PPOTorchPolicy, RolloutWorker, ViewRequirement
from traces import left, require_no_more_than

N, F = 3, 8
ENVS = {"num_envs_per_env_runner": N, "rollout_fragment_length": F, "seed": 3, "model": {"fcnet_hiddens": [4]}}
RESTART = {"restart_failed_sub_environments": True, "delay_between_sub_environment_restarts_s": 0.0}

pytestmark = pytest.mark.usefixtures("fork_server")


class Arm(gym.Env):
    """Is moved by its action and half of the one before; episodes of random lengths; every other info has its step."""

    observation_space = spaces.Dict({"place": spaces.Box(-9, 9, (2,), np.float64), "arm": spaces.Discrete(N)})
    action_space = spaces.Box(-2, 2, (2,), np.float64)

    def __init__(self, context):
        self.number, self.fails_at, self.n_steps = context.vector_index, context.get("fails_at"), 0
        self.start = context.get("start", 0.0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.before = self.np_random.normal(size=2) + self.start, np.zeros(2)
        self.left = int(self.np_random.integers(2, 7))
        return self.seen(), {"begun": True}

    def step(self, action):
        self.n_steps += 1
        if self.number == 1 and self.n_steps == self.fails_at:
            raise ZeroDivisionError("in the env")
        self.place = np.clip(self.place + action + self.before / 2, -9, 9)
        self.before, self.left = action, self.left - 1
        info = {"step": self.n_steps} if self.n_steps % 2 else {}
        return self.seen(), float(self.place.sum()), self.left == 0, False, info

    def seen(self):
        return {"place": self.place.copy(), "arm": self.number}


class Informed(PPOTorchPolicy):
    """Has the infos in its batches."""

    def __init__(self, *spaces_and_config):
        super().__init__(*spaces_and_config)
        self.view_requirements["infos"] = ViewRequirement(used_for_compute_actions=False)


def worker_of(creator=Arm, **settings):
    arguments = {name: settings.pop(name) for name in ("validate_env", "worker_index") if name in settings}
    config = AlgorithmConfig.from_dict({**ENVS, **settings})
    return RolloutWorker(env_creator=creator, default_policy_class=Informed, config=config, **arguments)


@pytest.fixture
def build():
    """Return a function that builds a worker of 3 sub-envs in 2 processes."""
    workers = []

    def build(*args, **settings):
        workers.append(worker_of(*args, **{"env_processes": 2, **settings}))
        return workers[-1]

    yield build
    for worker in workers:
        worker.stop()


def require_equal(batch, other):
    assert [*batch] == [*other]
    for name in batch:
        values, others = np.asarray(batch[name]), np.asarray(other[name])
        assert values.dtype == others.dtype, name
        assert values.tolist() == others.tolist(), name


CASES = {
    "fragments": {},
    "whole episodes": {"batch_mode": "complete_episodes", "observation_filter": "MeanStdFilter"},
    "an env that raises, restarted": {"env_config": {"fails_at": 5}, **RESTART},
    "worker 2": {"worker_index": 2, "env_config": {"start": 1.0}},
    "by id": {"env": "CartPole-v1"},
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_seed_gives_the_batches_of_one_process(name):
    settings = dict(CASES[name])
    creator = partial(gym.make, settings["env"]) if "env" in settings else Arm
    if "env" in settings:
        creator = lambda context, make=creator: make(**context)
    with worker_of(creator, **settings) as worker, worker_of(creator, env_processes=2, **settings) as other:
        for _ in range(3):
            require_equal(worker.sample(), other.sample())
        assert worker.counters == other.counters
        metrics, others = worker.get_metrics(), other.get_metrics()
        assert [m._replace(perf_stats={}) for m in metrics] == [m._replace(perf_stats={}) for m in others]
        assert name != "an env that raises, restarted" or worker.counters["sub_env_restarts"] > 1


def test_every_worker_of_a_set_has_processes_of_its_own():
    settings = {**ENVS, "env": "CartPole-v1", "num_env_runners": 2}

    def rows(**more):
        config = AlgorithmConfig.from_dict({**settings, **more})
        with WorkerSet(default_policy_class=PPOTorchPolicy, config=config, backend="process") as workers:
            pids = workers.foreach_env(lambda env: os.getpid())
            return [workers.sample() for _ in range(2)], {pid for of_worker in pids for pid in of_worker}

    (batches, pids), (others, other_pids) = rows(), rows(env_processes=3)
    for batch, other in zip(batches, others, strict=True):
        require_equal(batch, other)
    assert (len(pids), len(other_pids)) == (3, 9), "the local worker has envs, too"


def test_envs_are_asked_and_validated_in_their_processes(build):
    def validate(env, context):
        env.context, env.where = context, os.getpid()

    worker = build(validate_env=validate, worker_index=4)
    pids = worker.foreach_env(lambda env: (env.number, env.where, os.getpid()))
    assert [number for number, *_ in pids] == [0, 1, 2]
    assert all(where == pid != os.getpid() for _, where, pid in pids)
    assert len({where for _, where, _ in pids}) == 2
    places = worker.foreach_env_with_context(lambda env, c: (env.context.vector_index, c.vector_index, c.worker_index))
    assert places == [(number, number, 4) for number in range(N)]
    assert worker.env.get_attr("number") == [0, 1, 2]
    assert worker.spaces["__env__"] == (Arm.observation_space, Arm.action_space)
    assert worker.async_env.get_sub_environments() == [worker.env]


def test_an_exception_of_an_env_has_its_type_and_the_next_call_goes_on(build):
    worker = build(env_config={"fails_at": 5})
    with pytest.raises(ZeroDivisionError, match="in the env") as raised:
        worker.sample()
    assert any("raised by sub-env 1 (last seed 4)" in note for note in raised.value.__notes__)
    assert len(worker.sample()) == N * F


def kill(worker, env):
    os.kill(worker.foreach_env(lambda env: os.getpid())[env], signal.SIGKILL)


def test_a_killed_process_is_replaced_and_the_rows_of_the_others_are_kept(build):
    worker, other = build(**RESTART), build(**RESTART)
    require_equal(worker.sample(), other.sample())
    kill(worker, 1)
    batch, expected = worker.sample(), other.sample()
    for name in ("obs", "actions", "rewards", "t"):
        assert np.array_equal(batch[name][:F], expected[name][:F]), "the rows of sub-env 0"
    assert len(batch) == N * F
    assert worker.counters["episodes_faulty"] == worker.counters["sub_env_restarts"] == 2
    assert worker.counters["env_steps_discarded"] == 0
    seeds = {worker.envs.host.seed_of(env) for env in range(N)}
    assert len(seeds) == N
    assert not seeds & {4, 5}, "the envs of the next process have other seeds"


def test_a_killed_process_is_an_exception_without_restarts_and_the_next_call_goes_on(build):
    worker = build()
    kill(worker, 0)
    with pytest.raises(EnvProcessLost, match="was killed by SIGKILL"):
        worker.sample()
    assert len(worker.sample()) == N * F


class Dies(Arm):
    """Ends its process in a reset, at some number of resets of the first env that was built."""

    n_resets = 0

    def reset(self, **keywords):
        Dies.n_resets += 1
        if self.number == 2 and Dies.n_resets == 6:
            os._exit(3)
        return super().reset(**keywords)


def test_an_env_that_ends_its_process_in_a_reset_is_named_and_the_others_begin_again(build):
    worker = build(Dies, **RESTART)
    assert [len(worker.sample()) for _ in range(4)] == [N * F] * 4
    faulty = [metrics for metrics in worker.get_metrics() if metrics.episode_faulty]
    assert {metrics.env_index for metrics in faulty} == {1, 2}
    assert faulty[0].env_index == 2
    assert "ended with exit code 3" in faulty[0].error


def test_chaos_hands_out_every_row_once(build):
    worker, steps = build(**RESTART), set()
    for turn in range(8):
        kill(worker, turn % N)
        batch = worker.sample()
        assert len(batch) == N * F
        rows = {*zip(batch["eps_id"].tolist(), batch["t"].tolist(), strict=True)}
        assert len(rows) == N * F
        assert not rows & steps
        steps |= rows
    assert worker.counters["env_steps_sampled"] == 8 * N * F


def test_nothing_is_left_after_stop():
    def work():
        with worker_of(env_processes=2, **RESTART) as worker:
            kill(worker, 0)
            worker.sample()

    work()
    before = left()
    work()
    require_no_more_than(before)


def refuse(env, context):
    if context.vector_index == 2:
        raise LookupError("not this one")


REFUSED = {
    "more processes than envs": (
        {"env_processes": 4},
        ValueError,
        "env_processes=4 for num_envs_per_env_runner=3: each process needs an env; use fewer processes",
    ),
    "a time limit without processes": (
        {"env_processes": None, "step_timeout_s": 5},
        ValueError,
        "step_timeout_s=5.0 is for env processes; set env_processes, or leave it out",
    ),
    "a callback that gets the envs": (
        {"callback_functions": {"on_sub_environment_created": lambda **_: None}},
        ValueError,
        "env_processes=2 keep sub-envs from the callback on_sub_environment_created; check them by validate_env",
    ),
    "several agents": (
        {"creator": lambda context: MultiAgentCartPole({"num_agents": 2})},
        TypeError,
        "env_processes step gymnasium envs of one agent, and env_creator made .*Copies.*; leave env_processes out",
    ),
    "a vector env": (
        {"creator": lambda context: SyncVectorEnv([lambda: gym.make("CartPole-v1")] * N)},
        TypeError,
        r"of one agent, and env_creator made .*\(SyncVectorEnv\); leave env_processes out, and take more workers",
    ),
    "no env": ({"creator": lambda context: None}, TypeError, "and env_creator made None; leave env_processes out"),
    "an env that is refused": ({"validate_env": refuse}, LookupError, "not this one"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_and_nothing_is_left(name):
    settings, error, message = REFUSED[name]
    before = left()
    with pytest.raises(error, match=message) as raised:
        worker_of(**{"env_processes": 2, **settings})
    if error is LookupError:
        assert "the making of sub-env 2 of worker 0" in "".join(raised.value.__notes__)
    require_no_more_than(before)
