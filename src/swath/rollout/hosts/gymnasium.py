"""Hosts for lists of envs, stepped one after another in this thread: gymnasium's, and multi-agent envs.

Observations of agents are not stacked, since their number changes; that is done for the agents of each policy.

    reset ──▶ observations, infos               step ──▶ observations, rewards, terminateds, truncateds, infos

    observations   [[{agent: observation}, …]]   one leaf: a list of N dicts, of the agents that each env returned
    actions        [[{agent: action}, …], …]     a list of N dicts, of the agents that act; further leaves are ignored
"""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import hypot
from typing import Any, TypeAlias, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from swath.rollout.hosts.base import ArrayHost, ArraySpec, Ends, EnvRaised, MakeEnvs, Transition, close_quietly
from swath.rollout.hosts.results import LARGEST_REWARD, bad_answer, flags_of, rewards_of
from swath.rollout.spaces import Array, Leaves, Pack, Split, action_leaves, observation_leaves, packer, splitter

# The attribute of `TimeLimit` with its limit, the only one that users can change: its `spec` is cached.
_LIMIT = "_max_episode_steps"

_NO_INFO: dict[str, Any] = {}  # the info of an env that did not step


# Values by agent id; in flags also by `ALL`.
ByAgent: TypeAlias = dict[Any, Any]

# Observations, rewards, terminated and truncated flags, infos: all are dicts. The middle ones are `Any`, since
# gymnasium's base class declares a number and two booleans.
Step: TypeAlias = tuple[ByAgent, Any, Any, Any, ByAgent]

# The flag of the whole env, in both dicts of flags.
ALL = "__all__"

# The key of an info that belongs to no single agent.
COMMON = "__common__"

# Keys of `Transition.info` for each env that stepped: rewards, flags and infos of its agents, each a dict.
REWARDS, TERMINATEDS, TRUNCATEDS, INFOS = "rewards", "terminateds", "truncateds", "infos"


class ListHost(ArrayHost):
    """B envs, stepped one after another.

    Args:
        envs: at least one env.
        make: builds the envs again.
        spec: properties of the envs.
        pack: turns observations of envs into leaves `[n, …]`; raises if they do not fit.
        split: turns action leaves into one action per env.
    """

    step_form = "a gymnasium env has step(action) -> observation, reward, terminated, truncated, info"
    reset_form = "a gymnasium env has reset(*, seed=None, options=None) -> observation, info"

    def __init__(self, envs: Sequence[Any], make: MakeEnvs | None, spec: ArraySpec, pack: Pack, split: Split) -> None:
        super().__init__(envs, make)
        self.spec, self._pack, self._split = spec, pack, split
        self._last: list[Any] = [None] * len(self.envs)
        self._infos: list[Mapping[str, Any]] = [_NO_INFO] * len(self.envs)
        self._set_steps()

    @property
    def env(self) -> Any:
        """Return the env if it is a single one, else the list of envs."""
        return self.envs[0] if len(self.envs) == 1 else self.envs

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones."""
        self._set_steps()
        self._infos = self._infos.copy()  # a transition has the old list
        for env in range(len(self.envs)):
            self._begin(env, None if seeds is None else seeds[env])
        return self._pack(self._last)

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs, and return a copy of `base` with their first observations as rows."""
        observation, self._infos = [leaf.copy() for leaf in base], self._infos.copy()  # a transition has the old list
        for env, seed in zip(envs, seeds or [None] * len(envs), strict=True):
            for leaf, rows in zip(observation, self._begin(env, seed), strict=True):
                leaf[env] = rows[0]
        return observation

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Step every env that is not retired, or the env `only`, also after an env has failed.

        An env fails if it raises or returns an invalid value.
        """
        steps = self._steps if only is None else {only: self._steps[only]}
        observations, infos = self._last.copy(), self._infos.copy()
        rewards: Any = array("d", bytes(8 * len(infos)))
        ends: list[tuple[int, bool, bool]] = []
        failed: list[tuple[int, Exception]] = []
        actions = self._split(action)
        remaining, no_answer = iter(steps.items()), cast(Any, object())
        while True:
            env, answer = -1, no_answer
            try:
                for env, step in remaining:
                    answer = no_answer
                    answer = step(actions[env])
                    observations[env], reward, terminated, truncated, infos[env] = answer
                    try:
                        rewards[env] = reward  # accepts numbers only: NumPy would turn None into NaN
                    except Exception:  # noqa: BLE001  an array of one element, or the step has failed
                        (rewards[env],) = rewards_of(reward)
                    if terminated or truncated:
                        ends.append((env, flags_of("terminated", terminated)[0], flags_of("truncated", truncated)[0]))
                break
            except Exception as error:  # noqa: BLE001  `Transition.failed` has it, with its type
                if answer is not no_answer:
                    error = bad_answer(error, self.envs[env], self.step_form)
                failed.append((env, error))
                observations[env], infos[env] = self._last[env], _NO_INFO
        if not hypot(*rewards) <= LARGEST_REWARD:  # a bound for all rewards, which costs next to nothing
            self._fail_large_rewards(rewards, failed)
        leaves = self._pack_or_fail(observations, failed)
        self._last, self._infos = observations, infos
        return Transition(leaves, np.frombuffer(rewards), Ends.from_tuples(ends), (), failed, infos)

    def replace_env(self, env: int, make: Callable[[], Any]) -> None:
        """Close this env and build another in its place, which has to be reset before it is stepped."""
        close_quietly(self.envs[env])
        self.envs[env] = make()
        self._steps[env] = self._step_of(self.envs[env])

    def retire(self, envs: Sequence[int]) -> None:
        """Stop stepping these envs until `reset_all`."""
        self._infos = self._infos.copy()
        for env in envs:
            self._steps.pop(env, None)
            self._infos[env] = _NO_INFO

    def render(self, env: int) -> Array | None:
        """Return a frame of this env, if its `render_mode` is `"rgb_array"`."""
        renders = getattr(self.envs[env], "render_mode", None) == "rgb_array"
        return np.asarray(self.envs[env].render()) if renders else None

    def info_of(self, env: int) -> Mapping[str, Any]:
        """Return the info dict that came with the latest observation of this env."""
        return self._infos[env] or {}  # it may be None

    @abstractmethod
    def _step_of(self, env: Any) -> Callable[[Any], Any]:
        """Return a function that steps an env."""

    def _read_reset(self, answer: Any) -> tuple[Any, Any]:
        """Return observation and info of a reset's answer.

        Raises:
            Exception: the answer is no pair.
        """
        observation, info = answer if isinstance(answer, tuple | list) else (answer,)  # an array is no pair of rows
        return observation, info

    def _set_steps(self) -> None:
        self._steps = {number: self._step_of(env) for number, env in enumerate(self.envs)}

    def _begin(self, env: int, seed: int | None) -> Leaves:
        """Begin an episode in this env, and return the leaves of its observation, `[1, …]`.

        Raises:
            EnvRaised: the reset raised, or returned an invalid value.
        """
        try:
            answer = self.envs[env].reset(seed=seed)
        except Exception as error:
            raise EnvRaised(env, error) from error
        try:
            observation, info = self._read_reset(answer)
            leaves = self._pack([observation])
        except Exception as error:
            raise EnvRaised(env, bad_answer(error, self.envs[env], self.reset_form)) from error
        self._last[env], self._infos[env] = observation, info
        if seed is not None:
            self._seeds[env] = seed
        return leaves

    def _fail_large_rewards(self, rewards: Sequence[float], failed: list[tuple[int, Exception]]) -> None:
        """Add envs to `failed` whose rewards float32 cannot hold."""
        before = {env for env, _ in failed}
        for env, reward in enumerate(rewards):
            try:
                rewards_of(reward)
            except ValueError as error:
                if env not in before:
                    failed.append((env, bad_answer(error, self.envs[env], self.step_form)))

    def _pack_or_fail(self, observations: list[Any], failed: list[tuple[int, Exception]]) -> Leaves:
        """Return leaves `[B, …]`; envs whose observation does not fit are added to `failed`, and keep the last one."""
        try:
            return self._pack(observations)
        except Exception:  # noqa: BLE001  each row is packed alone to find the bad ones
            for env, row in enumerate(observations):
                try:
                    self._pack([row])
                except Exception as error:  # noqa: BLE001  `Transition.failed` has it
                    observations[env] = self._last[env]
                    failed.append((env, bad_answer(error, self.envs[env], self.step_form)))
            return self._pack(observations)


class EnvListHost(ListHost):
    """B gymnasium envs with equal spaces.

    The outermost wrappers of `gymnasium.make` cost about as much as a small env's step. The host does their work (reset
    before stepping, check shapes) and steps the env inside; the loop counts steps, up to the limits of the spec, which
    are read from the wrappers when an episode begins. Resets go through all wrappers.

    Args:
        envs: at least one env; their spaces are equal.
        bare: a single env whose batch has no env dimension (`*B` is `()`).
        make: builds the envs again.
        exact: observations keep the dtypes of their space, under any names, and actions are read-only.
        keep_float64: observations of float64 stay float64.

    Raises:
        TypeError, ValueError: spaces that are not served, or that differ.
    """

    def __init__(
        self,
        envs: list[Any],
        *,
        bare: bool = False,
        make: MakeEnvs | None = None,
        exact: bool = False,
        keep_float64: bool = False,
    ) -> None:
        spaces_of_first = envs[0].observation_space, envs[0].action_space
        observation = observation_leaves(spaces_of_first[0], exact=exact, keep_float64=keep_float64)
        action = action_leaves(spaces_of_first[1])
        shape = () if bare else (len(envs),)
        self._limiters = [strip_wrappers(env)[1] for env in envs]
        self._limits = [read_step_limit(limiters) for limiters in self._limiters]
        spec = ArraySpec(len(envs), shape, observation, action, *spaces_of_first, limits=self._limits)
        for i, env in enumerate(envs):
            for name, first in zip(("observation_space", "action_space"), spaces_of_first, strict=True):
                if (space := getattr(env, name)) != first:
                    difference = f"env {i} has {name} {space}, env 0 has {first}"
                    raise ValueError(f"envs of one worker must agree in their spaces: {difference}")
        super().__init__(envs, make, spec, packer(observation), splitter(spaces_of_first[1], writable=not exact))

    def replace_env(self, env: int, make: Callable[[], Any]) -> None:
        """Close this env and build another in its place, which has to be reset before it is stepped."""
        super().replace_env(env, make)
        self._limiters[env] = strip_wrappers(self.envs[env])[1]

    def _step_of(self, env: gym.Env[Any, Any]) -> Callable[[Any], Any]:
        return strip_wrappers(env)[0].step

    def _begin(self, env: int, seed: int | None) -> Leaves:
        leaves = super()._begin(env, seed)
        self._limits[env] = read_step_limit(self._limiters[env])
        return leaves


def strip_wrappers(env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], list[TimeLimit[Any, Any]]]:
    """Return the env without the wrappers whose work host and loop do, and the `TimeLimit`s among these wrappers.

    A `TimeLimit` without gymnasium's attribute for the limit stays, and counts by itself.
    """
    limiters = list[TimeLimit[Any, Any]]()
    while type(env) in (TimeLimit, OrderEnforcing, PassiveEnvChecker):
        assert isinstance(env, gym.Wrapper)
        if isinstance(env, TimeLimit):
            if not env.has_wrapper_attr(_LIMIT):
                break
            limiters.append(env)
        env = env.env
    return env, limiters


def read_step_limit(limiters: Sequence[TimeLimit[Any, Any]]) -> int | None:
    """Return the least present limit of some wrappers, or `None` without wrappers."""
    return min([wrapper.get_wrapper_attr(_LIMIT) for wrapper in limiters], default=None)


class MultiAgentHost(ListHost):
    """N multi-agent envs. An env that violates the multi-agent API has failed.

    The reward `[N]` of a transition is the sum over agents; its `info` has the rewards of each agent.

    Args:
        envs: at least one env.
        make: builds the envs again.
    """

    step_form = "a multi-agent env has step(actions) -> observations, rewards, terminateds, truncateds, infos: dicts"
    reset_form = "a multi-agent env has reset(*, seed=None, options=None) -> observations, infos: dicts"

    def __init__(self, envs: Sequence[Any], *, make: MakeEnvs | None = None) -> None:
        n = len(envs)
        spec = ArraySpec(n, (n,), (), (), spaces.Dict(), spaces.Dict())  # agents may differ in their spaces
        super().__init__(envs, make, spec, lambda rows: [list(rows)], lambda leaves: leaves[0])

    def info_of(self, env: int) -> ByAgent:
        """Return the infos by agent that came with the latest observations of this env."""
        infos: ByAgent = super().info_of(env)[INFOS]
        return infos

    def _step_of(self, env: Any) -> Callable[[Any], Any]:
        """Return a function that steps an env as if it had one agent."""

        def step(actions: ByAgent) -> Any:
            returned = env.step(actions)
            try:
                observations, rewards, terminateds, truncateds, infos = returned
                results = {REWARDS: rewards, TERMINATEDS: terminateds, TRUNCATEDS: truncateds, INFOS: infos}
                _check("step", observations, results)
                results[REWARDS], total = _sum_rewards(rewards)
            except Exception as error:
                raise bad_answer(error, env, self.step_form) from error
            return observations, total, terminateds[ALL], truncateds[ALL], results

        return step

    def _read_reset(self, answer: Any) -> tuple[ByAgent, ByAgent]:
        observations, infos = answer
        _check("reset", observations, {INFOS: infos})
        return observations, {INFOS: infos}


def _check(method: str, observations: ByAgent, results: Mapping[str, ByAgent]) -> None:
    """Check the return value of a step or reset.

    Raises:
        TypeError: a value that must be a dict is none.
        ValueError: flags without `"__all__"`, or that are not boolean; an info of an agent that is not observed.
    """
    for name, value in (("observations", observations), *results.items()):
        if type(value) is not dict and not isinstance(value, Mapping):
            raise TypeError(f"{method} returned {name}={value!r}; it must be a dict by agent")
    for name in {TERMINATEDS, TRUNCATEDS} & results.keys():
        flags = results[name]
        if ALL not in flags:
            raise ValueError(f"step returned {name} of {[*flags]} without {ALL!r}; both dicts of flags need it")
        for agent, value in flags.items():
            if value and value is not True:
                flags_of(f"{name}[{agent!r}]", value)
    for agent, info in results[INFOS].items():
        if type(info) is not dict and not isinstance(info, Mapping):
            raise TypeError(f"{method} returned infos[{agent!r}]={info!r}; an info is a dict")
    unobserved = results[INFOS].keys() - observations.keys() - {COMMON}
    if unobserved:
        raise ValueError(f"{method} returned infos of {[*unobserved]}, but observations of {[*observations]} only")


def _sum_rewards(rewards: ByAgent) -> tuple[ByAgent, float]:
    """Return the rewards as numbers, and their sum.

    Raises:
        ValueError: a reward that is not one number, or is beyond the range of float32.
    """
    with suppress(TypeError, ValueError):
        total = float(sum(rewards.values()))
        if hypot(*rewards.values()) <= LARGEST_REWARD:
            return rewards, total
    numbers = {agent: float(rewards_of(reward, 1, f" of agent {agent!r}")[0]) for agent, reward in rewards.items()}
    return numbers, sum(numbers.values())
