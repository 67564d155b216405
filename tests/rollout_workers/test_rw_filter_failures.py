"""A filter that raises: the caller sees it, and no row is lost or wrong for it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agent_toys import Counter, Troupe
from sampling_toys import counting_worker

from swath.rollout_workers import MultiAgentEnv
from swath.rollout_workers.filters.base import Filter
from swath.testing.counting_env import Counting
from swath.testing.script import Script

B, F = 3, 4


class Choosy(Filter):
    """Adds 100; raises in some of its calls, counted over all filters."""

    refused: set[int] = set()
    calls = 0

    def __call__(self, x: Any, update: bool = True) -> Any:
        Choosy.calls += 1
        if Choosy.calls in Choosy.refused:
            raise FloatingPointError(f"call {Choosy.calls}")
        return np.asarray(x) + np.float32(100)

    def copy(self) -> Choosy:
        return self

    as_serializable = copy

    def apply_changes(self, other: Any, with_buffer: bool = False) -> None:
        """Nothing."""

    sync = apply_changes

    def reset_buffer(self) -> None:
        """Nothing."""


@pytest.fixture(autouse=True)
def _anew():
    Choosy.refused, Choosy.calls = set(), 0


def worker_that_refuses(*calls: int, length: int = 3, **settings: Any) -> Any:
    """A worker whose filter raises in these calls."""
    Choosy.refused = set(calls)
    counting = Counting(script=Script((length,), ("terminated",)))
    return counting_worker(counting, observation_filter=lambda shape: Choosy(), **settings)


def rows_of(batches: list[Any], env: int, name: str = "obs") -> list[tuple[int, int]]:
    """Episode and step of an env's observations."""
    seen = [row for batch in batches for row in batch[name].tolist() if row[0] == env + 100]
    return [(int(episode) - 100, int(step) - 100) for _, episode, step in seen]


def sampled(worker: Any, n: int) -> tuple[list[Any], list[Exception]]:
    """So many batches, and what was raised on the way."""
    batches, raised = list[Any](), list[Exception]()
    while len(batches) < n:
        try:
            batches.append(worker.sample())
        except FloatingPointError as error:
            raised.append(error)
    return batches, raised


@pytest.mark.parametrize("calls", [(1,), (3,), (3, 4), (4,), (5,), (6, 7, 8), (2, 9)])
@pytest.mark.parametrize("mode", ["truncate_episodes", "complete_episodes"])
def test_each_refusal_is_raised_and_every_row_is_handed_out_once(calls: tuple[int, ...], mode: str):
    worker, factory = worker_that_refuses(*calls, batch_mode=mode)
    with worker:
        batches, raised = sampled(worker, 3)
        assert worker.counters["env_steps_discarded"] == 0
    assert [str(error) for error in raised] == [f"call {call}" for call in calls]
    assert all(any("raised by the observation filter" in note for note in error.__notes__) for error in raised)
    assert all(any("worker 0" in note for note in error.__notes__) for error in raised)
    for env in range(B):
        made = rows_of(batches, env)
        assert made == [(t // 3, t % 3) for t in range(len(made))]
        assert rows_of(batches, env, "new_obs") == [(t // 3, t % 3 + 1) for t in range(len(made))]
    if mode == "truncate_episodes":
        assert [len(batch) for batch in batches] == [B * F] * 3
    starts = [len(env.seeds) for env in factory.made]
    assert starts == [env.mark.episode + 1 for env in factory.made], "no episode was begun in vain"


def test_a_row_has_the_version_that_acted_though_its_end_is_filtered_later():
    worker, _ = worker_that_refuses(4, length=99)
    with worker:
        with pytest.raises(FloatingPointError):
            worker.sample()
        worker.set_weights({}, weights_seq_no=7)
        batch = worker.sample()
    assert batch["policy_version"].reshape(B, F).tolist() == [[0, 0, 0, 7]] * B


def test_seeds_are_kept_where_the_filter_refuses_what_the_first_reset_gave():
    worker, factory = worker_that_refuses(1, length=99, seed=5)
    with worker:
        with pytest.raises(FloatingPointError):
            worker.sample()
        worker.sample()
    assert [env.seeds for env in factory.made] == [[5], [6], [7]]


def test_episodes_that_are_begun_anew_after_a_refusal_leave_no_hole():
    worker, _ = worker_that_refuses(4, length=99)
    with worker:
        with pytest.raises(FloatingPointError):
            worker.sample()
        batch = worker.sample(force_reset=True)
    assert rows_of([batch], 0) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert rows_of([batch], 0, "new_obs") == [(0, 1), (0, 2), (0, 3), (1, 1)]


class Walk(MultiAgentEnv):
    """Two agents count steps."""

    def __init__(self) -> None:
        self.agents = [0, 1]
        self.observation_space = gym.spaces.Box(0, 999, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.at = self.resets = 0
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.at = 0
        self.resets += 1
        return self._seen(), {}

    def step(self, action_dict: Any) -> Any:
        self.at += 1
        return self._seen(), dict.fromkeys(self.agents, 1.0), {"__all__": self.at == 3}, {"__all__": False}, {}

    def _seen(self) -> dict[int, Any]:
        return {agent: np.float32([10 * agent + self.at]) for agent in self.agents}


class Sighted(Counter):
    """As its base."""


@pytest.mark.parametrize("calls", [(1,), (2,), (3,), (3, 4), (7,), (6, 7, 8), (2, 9)])
@pytest.mark.parametrize("policies", [1, 2])
def test_of_several_agents_no_transition_is_lost_or_half_filtered(calls: tuple[int, ...], policies: int):
    Choosy.refused = set(calls)
    classes = {f"p{number}": Sighted for number in range(policies)}
    troupe = Troupe(
        Walk,
        2,
        classes,
        lambda agent, _: f"p{agent % policies}",
        rollout_fragment_length=4,
        observation_filter=lambda shape: Choosy(),
    )
    batches, raised = sampled(troupe, 3)
    assert {str(error) for error in raised} == {f"call {call}" for call in calls}
    assert all(any("raised by the observation filter of 'p" in note for note in error.__notes__) for error in raised)
    assert [batch.env_steps() for batch in batches] == [8] * 3
    assert troupe.counters["env_steps_discarded"] == troupe.counters["episodes_faulty"] == 0
    for agent in range(2):
        rows = [batch[f"p{agent % policies}"] for batch in batches]
        mine = [(row - 100, after - 100) for each in rows for row, after in _pairs(each) if (row - 100) // 10 == agent]
        assert all(after == row + 1 for row, after in mine)
        assert len(mine) == 24
    assert [env.resets for env in troupe.made] == [4, 4]
    asked = [row for policy in troupe.policy_map.values() for seen in policy.asked for row in seen[:, 0].tolist()]
    assert min(asked) >= 100, "nobody acts on what is not filtered"


def _pairs(batch: Any) -> list[tuple[int, int]]:
    return list(zip(batch["obs"][:, 0].astype(int), batch["new_obs"][:, 0].astype(int), strict=True))
