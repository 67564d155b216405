"""Exceptions while a worker samples: where they are reported, which rows are kept, and that the next call works."""

import random
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from typing import Any, NamedTuple
from unittest.mock import Mock

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import Foreseen, counting_worker, made_of, waiting_steps

from mock_envs import MockEnv, VectorizedMockEnv
from swath.rollout.failures import VoidRows
from swath.rollout_workers import PPOTorchPolicy, VectorEnv
from swath.rollout_workers.policy import RandomPolicy
from swath.testing.counting import Counting, CountingEnv, RandomScript, Script
from swath.testing.faults import EnvBroke, Fault

B, F, LENGTH, CALLS = 3, 4, 6, 4
SETTINGS = {"num_envs_per_env_runner": B, "rollout_fragment_length": F, "delay_between_sub_environment_restarts_s": 0.0}
COUNTING = Counting(script=Script((LENGTH,), ("terminated",)))
ONE, RESTART = {"num_envs_per_env_runner": 1}, {"restart_failed_sub_environments": True}


class Row(NamedTuple):
    """`make` a worker in which something raises `error` once (None: it is borne), which ends episodes of sub-envs."""

    make: Callable[..., Any]
    error: type[Exception] | None
    ended: tuple[int, ...] = ()
    faulty: int = 0
    discarded: int = 0


class Once(RuntimeError):
    """Is raised once."""


def raising(at):
    """A function that raises when it is called for the so-manieth time."""
    calls = count(1)

    def call(**_):
        if next(calls) == at:
            raise Once(f"call {at}")

    return call


def envs(kind, **at):
    """Sub-env 1 raises."""
    return lambda **settings: counting_worker(COUNTING, {1: [Fault(kind, **at)]}, **settings)


def vector_env(mode, **settings):
    """Its sub-env 1 raises, so all of it does."""
    numbers = iter(range(99))

    def one():
        number = next(numbers)
        return CountingEnv(number % B, COUNTING, [Fault("raise", step=3)] if number == 1 else [])

    make = lambda: gym.vector.SyncVectorEnv([one] * B, autoreset_mode=mode)
    return made_of(make, Foreseen, **{**SETTINGS, **settings})


def policy(method, kind=Foreseen, at=2):
    """Return a function that makes a worker whose policy's method raises."""

    def make():
        check, original = raising(at), getattr(kind, method)

        def instead(self, *args, **kwargs):
            check()
            return original(self, *args, **kwargs)

        return counting_worker(COUNTING, policy=type("Other", (kind,), {method: instead}))

    return make


def callback(event, at=2):
    """Return a function that makes a worker whose callback raises."""
    return lambda: counting_worker(COUNTING, callback_functions={event: raising(at)})


ROWS = {
    "step": Row(envs("raise", step=3), EnvBroke, (1,), faulty=1),
    "reset": Row(envs("raise_at_reset", episode=1), EnvBroke, faulty=1),
    "first reset": Row(envs("raise_at_reset"), EnvBroke, faulty=1),
    "step, restarted": Row(partial(envs("raise", step=3), **RESTART), None, (1,), faulty=1),
    "reset, restarted": Row(partial(envs("raise_at_reset"), **RESTART), None, faulty=1),
    "policy inference": Row(policy("compute_actions"), Once),
    "on_episode_created": Row(callback("on_episode_created"), Once),
    "on_episode_start": Row(callback("on_episode_start"), Once),
    "on_episode_step": Row(callback("on_episode_step"), Once),
    "on_episode_end": Row(callback("on_episode_end"), Once),
    "postprocess_trajectory": Row(policy("postprocess_trajectory"), Once, discarded=B * F),
    "values of open ends": Row(policy("compute_values", PPOTorchPolicy, 1), Once, discarded=B * F),
    "on_postprocess_trajectory": Row(callback("on_postprocess_trajectory"), Once, discarded=B * F),
    "on_sample_end": Row(callback("on_sample_end", at=1), Once, discarded=B * F),
}
ROWS |= {
    f"vector env, {mode}, {settings}": Row(partial(vector_env, mode, **settings), error, (0, 1, 2), faulty=B)
    for mode in gym.vector.AutoresetMode
    for settings, error in (({}, EnvBroke), (RESTART, None))
}


def sampled(worker, error):
    """So many batches, and what was raised in between."""
    batches, raised = [], []
    while len(batches) < CALLS:
        try:
            batches.append(worker.sample())
        except (Once, EnvBroke) as failure:
            raised.append(failure)
        assert len(raised) <= 1, "the next call works"
    assert [type(failure) for failure in raised] == ([] if error is None else [error])
    return batches, raised


def by_env(batches):
    """The episode and step of all rows, of each sub-env in order; and which rows are truncated."""
    marks = np.concatenate([batch["obs"].astype(int).reshape(B, F, 3)[:, :, 1:] for batch in batches], axis=1)
    truncated = np.concatenate([batch["truncateds"].reshape(B, F) for batch in batches], axis=1)
    return [
        ([tuple(mark) for mark in env_marks.tolist()], np.flatnonzero(t).tolist())
        for env_marks, t in zip(marks, truncated, strict=True)
    ]


@pytest.mark.parametrize("name", ROWS)
def test_the_others_go_on_and_the_next_call_works(name):
    row = ROWS[name]
    with row.make() as worker:
        batches, raised = sampled(worker, row.error)
        counters, metrics = worker.counters, worker.get_metrics()
    assert all(any("worker 0" in note for note in error.__notes__) for error in raised)
    assert [batch.count for batch in batches] == [B * F] * CALLS
    assert counters["env_steps_discarded"] == row.discarded
    assert counters["episodes_faulty"] == sum(metrics.episode_faulty for metrics in metrics) == row.faulty
    for env, (marks, truncated) in enumerate(by_env(batches)):
        if env in row.ended:
            assert (marks[:2], truncated) == ([(0, 0), (0, 1)], [1]), "its good rows"
            assert [step for _, step in marks[2:]] == [t % LENGTH for t in range(len(marks) - 2)], "then other episodes"
        else:
            wanted = [divmod(row.discarded // B + t, LENGTH) for t in range(len(marks))]
            assert (marks, truncated) == (wanted, [])


def test_whole_episodes_are_handed_out_without_that_of_the_env_that_failed():
    counting = Counting(script=Script((5,), ("terminated",)))
    with counting_worker(counting, {1: [Fault("raise", step=4)]}, batch_mode="complete_episodes") as worker:
        with pytest.raises(EnvBroke):
            worker.sample()
        batch = worker.sample()
        assert worker.counters["env_steps_discarded"] == 3
    starts = batch["obs"][batch["t"] == 0][:, :2].tolist()
    assert ([0, 0] in starts, [1, 0] in starts, [1, 1] in starts) == (True, False, True)
    assert batch["terminateds"].sum() * 5 == len(batch) >= B * F


def test_an_env_that_never_can_be_reset_ends_in_its_own_exception_at_the_limit():
    faults = {0: [Fault("raise", step=F + 1)], **{n: [Fault("raise_at_reset", times=99)] for n in range(1, 40)}}
    with counting_worker(faults=faults, max_num_sub_environment_restarts=3, **ONE, **RESTART) as worker:
        worker.sample()
        with pytest.raises(EnvBroke) as caught:
            worker.sample()
    assert len(worker.env_creator.made) == 1 + 3
    assert any("max_num_sub_environment_restarts=3" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("settings", [{}, RESTART], ids=str)
def test_the_only_env_may_raise_where_observations_are_preprocessed(settings):
    fail = raising(at=3)

    class Breaks(MockEnv):
        def step(self, action):
            fail()
            return super().step(action)

    with made_of(lambda: Breaks(5), RandomPolicy, **ONE, **settings, rollout_fragment_length=4) as worker:
        if not settings:
            with pytest.raises(Once, match="call 3"):
                worker.sample()
        assert [len(worker.sample()["obs"]) for _ in range(2)] == [4, 4]


def test_a_good_step_between_two_failures_resets_the_count():
    faults = {env: [Fault("raise", step=2)] for env in (1, B, B + 1)}
    with counting_worker(faults=faults, max_num_sub_environment_restarts=1, **RESTART) as worker:
        assert [len(worker.sample()) for _ in range(4)] == [B * F] * 4
    assert len(worker.env_creator.made) == B + 3


def test_waiting_before_a_rebuild_doubles_up_to_five_seconds(monkeypatch):
    waited = []
    waiting = partial(VoidRows, wait=waited.append)
    monkeypatch.setattr("swath.rollout_workers.worker.envs.VoidRows", waiting)
    faults = {0: [Fault("raise")], **{env: [Fault("raise_at_reset")] for env in range(1, 8)}}
    delays = {"max_num_sub_environment_restarts": 8, "delay_between_sub_environment_restarts_s": 0.1}
    with counting_worker(faults=faults, **ONE, **RESTART, **delays) as worker:
        worker.sample()
    assert waited == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda a, s, e: (a[:2], s, e), r"actions of shape \(2,\); wanted"),
        (lambda a, s, e: (a, s, {}), "before they were"),
        (lambda a, s, e: (a, s, {"twice": e["twice"][:1]}), "before they were"),
        (lambda a, s, e: (a, [a], e), "answered 1 states"),
    ],
)
def test_an_answer_of_another_form_is_refused_before_anything_is_stepped(answer, message):
    class Wrong(Foreseen):
        def compute_actions(self, *args, **kwargs):
            result = super().compute_actions(*args, **kwargs)
            return answer(*result) if len(self.asked) == 2 else result

    with counting_worker(policy=Wrong) as worker:
        with pytest.raises(ValueError, match=message):
            worker.sample()
        assert [env.mark.step for env in worker.env_creator.made] == [1] * B
        assert worker.sample()["obs"].tolist() == [[env, 0, t] for env in range(B) for t in range(F)]


def test_an_episode_that_is_handed_out_whole_and_does_not_end_is_warned_of_once():
    counting = Counting(script=Script((5_003,)))
    settings = {"batch_mode": "complete_episodes", "rollout_fragment_length": 1, **ONE}
    with (
        counting_worker(counting, **settings) as worker,
        pytest.warns(UserWarning, match="sub-env 0 has lasted") as warned,
    ):
        assert len(worker.sample()) == 5_003
    assert len(warned) == 1


class Breaking(VectorizedMockEnv):
    """Raises at a step, or at the reset of a sub-env."""

    def __init__(self, at_step, at_reset):
        super().__init__(3, B)
        self.left, self.closed, self.restarted = {"step": at_step, "reset": at_reset}, False, []

    def count(self, method):
        self.left[method] -= 1
        if self.left[method] == 0:
            raise LookupError(f"the vector env broke in a {method}")

    def vector_step(self, actions):
        self.count("step")
        return super().vector_step(actions)

    def reset_at(self, index=None, **kwargs):
        self.count("reset")
        return super().reset_at(index, **kwargs)

    def restart_at(self, index=None):
        self.restarted.append(index)
        super().restart_at(index)

    def close(self):
        self.closed = True


def test_with_restart_a_vector_env_is_rebuilt_and_a_sub_env_that_cannot_be_reset_is_restarted_alone():
    built = [Breaking(*plan) for plan in ((2, 0), (0, 2))]
    remaining = iter(built)
    with made_of(lambda: next(remaining), RandomPolicy, **SETTINGS, **RESTART) as worker:
        assert [len(worker.sample()) for _ in range(3)] == [B * F] * 3
        assert worker.env is built[1]
    assert [(env.closed, env.restarted) for env in built] == [(True, []), (True, [1])]


def test_the_base_class_names_missing_methods_and_closes_each_sub_env_once():
    spaces, sub_env = (gym.spaces.Discrete(1), gym.spaces.Discrete(2)), Mock()
    env = VectorEnv(*spaces, 3)
    assert ((env.observation_space, env.action_space), env.num_envs, env.get_sub_environments()) == (spaces, 3, [])
    calls = [("vector_reset", ()), ("reset_at", (0,)), ("vector_step", ([0],)), ("restart_at", (0,))]
    for method, arguments in calls:
        with pytest.raises(NotImplementedError, match=f"VectorEnv has no {method}"):
            getattr(env, method)(*arguments)
    for number in (0, 1.5, None):
        with pytest.raises(ValueError, match="num_envs"):
            VectorEnv(*spaces, number)
    env.get_sub_environments = lambda: [sub_env, sub_env]
    env.close()
    sub_env.close.assert_called_once_with()


LOOKING = {"on_episode_step": lambda **_: None, "on_postprocess_trajectory": lambda **_: None}
"""Callbacks with which the worker takes the general path."""


def planned(draw):
    """Draw faults by sub-env, rebuilt ones included, and settings."""

    def fault():
        kind = draw.choice(("raise", "shape", "raise_at_reset"))
        return Fault(kind, episode=draw.randint(0, 4), step=1 if kind == "raise_at_reset" else draw.randint(1, 5))

    return {env: [fault() for _ in range(draw.randint(0, 4))] for env in range(10)}, {
        "batch_mode": draw.choice(["truncate_episodes", "complete_episodes"]),
        "restart_failed_sub_environments": draw.random() < 0.5,
        "max_num_sub_environment_restarts": 9,
        "num_envs_per_env_runner": draw.randint(1, 4),
        "rollout_fragment_length": draw.randint(1, 7),
        "callback_functions": draw.choice([{}, LOOKING]),
        "seed": draw.randint(0, 99),
    }


@pytest.mark.parametrize("trial", range(20))
def test_after_any_failure_sizes_are_exact_no_row_is_lost_or_duplicated_and_all_are_counted(trial):
    faults, settings = planned(random.Random(trial))
    size = settings["num_envs_per_env_runner"] * settings["rollout_fragment_length"]
    with counting_worker(Counting(script=RandomScript(1, 6)), faults, **settings) as worker:
        batches, raised = [], 0
        while len(batches) < 10:
            try:
                batches.append(worker.sample())
            except (EnvBroke, ValueError):
                raised += 1
        assert not (raised and settings["restart_failed_sub_environments"])
        counters, metrics_list, n_actions = worker.counters, worker.get_metrics(), sum(worker.get_policy().asked)
        waiting = waiting_steps(worker)
    is_whole = settings["batch_mode"] == "complete_episodes"
    assert all(len(batch) >= size if is_whole else len(batch) == size for batch in batches)
    rows = {}
    for batch in batches:
        assert batch["new_obs"].tolist() == [[env, episode, step + 1] for env, episode, step in batch["obs"].tolist()]
        for mark, trajectory, done in zip(batch["obs"].tolist(), batch["eps_id"], batch["dones"], strict=True):
            rows.setdefault(mark[0], []).append((*mark[1:], trajectory, done))
    for rows_of_env in rows.values():
        for (episode, step, trajectory, done), (next_episode, next_step, next_trajectory, _) in pairwise(rows_of_env):
            if episode == next_episode:
                assert (next_step, next_trajectory, done) == (step + 1, trajectory, False)
            else:
                assert (next_episode > episode, next_step, next_trajectory == trajectory) == (True, 0, False)
    faulty = [metrics.error for metrics in metrics_list if metrics.episode_faulty]
    assert (len(faulty), len(metrics_list) - len(faulty)) == (counters["episodes_faulty"], counters["episodes"])
    assert counters["env_steps_sampled"] == sum(map(len, batches))
    failed_steps = sum("reset" not in error for error in faulty)
    assert n_actions == counters["env_steps_sampled"] + counters["env_steps_discarded"] + waiting + failed_steps
