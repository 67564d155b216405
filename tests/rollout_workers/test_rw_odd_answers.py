"""Rewards that are no numbers, ends that are neither yes nor no: the sub-env has failed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from agent_toys import Troupe
from sampling_toys import Foreseen, made_of

from swath.rollout_workers import MultiAgentEnv
from swath.rollout_workers.policy import RandomPolicy

B, F, AT = 3, 4, 2
SETTINGS = {"num_envs_per_env_runner": B, "rollout_fragment_length": F, "delay_between_sub_environment_restarts_s": 0.0}
REWARD, TERMINATED, TRUNCATED, INFO = range(1, 5)
ODD = {
    "no reward": (REWARD, None, ValueError, "the env returned the reward None; it must be one number"),
    "a word for a reward": (REWARD, "1.5", ValueError, "the env returned the reward '1.5'; it must be one number"),
    "several rewards": (REWARD, np.ones(2), ValueError, "it must be one number"),
    "a word for an end": (TERMINATED, "no", ValueError, "the env returned terminated='no'; it must be True or False"),
    "a number for an end": (TRUNCATED, 0.5, ValueError, "the env returned truncated=0.5; it must be True or False"),
}


class Line(gym.Env[Any, Any]):
    """Counts its steps; one of them returns something else in one place."""

    def __init__(self, odd: Any = None) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(0, 99, (1,), np.float32), gym.spaces.Discrete(3)
        self.odd, self.steps, self.at = odd, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.at = 0
        return np.float32([0]), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        self.steps += 1
        answer: list[Any] = [np.float32([self.at]), 1.0, False, False, {}]
        if self.odd is not None and self.steps == AT:
            place, value = self.odd
            answer[place] = value
        return tuple(answer)


def lines(odd: Any) -> Any:
    """Makes lines, of which the second is odd."""
    made: list[Line] = []

    def make() -> Line:
        made.append(Line(odd if len(made) == 1 else None))
        return made[-1]

    return make


def walk(batch: Any, env: int) -> list[int]:
    """What an env's rows observed."""
    return [int(at) for at in batch["obs"][env * F : (env + 1) * F, 0]]


@pytest.mark.parametrize("case", ODD)
def test_the_step_is_raised_and_names_the_sub_env_and_the_next_call_resumes_at_it(case: str):
    place, value, error, text = ODD[case]
    with made_of(lines((place, value)), Foreseen, **SETTINGS) as worker:
        with pytest.raises(error) as caught:
            worker.sample()
        batch = worker.sample()
        assert worker.counters["episodes_faulty"] == 1
    assert text in str(caught.value)
    assert any(f"raised by sub-env 1 (last seed None) in step {AT - 1} of" in note for note in caught.value.__notes__)
    assert any("worker 0" in note for note in caught.value.__notes__)
    assert walk(batch, 0) == walk(batch, 2) == [0, 1, 2, 3]
    assert walk(batch, 1) == [0, 0, 1, 2]
    assert batch["truncateds"].tolist() == [row == F for row in range(B * F)]
    assert np.isfinite(batch["rewards"]).all()


class Pair(MultiAgentEnv):
    """Two agents; what one of them gets in one step is odd."""

    def __init__(self, odd: Any = None) -> None:
        self.agents = ["a", "b"]
        self.observation_space, self.action_space = gym.spaces.Box(0, 99, (1,), np.float32), gym.spaces.Discrete(2)
        self.odd, self.steps, self.at = odd, 0, 0
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.at = 0
        return self._each(np.float32([0])), {}

    def step(self, action_dict: Any) -> Any:
        self.at += 1
        self.steps += 1
        ends = {"__all__": False}
        answer: list[Any] = [self._each(np.float32([self.at])), self._each(1.0), ends, ends, self._each({})]
        if self.odd is not None and self.steps == AT:
            place, value = self.odd
            answer[place] = {**answer[place], "b": value}
        return tuple(answer)

    def _each(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.agents, value)


@pytest.mark.parametrize(
    ("place", "value", "error", "text"),
    [
        (REWARD, None, ValueError, "the env returned the reward None of agent 'b'; it must be one number"),
        (REWARD, "2", ValueError, "the env returned the reward '2' of agent 'b'"),
        (TERMINATED, "no", ValueError, "the env returned terminateds['b']='no'; it must be True or False"),
        (INFO, None, TypeError, "step returned infos['b']=None; an info is a dict"),
    ],
)
def test_of_several_agents_the_one_is_named(place: int, value: Any, error: type[Exception], text: str):
    odd = iter([None, (place, value), None])
    troupe = Troupe(lambda: Pair(next(odd)), 3, rollout_fragment_length=4)
    with pytest.raises(error) as caught:
        troupe.sample()
    assert text in str(caught.value)
    assert any("raised by sub-env 1" in note for note in caught.value.__notes__)
    assert troupe.sample().env_steps() == 12


class Astray(gym.Env[Any, Any]):
    """Leaves its Discrete space at the second step, once."""

    observation_space, action_space = gym.spaces.Discrete(5), gym.spaces.Discrete(2)

    def __init__(self, leaves: bool) -> None:
        self.leaves, self.at = leaves, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.at = 0
        return 0, {}

    def step(self, action: Any) -> Any:
        self.at += 1
        leaves = self.leaves and self.at == AT
        self.leaves = self.leaves and not leaves
        return 5 if leaves else self.at % 5, 1.0, False, False, {}


def test_an_observation_that_cannot_be_preprocessed_is_a_failed_step():
    leaves = iter([False, True, False])
    with made_of(lambda: Astray(next(leaves)), RandomPolicy, **SETTINGS) as worker:
        with pytest.raises(ValueError, match=r"the observation 5 is not in Discrete\(5\)"):
            worker.sample()
        batch = worker.sample()
    walks = batch["obs"].argmax(axis=1).reshape(B, F).tolist()
    assert walks == [[0, 1, 2, 3], [0, 0, 1, 2], [0, 1, 2, 3]]
