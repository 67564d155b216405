"""Hosts for lists of envs, stepped one after another in this thread: gymnasium's, and envs with several agents each.

Agents come and go, so there is nothing to stack: that is done where they are sorted by their policies.

    reset ──▶ observations, infos               step ──▶ observations, rewards, terminateds, truncateds, infos

    observations   [[{agent: observation}, …]]   one leaf: a list of N dicts, of the agents that each env returned
    actions        [[{agent: action}, …], …]     likewise, of the agents that act; all leaves behind it are ignored
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

from swath.rollout.hosts.base import ArrayHost, ArraySpec, Ends, EnvRaised, Make, Transition, close_broken
from swath.rollout.hosts.returned import LARGEST_REWARD, bad_answer, flags_of, rewards_of
from swath.rollout.spaces import Array, Leaves, Pack, Split, action_leaves, observation_leaves, packer, splitter

# Where `TimeLimit` keeps its limit, the only place in which users can change it: its `spec` is cached.
_LIMIT = "_max_episode_steps"

_SILENCE: dict[str, Any] = {}  # the info of an env that did not step


# Values by agent id; in flags also by `ALL`.
ByAgent: TypeAlias = dict[Any, Any]

# Observations, rewards, terminated and truncated flags, infos: all of them dicts. Those in the middle are `Any` to
# type checkers: gymnasium's base class declares a number and two booleans.
Step: TypeAlias = tuple[ByAgent, Any, Any, Any, ByAgent]

# The flag of the whole env, in both dicts of flags.
ALL = "__all__"

# The key of an info that is for no agent alone.
COMMON = "__common__"

# What `Transition.info` has of each env that stepped: rewards, flags and infos of its agents, each a dict.
REWARDS, TERMINATEDS, TRUNCATEDS, INFOS = "rewards", "terminateds", "truncateds", "infos"


class ListHost(ArrayHost):
    """B envs, stepped one after another.

    Args:
        envs: at least one env.
        make: builds the envs anew.
        spec: what they look like.
        pack: observations of envs to leaves `[n, …]`; raises if they do not fit.
        split: action leaves to one action per env.
    """

    step_form = "a gymnasium env has step(action) -> observation, reward, terminated, truncated, info"
    reset_form = "a gymnasium env has reset(*, seed=None, options=None) -> observation, info"

    def __init__(self, envs: Sequence[Any], make: Make | None, spec: ArraySpec, pack: Pack, split: Split) -> None:
        super().__init__(envs, make)
        self.spec, self._pack, self._split = spec, pack, split
        self._last: list[Any] = [None] * len(self.envs)
        self._infos: list[Mapping[str, Any]] = [_SILENCE] * len(self.envs)
        self._install()

    @property
    def env(self) -> Any:
        """The env itself if there is one, else the list of envs."""
        return self.envs[0] if len(self.envs) == 1 else self.envs

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones."""
        self._install()
        self._infos = self._infos.copy()  # a transition has the others
        for env in range(len(self.envs)):
            self._begin(env, None if seeds is None else seeds[env])
        return self._pack(self._last)

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; rows of the others are those of `onto`."""
        fresh, self._infos = [leaf.copy() for leaf in onto], self._infos.copy()  # a transition has the others
        for env, seed in zip(envs, seeds or [None] * len(envs), strict=True):
            for leaf, rows in zip(fresh, self._begin(env, seed), strict=True):
                leaf[env] = rows[0]
        return fresh

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Advance every env that is not retired, or one; an env that fails does not keep the others from stepping.

        One that returns what cannot be used has failed, as one that raises has.
        """
        steps = self._steps if only is None else {only: self._steps[only]}
        observations, infos = self._last.copy(), self._infos.copy()
        rewards: Any = array("d", bytes(8 * len(infos)))
        ended: list[tuple[int, bool, bool]] = []
        failed: list[tuple[int, Exception]] = []
        actions = self._split(action)
        todo, none_yet = iter(steps.items()), cast(Any, object())
        while True:
            env, answer = -1, none_yet
            try:
                for env, step in todo:
                    answer = none_yet
                    answer = step(actions[env])
                    observations[env], reward, terminated, truncated, infos[env] = answer
                    try:
                        rewards[env] = reward  # takes nothing but numbers: NumPy would make NaN of None
                    except Exception:  # noqa: BLE001  an array of one element, or the step has failed
                        (rewards[env],) = rewards_of(reward)
                    if terminated or truncated:
                        died, cut = flags_of("terminated", terminated)[0], flags_of("truncated", truncated)[0]
                        ended.append((env, died, cut))
                break
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                failed.append((env, error if answer is none_yet else bad_answer(error, self.envs[env], self.step_form)))
                observations[env], infos[env] = self._last[env], _SILENCE
        if not hypot(*rewards) <= LARGEST_REWARD:  # no reward is larger than that, which costs next to nothing
            self._refuse_large(rewards, failed)
        leaves = self._packed(observations, failed)
        self._last, self._infos = observations, infos
        return Transition(leaves, np.frombuffer(rewards), Ends.listed(ended), (), failed, infos)

    def renew(self, env: int, make: Callable[[], Any]) -> None:
        """Close this env and put what `make` builds in its place; it is to be reset before it is stepped."""
        close_broken(self.envs[env])
        self.envs[env] = make()
        self._steps[env] = self._step_of(self.envs[env])

    def retire(self, envs: Sequence[int]) -> None:
        """Step these envs no more until `reset_all`."""
        self._infos = self._infos.copy()
        for env in envs:
            self._steps.pop(env, None)
            self._infos[env] = _SILENCE

    def render(self, env: int) -> Array | None:
        """A frame of this env, if its `render_mode` is `"rgb_array"`."""
        drawn = getattr(self.envs[env], "render_mode", None) == "rgb_array"
        return np.asarray(self.envs[env].render()) if drawn else None

    def info_of(self, env: int) -> Mapping[str, Any]:
        """What this env said with its latest observation."""
        return self._infos[env] or {}  # None is an empty one

    @abstractmethod
    def _step_of(self, env: Any) -> Callable[[Any], Any]:
        """How to step an env."""

    def _read_reset(self, answer: Any) -> tuple[Any, Any]:
        """Observation and info of what a reset returned.

        Raises:
            Exception: it is something else.
        """
        observation, info = answer if isinstance(answer, tuple | list) else (answer,)  # not two rows of it
        return observation, info

    def _install(self) -> None:
        self._steps = {env: self._step_of(each) for env, each in enumerate(self.envs)}

    def _begin(self, env: int, seed: int | None) -> Leaves:
        """Begin an episode in this env: the leaves of its observation, `[1, …]`.

        Raises:
            EnvRaised: it raised, or returned something else.
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

    def _refuse_large(self, rewards: Sequence[float], failed: list[tuple[int, Exception]]) -> None:
        """Add envs to those that failed if float32 cannot hold their rewards."""
        before = {env for env, _ in failed}
        for env, reward in enumerate(rewards):
            try:
                rewards_of(reward)
            except ValueError as error:
                if env not in before:
                    failed.append((env, bad_answer(error, self.envs[env], self.step_form)))

    def _packed(self, observations: list[Any], failed: list[tuple[int, Exception]]) -> Leaves:
        """What the envs observed, as leaves `[B, …]`; those whose observation does not fit have failed, and stay."""
        try:
            return self._pack(observations)
        except Exception:  # noqa: BLE001  each row is tried alone
            for env, row in enumerate(observations):
                try:
                    self._pack([row])
                except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`
                    observations[env] = self._last[env]
                    failed.append((env, bad_answer(error, self.envs[env], self.step_form)))
            return self._pack(observations)


class EnvListHost(ListHost):
    """B gymnasium envs with equal spaces.

    The wrappers that `gymnasium.make` puts outermost cost about as much as a small env's step; the host does what they
    do (reset before stepping, check shapes) and steps what they wrap; the loop counts steps, up to the limits of the
    spec, which are read from the wrappers when an episode begins. Resets go through all wrappers.

    Args:
        envs: at least one env; their spaces are equal.
        bare: one env whose batch has no env dimension (`*B` is `()`).
        make: builds the envs anew.
        exact: observations keep the dtypes of their space, under any names, and actions refuse to be written into.
        keep_float64: observations of float64 stay float64.

    Raises:
        TypeError, ValueError: spaces that are not served, or that differ.
    """

    def __init__(
        self,
        envs: list[Any],
        *,
        bare: bool = False,
        make: Make | None = None,
        exact: bool = False,
        keep_float64: bool = False,
    ) -> None:
        seen, acted = envs[0].observation_space, envs[0].action_space
        observation = observation_leaves(seen, exact=exact, keep_float64=keep_float64)
        action = action_leaves(acted)
        shape = () if bare else (len(envs),)
        self._limiters = [core_of(env)[1] for env in envs]
        self._limits = [steps_allowed(limiters) for limiters in self._limiters]
        spec = ArraySpec(len(envs), shape, observation, action, seen, acted, limits=self._limits)
        for i, env in enumerate(envs):
            for name, first in (("observation_space", seen), ("action_space", acted)):
                if (space := getattr(env, name)) != first:
                    differ = f"env {i} has {name} {space}, env 0 has {first}"
                    raise ValueError(f"envs of one worker must agree in their spaces: {differ}")
        super().__init__(envs, make, spec, packer(observation), splitter(acted, writable=not exact))

    def renew(self, env: int, make: Callable[[], Any]) -> None:
        """Close this env and put what `make` builds in its place; it is to be reset before it is stepped."""
        super().renew(env, make)
        self._limiters[env] = core_of(self.envs[env])[1]

    def _step_of(self, env: gym.Env[Any, Any]) -> Callable[[Any], Any]:
        return core_of(env)[0].step

    def _begin(self, env: int, seed: int | None) -> Leaves:
        leaves = super()._begin(env, seed)
        self._limits[env] = steps_allowed(self._limiters[env])
        return leaves


def core_of(env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], list[TimeLimit[Any, Any]]]:
    """Return the env without the wrappers that the host and the loop stand in for, and those of them that limit steps.

    A `TimeLimit` that does not keep its limit where gymnasium's does counts by itself: the env is stepped through it.
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


def steps_allowed(limiters: Sequence[TimeLimit[Any, Any]]) -> int | None:
    """Return how many steps these wrappers allow an episode that begins now, or `None` without limit."""
    return min([wrapper.get_wrapper_attr(_LIMIT) for wrapper in limiters], default=None)


class MultiAgentHost(ListHost):
    """N multi-agent envs. What breaks the promises of such envs has failed, as one that raises has.

    The reward `[N]` of a transition is the sum over agents; what each of them was paid is in its `info`.

    Args:
        envs: at least one env.
        make: builds the envs anew.
    """

    step_form = "a multi-agent env has step(actions) -> observations, rewards, terminateds, truncateds, infos: dicts"
    reset_form = "a multi-agent env has reset(*, seed=None, options=None) -> observations, infos: dicts"

    def __init__(self, envs: Sequence[Any], *, make: Make | None = None) -> None:
        n = len(envs)
        spec = ArraySpec(n, (n,), (), (), spaces.Dict(), spaces.Dict())  # nothing is everybody's
        super().__init__(envs, make, spec, lambda rows: [list(rows)], lambda leaves: leaves[0])

    def info_of(self, env: int) -> ByAgent:
        """The infos by agent that came with this env's latest observations."""
        said: ByAgent = super().info_of(env)[INFOS]
        return said

    def _step_of(self, env: Any) -> Callable[[Any], Any]:
        """How to step an env as if its agents were one."""

        def step(actions: ByAgent) -> Any:
            returned = env.step(actions)
            try:
                observations, rewards, terminateds, truncateds, infos = returned
                said = {REWARDS: rewards, TERMINATEDS: terminateds, TRUNCATEDS: truncateds, INFOS: infos}
                _check("step", observations, said)
                said[REWARDS], paid = _paid(rewards)
            except Exception as error:
                raise bad_answer(error, env, self.step_form) from error
            return observations, paid, terminateds[ALL], truncateds[ALL], said

        return step

    def _read_reset(self, answer: Any) -> tuple[ByAgent, ByAgent]:
        observations, infos = answer
        _check("reset", observations, {INFOS: infos})
        return observations, {INFOS: infos}


def _check(what: str, observations: ByAgent, said: Mapping[str, ByAgent]) -> None:
    """Check what a step or reset returned.

    Raises:
        TypeError: no dict where there must be one.
        ValueError: flags without `"__all__"`, or that say neither yes nor no; an info of an agent that is not observed.
    """
    for name, value in (("observations", observations), *said.items()):
        if type(value) is not dict and not isinstance(value, Mapping):
            raise TypeError(f"{what} returned {name}={value!r}; it must be a dict by agent")
    for name in {TERMINATEDS, TRUNCATEDS} & said.keys():
        flags = said[name]
        if ALL not in flags:
            raise ValueError(f"step returned {name} of {[*flags]} without {ALL!r}; both dicts of flags need it")
        for agent, value in flags.items():
            if value and value is not True:
                flags_of(f"{name}[{agent!r}]", value)
    for agent, info in said[INFOS].items():
        if type(info) is not dict and not isinstance(info, Mapping):
            raise TypeError(f"{what} returned infos[{agent!r}]={info!r}; an info is a dict")
    strangers = said[INFOS].keys() - observations.keys() - {COMMON}
    if strangers:
        raise ValueError(f"{what} returned infos of {[*strangers]}, but observations of {[*observations]} only")


def _paid(rewards: ByAgent) -> tuple[ByAgent, float]:
    """The rewards as numbers, and their sum.

    Raises:
        ValueError: that of an agent is not one number, or is beyond the range of float32.
    """
    with suppress(TypeError, ValueError):
        total = float(sum(rewards.values()))
        if hypot(*rewards.values()) <= LARGEST_REWARD:
            return rewards, total
    numbers = {agent: float(rewards_of(reward, 1, f" of agent {agent!r}")[0]) for agent, reward in rewards.items()}
    return numbers, sum(numbers.values())
