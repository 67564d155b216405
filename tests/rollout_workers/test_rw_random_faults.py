"""Faults at random places: whatever happens, sizes are exact, no row is lost or given twice, and all is counted."""

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from rw_toys import counting_worker, waiting_steps

from swath.testing.counting import Counting, RandomScript
from swath.testing.faults import EnvBroke, Fault

CALLS = 10


LOOKING = {"on_episode_step": lambda **_: None, "on_postprocess_trajectory": lambda **_: None}
"""Callbacks with which the worker takes the general path."""


def planned(draw: random.Random) -> tuple[Any, dict[str, Any]]:
    """Faults by sub-env, those made anew too, and settings."""
    kinds = ("raise", "shape", "raise_at_reset")

    def fault() -> Fault:
        kind = draw.choice(kinds)
        return Fault(kind, episode=draw.randint(0, 4), step=1 if kind == "raise_at_reset" else draw.randint(1, 5))

    faults = {env: [fault() for _ in range(draw.randint(0, 4))] for env in range(10)}
    settings = {
        "batch_mode": draw.choice(["truncate_episodes", "complete_episodes"]),
        "restart_failed_sub_environments": draw.random() < 0.5,
        "max_num_sub_environment_restarts": 9,
        "num_envs_per_env_runner": draw.randint(1, 4),
        "rollout_fragment_length": draw.randint(1, 7),
        "callback_functions": draw.choice([{}, LOOKING]),
        "seed": draw.randint(0, 99),
    }
    return faults, settings


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
        batches, raised = [], 0
        while len(batches) < CALLS:
            try:
                batches.append(worker.sample())
            except (EnvBroke, ValueError):
                raised += 1
        assert not (raised and settings["restart_failed_sub_environments"])
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
