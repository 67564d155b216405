"""Whatever raises while a worker samples: who is told of it, which rows there are, and that the next call works.

One row per thing that can raise. The data name their env, episode and step, so a row that is missing or twice shows.
"""

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import Foreseen, counting_worker, made_of

from swath.rollout_workers import PPOTorchPolicy
from swath.testing.counting import Counting, CountingEnv, Script
from swath.testing.faults import EnvBroke, Fault

B, F, LENGTH, CALLS = 3, 4, 6, 4
SETTINGS = {"num_envs_per_env_runner": B, "rollout_fragment_length": F, "delay_between_sub_environment_restarts_s": 0.0}
COUNTING = Counting(script=Script((LENGTH,), ("terminated",)))
RESTART = {"restart_failed_sub_environments": True}


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
    return lambda **settings: counting_worker(COUNTING, {1: [Fault(kind, **at)]}, **settings)[0]


def vector_env(**settings):
    """Its sub-env 1 raises, so all of it does."""
    numbers = iter(range(99))

    def one():
        number = next(numbers)
        return CountingEnv(number % B, COUNTING, [Fault("raise", step=3)] if number == 1 else [])

    make = lambda: gym.vector.SyncVectorEnv([one] * B, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    return made_of(make, Foreseen, **{**SETTINGS, **settings})


def policy(method, kind=Foreseen, at=2):
    """One whose method raises."""

    def make():
        check, given = raising(at), getattr(kind, method)

        def instead(self, *args, **kwargs):
            check()
            return given(self, *args, **kwargs)

        return counting_worker(COUNTING, policy=type("Other", (kind,), {method: instead}))[0]

    return make


def callback(event, at=2):
    """One that raises."""
    return lambda: counting_worker(COUNTING, callback_functions={event: raising(at)})[0]


ROWS = {
    "step": Row(envs("raise", step=3), EnvBroke, (1,), faulty=1),
    "reset": Row(envs("raise_at_reset", episode=1), EnvBroke, faulty=1),
    "first reset": Row(envs("raise_at_reset"), EnvBroke, faulty=1),
    "step, restarted": Row(lambda **given: envs("raise", step=3)(**RESTART, **given), None, (1,), faulty=1),
    "reset, restarted": Row(lambda **given: envs("raise_at_reset")(**RESTART, **given), None, faulty=1),
    "vector env": Row(vector_env, EnvBroke, (0, 1, 2), faulty=B),
    "vector env, restarted": Row(lambda **given: vector_env(**RESTART, **given), None, (0, 1, 2), faulty=B),
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


def sampled(worker, error):
    """So many batches, and what was raised in between."""
    batches, raised = [], []
    while len(batches) < CALLS:
        try:
            batches.append(worker.sample())
        except (Once, EnvBroke) as one:
            raised.append(one)
        assert len(raised) <= 1, "the next call works"
    assert [type(one) for one in raised] == ([] if error is None else [error])
    return batches, raised


def by_env(batches):
    """The episode and step of all rows, of each sub-env in order; and which rows are truncated."""
    marks = np.concatenate([batch["obs"].astype(int).reshape(B, F, 3)[:, :, 1:] for batch in batches], axis=1)
    truncated = np.concatenate([batch["truncateds"].reshape(B, F) for batch in batches], axis=1)
    return [
        ([tuple(mark) for mark in own.tolist()], np.flatnonzero(t).tolist())
        for own, t in zip(marks, truncated, strict=True)
    ]


@pytest.mark.parametrize("what", ROWS)
def test_the_others_go_on_and_the_next_call_works(what):
    row = ROWS[what]
    with row.make() as worker:
        batches, raised = sampled(worker, row.error)
        counters, told = worker.counters, worker.get_metrics()
    assert all(any("worker 0" in note for note in one.__notes__) for one in raised)
    assert [batch.count for batch in batches] == [B * F] * CALLS
    assert counters["env_steps_discarded"] == row.discarded
    assert counters["episodes_faulty"] == sum(metrics.episode_faulty for metrics in told) == row.faulty
    for env, (marks, truncated) in enumerate(by_env(batches)):
        if env in row.ended:
            assert (marks[:2], truncated) == ([(0, 0), (0, 1)], [1]), "its good rows"
            assert [step for _, step in marks[2:]] == [t % LENGTH for t in range(len(marks) - 2)], "then other episodes"
        else:
            wanted = [divmod(row.discarded // B + t, LENGTH) for t in range(len(marks))]
            assert (marks, truncated) == (wanted, [])
