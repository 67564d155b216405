"""An observation outside its Discrete space is a failed step or reset of its env; no row is lost for it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from sampling_toys import made_of

from swath.rollout_workers import VectorEnv
from swath.rollout_workers.policy import RandomPolicy

B, F, N = 3, 4, 10
SETTINGS = {"num_envs_per_env_runner": B, "rollout_fragment_length": F, "delay_between_sub_environment_restarts_s": 0.0}


class Line(gym.Env[Any, Any]):
    """Counts its steps; each step out of some, and each reset out of others, leads out of its space."""

    def __init__(self, astray: Any = (), resets_astray: Any = (), length: int = 0) -> None:
        self.observation_space = gym.spaces.Discrete(N)
        self.action_space = gym.spaces.Discrete(2)
        self._astray, self._resets_astray = astray, resets_astray
        self.steps = self.resets = 0
        self.at, self.length = 0, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.resets += 1
        self.at = 0
        return (N if self.resets in self._resets_astray else 0), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.at += 1
        return (N if self.steps in self._astray else self.at % N), 1.0, self.at == self.length, False, {}


def lines(**which: Any) -> Any:
    """Makes three lines, of which the second goes astray."""
    made: list[Line] = []

    def make() -> Line:
        made.append(Line(**which) if len(made) == 1 else Line())
        return made[-1]

    return make


def walk(batches: list[Any], env: int) -> list[int]:
    """What an env's rows observed."""
    return [int(row.argmax()) for batch in batches for row in batch["obs"][env * F : (env + 1) * F]]


@pytest.mark.parametrize("step", [1, 2, F, F + 1])
def test_a_step_out_of_the_space_is_raised_and_the_next_call_resumes_at_it(step: int):
    with made_of(lines(astray=[step]), RandomPolicy, **SETTINGS) as worker:
        batches = [worker.sample()] if step > F else []
        with pytest.raises(ValueError, match=r"the observation 10 is not in Discrete\(10\)") as caught:
            worker.sample()
        batches += [worker.sample(), worker.sample()]
    assert any(f"sub-env 1 (last seed None) in step {step - 1} of" in note for note in caught.value.__notes__)
    assert [len(batch) for batch in batches] == [B * F] * len(batches)
    n = F * len(batches)
    assert walk(batches, 0) == walk(batches, 2) == [at % N for at in range(n)], "the others go on"
    assert walk(batches, 1) == [*range(step - 1), *range(n - step + 1)]


def test_a_reset_out_of_the_space_is_a_reset_that_failed():
    with made_of(lines(resets_astray=[1]), RandomPolicy, **SETTINGS) as worker:
        with pytest.raises(ValueError, match="is not in Discrete"):
            worker.sample()
        assert len(worker.sample()) == B * F


class OwnLines(VectorEnv):
    """Three lines, stepped together."""

    def __init__(self, make: Any) -> None:
        self.make, self.lines = make, [make() for _ in range(B)]
        super().__init__(self.lines[0].observation_space, self.lines[0].action_space, B)

    def vector_reset(self, *, seeds: Any = None, options: Any = None) -> Any:
        return tuple(map(list, zip(*(line.reset() for line in self.lines), strict=True)))

    def reset_at(self, index: int | None = None, *, seed: Any = None, options: Any = None) -> Any:
        return self.lines[index or 0].reset()

    def vector_step(self, actions: Any) -> Any:
        return tuple(map(list, zip(*(line.step(0) for line in self.lines), strict=True)))

    def restart_at(self, index: int | None = None) -> None:
        self.lines[index or 0] = self.make()


def vectorised(mode: AutoresetMode | None) -> Any:
    """From a maker of lines to a maker of vector envs."""
    return lambda make: OwnLines(make) if mode is None else SyncVectorEnv([make] * B, autoreset_mode=mode)


@pytest.mark.parametrize("mode", [None, *AutoresetMode])
@pytest.mark.parametrize("which", [{"astray": [2]}, {"resets_astray": [1]}, {"resets_astray": [2], "length": 2}])
def test_a_vector_env_fails_as_a_whole_and_goes_on(mode: AutoresetMode | None, which: Any):
    make, line = vectorised(mode), lines(**which)
    with made_of(lambda: make(line), RandomPolicy, **SETTINGS) as worker:
        with pytest.raises(ValueError, match="is not in Discrete"):
            worker.sample()
        batches = [worker.sample(), worker.sample()]
    assert [len(batch) for batch in batches] == [B * F] * 2
    if "astray" in which:
        assert all(walk(batches, env) == [0, *range(7)] for env in range(B))
