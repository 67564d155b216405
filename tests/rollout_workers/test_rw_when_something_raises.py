"""Whatever raises while a worker samples: who is told of it, which rows there are, and that the next call works.

One row per thing that can raise. The data name their env, episode and step, so a row that is missing or twice shows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rw_toys import Foreseen, counting_worker, made_of

from swath.rollout_workers import DefaultCallbacks, PPOTorchPolicy
from swath.testing.counting import Counting, CountingEnv, Script
from swath.testing.faults import EnvBroke, Fault

B, F, LENGTH, CALLS = 3, 4, 6, 4
SETTINGS = {"num_envs_per_env_runner": B, "rollout_fragment_length": F, "delay_between_sub_environment_restarts_s": 0.0}
COUNTING = Counting(script=Script((LENGTH,), ("terminated",)))
RESTART = {"restart_failed_sub_environments": True}


@dataclass(frozen=True)
class Row:
    """What is done about something that raises.

    Attributes:
        make: a worker in which it does, once, in the first call or the second.
        error: what is raised; None: it is borne.
        ended: the sub-envs whose episodes end by it.
        faulty: episodes that count as such.
        discarded: rows that are lost, and counted.
    """

    make: Callable[..., Any]
    error: type[Exception] | None
    ended: tuple[int, ...] = ()
    faulty: int = 0
    discarded: int = 0


class Once(RuntimeError):
    """Is raised once."""


class _Raising:
    """Raises when it is called for the so-manieth time."""

    def __init__(self, at):
        self.calls, self.at = 0, at

    def __call__(self):
        self.calls += 1
        if self.calls == self.at:
            raise Once(f"call {self.calls}")


def envs(kind, **at):
    """Sub-env 1 raises."""
    return lambda **settings: counting_worker(COUNTING, {1: [Fault(kind, **at)]}, **{**SETTINGS, **settings})[0]


def vector_env(**settings):
    """Its sub-env 1 raises, so all of it does."""
    numbers = iter(range(99))

    def one():
        number = next(numbers)
        return CountingEnv(number % B, COUNTING, [Fault("raise", step=3)] if number == 1 else [])

    make = lambda: gym.vector.SyncVectorEnv([one] * B, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)
    return made_of(make, Foreseen, **{**SETTINGS, **settings})


def policy(method):
    """One whose method raises."""

    def make(**settings):
        raising, given = _Raising(2), getattr(Foreseen, method)

        def instead(self, sample_batch, *args, **kwargs):
            raising()
            return given(self, sample_batch, *args, **kwargs)

        return counting_worker(COUNTING, policy=type("Other", (Foreseen,), {method: instead}), **settings)[0]

    return make


def critic(**settings):
    """One whose values cannot be computed."""
    raising = _Raising(1)

    class Other(PPOTorchPolicy):
        def compute_values(self, input_dict):
            raising()
            return super().compute_values(input_dict)

    return counting_worker(COUNTING, policy=Other, **settings)[0]


def callback(event, at=2):
    """One that raises."""

    def make(**settings):
        raising, base = _Raising(at), settings.get("callbacks_class", DefaultCallbacks)
        kind = type("Telling", (base,), {event: lambda self, **kwargs: raising()})
        return counting_worker(COUNTING, **{**settings, "callbacks_class": kind})[0]

    return make


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
    "values of open ends": Row(critic, Once, discarded=B * F),
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
