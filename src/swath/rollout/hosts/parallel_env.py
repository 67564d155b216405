"""The host for a PettingZoo `ParallelEnv`, whose only leaf is a TensorDict with one TensorDict per group of agents.

    root ──▶ policy writes ("agent", "action") [n] ──▶ {agent: action} of those that are there ──▶ env.step ──▶ "next"

An env is handed in, so that nothing of PettingZoo is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from swath.keys import NEXT, REWARD, Key
from swath.rollout.hosts.agent_groups import agent_groups
from swath.rollout.hosts.agent_states import WHOLE, AgentStates
from swath.rollout.hosts.base import Ended, EnvRaised, Transition
from swath.rollout.hosts.closing import close_broken
from swath.rollout.hosts.returned import bad_answer
from swath.rollout.hosts.specs import TensorDictSpec
from swath.rollout.hosts.tensordict_reading import StepReading, ends_of, groups_of, reward_of
from swath.rollout.spaces import Array, Leaves

STEP = "a ParallelEnv has step(actions) -> observations, rewards, terminations, truncations, infos: dicts by agent"
RESET = "a ParallelEnv has reset(seed=None, options=None) -> observations, infos: dicts by agent"


def is_parallel_env(value: object) -> bool:
    """Whether this is a PettingZoo env whose agents act together."""
    return _is_zoo_env(value, "ParallelEnv")


def is_aec_env(value: object) -> bool:
    """Whether this is a PettingZoo env whose agents act in turn."""
    return _is_zoo_env(value, "AECEnv")


class ParallelEnvHost:
    """One `ParallelEnv`.

    Args:
        env: the env.
        make: builds it anew; `None` for an instance of the user's.
        max_steps: most steps of an episode; `None` for no limit.

    Attributes:
        groups: its agents.

    Raises:
        TypeError, ValueError: agents or spaces that are not served.
    """

    def __init__(self, env: Any, make: Callable[[], Any] | None = None, max_steps: int | None = None) -> None:
        self._env, self._make, self._max_steps = env, make, max_steps
        self.groups = agent_groups(env)
        self._states = AgentStates(self.groups, max_steps)
        self.spec = self._spec()
        self._seed: int | None = None
        self._closed = False
        flags = groups_of(self.spec.done)
        self._reward: Callable[[TensorDictBase], Array] = lambda following: reward_of(following, self.spec)
        self._ends: Callable[[TensorDictBase], list[Ended]] = lambda following: ends_of(following, flags, 1)

    @property
    def env(self) -> Any:
        """The env."""
        return self._env

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode."""
        seed = None if seeds is None else int(seeds[0])
        try:
            answer = self._env.reset(seed=seed)
        except Exception as error:
            raise EnvRaised(0, error) from error
        try:
            observations, _ = answer
            self._states.begin()
            root = self._states.state(observations, [*self._env.agents])
        except Exception as error:
            raise EnvRaised(0, bad_answer(error, self._env, RESET)) from error
        self._seed = self._seed if seed is None else seed
        return [root]

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:  # noqa: ARG002
        """Begin an episode."""
        return self.reset_all(None if seeds is None or seeds[0] is None else [seeds[0]])

    def step(self, action: Leaves) -> Transition:
        """Advance the env: `action` is the TensorDict that the policy has written into."""
        try:
            answer = self._env.step(self._acting(action[0]))
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            return _failed(error)
        try:
            root, following = self._read(answer)
        except Exception as error:  # noqa: BLE001  as above
            return _failed(bad_answer(error, self._env, STEP))
        action[0].set(NEXT, following)
        return Transition([root], self._reward(following), self._ends(following))

    def step_one(self, env: int, action: Leaves) -> Transition:  # noqa: ARG002  there is one
        """Advance the env."""
        return self.step(action)

    def rebuild(self) -> Leaves:
        """Close the env, build another and reset it."""
        if self._make is None:
            raise RuntimeError(f"{self._env} was given as an instance and cannot be built anew; pass a callable")
        close_broken(self.close)
        self._env, self._closed = self._make(), False
        return self.reset_all()

    def retire(self, envs: Sequence[int]) -> None:
        """Nothing to do: whoever retires the only env steps no more."""

    def render(self, env: int) -> Array | None:  # noqa: ARG002  there is one
        """A frame, if the env's `render_mode` is `"rgb_array"`."""
        drawn = getattr(self._env, "render_mode", None) == "rgb_array"
        return np.asarray(self._env.render()) if drawn else None

    def seed_of(self, env: int) -> int | None:  # noqa: ARG002  there is one
        """The seed that the env was last reset with."""
        return self._seed

    def close(self) -> None:
        """Close the env; twice is fine."""
        if not self._closed:
            self._closed = True
            self._env.close()

    def read(self, rewards: Sequence[Key], dones: Sequence[Key]) -> None:
        """From now on rewards are the mean of these entries, and all of these flags together end an episode too."""
        reading = StepReading(self.spec, rewards, dones)
        self._reward, self._ends = reading.reward, reading.ends

    def _spec(self) -> TensorDictSpec:
        acted = [group.below(leaf.key) for group in self.groups for leaf in group.action]
        return TensorDictSpec(
            num_envs=1,
            batch_shape=(),
            observed=self._states.observed,
            acted=tuple(acted),
            carried=(),
            rewarded=tuple(group.below(REWARD) for group in self.groups),
            done=WHOLE,
            flags=self._states.flags,
            draw=self._draw,
            imagine=self._imagined,
            env=lambda: self._env,
            seeding="episode",
        )

    def _acting(self, made: TensorDictBase) -> dict[Any, Any]:
        """The actions of the agents that are there, as the policy wrote them."""
        there = [*self._env.agents]
        return {agent: act for group in self.groups for agent, act in group.actions(made, there).items()}

    def _read(self, answer: Any) -> tuple[TensorDict, TensorDict]:
        """The root of the next step, and what this one led to."""
        observations, rewards, terminations, truncations, _ = answer
        there = [*self._env.agents]
        self._states.stepped(terminations, truncations, there)
        following = self._states.following(observations, rewards, there)
        return self._states.state({agent: observations[agent] for agent in there}, there), following

    def _imagined(self) -> Any:
        states = AgentStates(self.groups, self._max_steps)
        step = states.state({}, ()).set(NEXT, states.following({}, {}, ()))
        return step.apply(torch.zeros_like)

    def _draw(self, root: TensorDictBase) -> TensorDictBase:
        for group in self.groups:
            group.draw(root)
        return root


def _failed(error: Exception) -> Transition:
    return Transition([], np.zeros(1), failed=[(0, error)])


def require_equal_groups(hosts: Sequence[ParallelEnvHost]) -> None:
    """Check that envs which are stepped together have the same agents with the same spaces.

    Raises:
        ValueError: they differ.
    """
    for place, host in enumerate(hosts):
        if host.groups != hosts[0].groups:
            raise ValueError(
                f"env {place} has other agents or spaces than env 0: {host.groups}, not {hosts[0].groups}; envs of "
                "one worker must agree in them"
            )


def _is_zoo_env(value: object, kind: str) -> bool:
    zoo = sys.modules.get("pettingzoo.utils.env")  # where it was not imported there is none of its envs
    return zoo is not None and isinstance(value, getattr(zoo, kind))
