"""Faults at random places: whatever happens, sizes are exact, no row is lost or given twice, and all is counted."""

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from rw_toys import counting_worker, waiting_steps

from swath.rollout_workers import DefaultCallbacks
from swath.testing.counting import Counting, RandomScript
from swath.testing.faults import EnvBroke, Fault

CALLS = 10


class Looking(DefaultCallbacks):
    """Takes the general path."""

    def on_episode_step(self, **kwargs: Any) -> None:
        assert kwargs["episode"].length > 0

    def on_postprocess_trajectory(self, *, episode: Any, postprocessed_batch: Any, **kwargs: Any) -> None:
        assert episode.episode_id == postprocessed_batch["eps_id"][0]


def planned(draw: random.Random) -> tuple[Any, dict[str, Any]]:
    """Faults by sub-env, those made anew too, and settings."""
    faults = {env: [_fault(draw) for _ in range(draw.randint(0, 4))] for env in range(10)}
    settings = {
        "batch_mode": draw.choice(["truncate_episodes", "complete_episodes"]),
        "restart_failed_sub_environments": draw.random() < 0.5,
        "max_num_sub_environment_restarts": 9,
        "num_envs_per_env_runner": draw.randint(1, 4),
        "rollout_fragment_length": draw.randint(1, 7),
        "observation_filter": "NoFilter",
        "callbacks_class": draw.choice([None, Looking]),
        "seed": draw.randint(0, 99),
    }
    return faults, settings


def _fault(draw: random.Random) -> Fault:
    kind = draw.choice(["raise", "raise_at_reset", "shape"])
    return Fault(kind, episode=draw.randint(0, 4), step=1 if kind == "raise_at_reset" else draw.randint(1, 5))


def sampled(worker: Any, *, raises: bool) -> tuple[list[Any], int]:
    """So many batches, and how often it raised in between."""
    batches: list[Any] = []
    raised = 0
    while len(batches) < CALLS:
        try:
            batches.append(worker.sample())
        except (EnvBroke, ValueError):
            assert raises
            raised += 1
    return batches, raised


def check_rows(rows: list[tuple[Any, ...]]) -> None:
    """Rows of one sub-env: episodes one after another, each from its first step on, without gaps, under one id."""
    assert len(rows) == len(set(rows))
    for (episode, step, trajectory, done), (next_episode, next_step, next_trajectory, _) in pairwise(rows):
        if episode == next_episode:
            assert (next_step, next_trajectory, done) == (step + 1, trajectory, False)
        else:
            assert next_episode > episode
            assert next_step == 0
            assert next_trajectory != trajectory


@pytest.mark.parametrize("trial", range(20))
def test_whatever_fails_sizes_are_exact_and_no_row_is_lost(trial: int):
    faults, settings = planned(random.Random(trial))
    size = settings["num_envs_per_env_runner"] * settings["rollout_fragment_length"]
    worker, _ = counting_worker(Counting(script=RandomScript(1, 6)), faults, **settings)
    with worker:
        batches, raised = sampled(worker, raises=not settings["restart_failed_sub_environments"])
        counters, told, asked = worker.counters, worker.get_metrics(), sum(worker.get_policy().asked)
        waiting = waiting_steps(worker)
    whole = settings["batch_mode"] == "complete_episodes"
    assert all(len(batch) >= size if whole else len(batch) == size for batch in batches)
    rows: dict[int, list[Any]] = {}
    paid: dict[Any, list[float]] = {}
    ended: list[Any] = []
    for batch in batches:
        assert batch["t"].tolist() == batch["obs"][:, 2].tolist()
        assert batch["new_obs"].tolist() == [[env, episode, step + 1] for env, episode, step in batch["obs"].tolist()]
        columns = zip(batch["obs"].tolist(), batch["eps_id"].tolist(), batch["dones"].tolist(), strict=True)
        for ((env, episode, step), trajectory, done), reward in zip(columns, batch["rewards"].tolist(), strict=True):
            rows.setdefault(env, []).append((episode, step, trajectory, done))
            paid.setdefault(trajectory, []).append(reward)
            if done:
                ended.append((len(paid[trajectory]), sum(paid[trajectory])))
    for own in rows.values():
        check_rows(own)
    by_itself = [(each.episode_length, each.episode_reward) for each in told if not each.episode_faulty]
    assert sum((Counter(by_itself) - Counter(ended)).values()) <= waiting, "what is told was handed out, or waits"
    faulty = [metrics.error for metrics in told if metrics.episode_faulty]
    failed_steps = sum("reset" not in error for error in faulty)
    assert len(faulty) == counters["episodes_faulty"] >= raised
    assert len(told) - len(faulty) == counters["episodes"]
    assert counters["env_steps_sampled"] == sum(map(len, batches))
    assert asked == counters["env_steps_sampled"] + counters["env_steps_discarded"] + waiting + failed_steps
