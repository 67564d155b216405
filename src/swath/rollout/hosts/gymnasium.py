"""The host for a list of gymnasium envs, stepped one after another in this thread."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from swath.rollout.hosts.base import ArraySpec, Ends, EnvRaised, Transition, close_all, close_broken
from swath.rollout.hosts.returned import as_flag, as_reward, bad_answer
from swath.rollout.spaces import Array, Leaves, action_leaves, observation_leaves, packer, splitter
from swath.rollout.until import StepLimit

Make = Callable[[], list[gym.Env[Any, Any]]]

_SILENCE: dict[str, Any] = {}  # the info of an env that did not step
_UNPAID = array("d", [0.0])  # its reward

STEP = "a gymnasium env has step(action) -> observation, reward, terminated, truncated, info"
RESET = "a gymnasium env has reset(*, seed=None, options=None) -> observation, info"

_PASSING_ON = (TimeLimit, OrderEnforcing, PassiveEnvChecker)
"""Wrappers that the host stands in for."""

_NONE_YET: Any = object()
"""In the place of an answer while the env is called."""


class EnvListHost:
    """B gymnasium envs with equal spaces.

    The wrappers that `gymnasium.make` puts outermost cost about as much as a small env's step; the host does what they
    do (count steps, reset before stepping, check shapes) and steps what they wrap. Resets go through all wrappers.

    Args:
        envs: at least one env; their spaces are equal.
        bare: one env whose batch has no env dimension (`*B` is `()`).
        make: builds the envs anew.
        exact: observations keep the dtypes of their space, under any names, and actions refuse to be written into.
    """

    def __init__(
        self, envs: Sequence[gym.Env[Any, Any]], *, bare: bool = False, make: Make | None = None, exact: bool = False
    ) -> None:
        self._make = make
        self._envs = list(envs)
        first, n = self._envs[0], len(self._envs)
        self.spec = ArraySpec(
            num_envs=n,
            batch_shape=() if bare else (n,),
            observation=observation_leaves(first.observation_space, exact=exact),
            action=action_leaves(first.action_space),
            action_space=first.action_space,
        )
        self._install()
        self._pack = packer(self.spec.observation)
        self._split = splitter(first.action_space, n, writable=not exact)
        self._last: list[Any] = [None] * n
        self._seeds: list[int | None] = [None] * n
        self._infos: list[Any] = [_SILENCE] * n
        self._closed = False

    @property
    def env(self) -> Any:
        """The env itself if there is one, else the list of envs."""
        return self._envs[0] if len(self._envs) == 1 else self._envs

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env."""
        self._steps = list(enumerate(self._step_core))
        everyone = range(len(self._envs))
        self._begin(everyone, seeds)
        return self._begun(everyone)

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; rows of the others are those of `onto`."""
        self._begin(envs, seeds)
        fresh = [leaf.copy() for leaf in onto]
        for leaf, rows in zip(fresh, self._begun(envs), strict=True):
            leaf[envs] = rows
        return fresh

    def step(self, action: Leaves) -> Transition:
        """Advance every env that is not retired; an env that fails does not keep the others from stepping.

        One that returns what cannot be used has failed, as one that raises has.
        """
        observations, infos = self._last.copy(), [_SILENCE] * len(self._last)
        rewards: Any = _UNPAID * len(self._last)
        ended: list[tuple[int, bool, bool]] = []
        failed: list[tuple[int, Exception]] = []
        actions = self._split(action)
        todo, none_yet = iter(self._steps), _NONE_YET
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
                        rewards[env] = as_reward(reward)
                    if terminated or truncated:
                        ended.append((env, as_flag("terminated", terminated), as_flag("truncated", truncated)))
                break
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                failed.append((env, error if answer is none_yet else bad_answer(error, self._envs[env], STEP)))
        ends = Ends.listed(ended)
        expired = self._limit.tick()
        if expired:
            ends = ends.cutting(expired)
        leaves = self._leaves(observations, failed)
        self._last, self._infos = observations, infos
        return Transition(leaves, np.frombuffer(rewards), ends, (), failed, infos)

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Advance this env alone, in the place of a step of it that failed."""
        n = len(self._envs)
        reward, infos = np.zeros(n), [_SILENCE] * n
        own, answer = self._split(action)[env], _NONE_YET
        try:
            answer = self._step_core[env](own)
            there, paid, terminated, truncated, infos[env] = answer
            reward[env] = as_reward(paid)
            end = env, as_flag("terminated", terminated), as_flag("truncated", truncated)
            self._pack([there])
        except Exception as error:  # noqa: BLE001  as in `step`
            cause = error if answer is _NONE_YET else bad_answer(error, self._envs[env], STEP)
            return Transition(self._pack(self._last), reward, failed=[(env, cause)])
        self._last[env] = there
        self._infos = [*self._infos[:env], infos[env], *self._infos[env + 1 :]]
        ended = Ends.listed([end] if terminated or truncated else [])
        if self._limit.tick_one(env):
            ended = ended.cutting([env])
        return Transition(self._pack(self._last), reward, ended, info=infos)

    def rebuild(self) -> Leaves:
        """Close the envs, build others and reset them."""
        if self._make is None:
            raise RuntimeError(f"{self._envs[0]} was given as an instance and cannot be built anew; pass a callable")
        close_broken(self.close)
        self._envs, self._closed = self._make(), False
        self._install()
        return self.reset_all()

    def renew(self, env: int, make: Callable[[], gym.Env[Any, Any]]) -> None:
        """Close this env and put what `make` builds in its place; it is to be reset before it is stepped."""
        close_broken(self._envs[env].close)
        made = make()
        require_equal_spaces([self._envs[env], made])
        self._envs[env] = made
        core, limit = _core(made)
        self._step_core[env] = core.step
        self._steps = [(other, self._step_core[other]) for other, _ in self._steps]
        self._limit.change(env, limit)

    def retire(self, envs: Sequence[int]) -> None:
        """Step these envs no more until `reset_all`."""
        gone = set(envs)
        self._steps = [(env, step) for env, step in self._steps if env not in gone]
        self._limit.stop(list(gone))

    def render(self, env: int) -> Array | None:
        """A frame of this env, if its `render_mode` is `"rgb_array"`."""
        return None if self._envs[env].render_mode != "rgb_array" else np.asarray(self._envs[env].render())

    def info_of(self, env: int) -> Mapping[str, Any]:
        """What this env said with its latest observation."""
        said: Mapping[str, Any] = self._infos[env]
        return said

    def seed_of(self, env: int) -> int | None:
        """The seed this env was last reset with."""
        return self._seeds[env]

    def close(self) -> None:
        """Close every env, also if one of them raises; the first error is raised at the end."""
        if self._closed:
            return
        self._closed = True
        close_all(self._envs)

    def _install(self) -> None:
        cores = [_core(env) for env in self._envs]
        self._step_core = [core.step for core, _ in cores]
        self._steps = list(enumerate(self._step_core))
        self._limit = StepLimit([limit for _, limit in cores])

    def _leaves(self, observations: list[Any], failed: list[tuple[int, Exception]]) -> Leaves:
        """What the envs observed, as leaves `[B, …]`; those whose observation does not fit have failed, and stay."""
        try:
            return self._pack(observations)
        except Exception:  # noqa: BLE001  whosever it is; if nobody's, it is raised again
            misfits = list(self._misfits(range(len(observations)), observations, STEP))
        known = {env for env, _ in failed}
        for env, misfit in misfits:
            observations[env] = self._last[env]
            if env not in known:
                failed.append((env, misfit))
        return self._pack(observations)

    def _begun(self, envs: Sequence[int]) -> Leaves:
        """What these envs observed when they began, as leaves.

        Raises:
            EnvRaised: one of them observed something else than its space has.
        """
        rows = [self._last[env] for env in envs]
        try:
            return self._pack(rows)
        except Exception:
            for env, misfit in self._misfits(envs, rows, RESET):
                raise EnvRaised(env, misfit) from misfit
            raise

    def _misfits(self, envs: Iterable[int], rows: Iterable[Any], form: str) -> Iterator[tuple[int, Exception]]:
        """The envs whose observation does not fit, and what is wrong with it."""
        for env, row in zip(envs, rows, strict=True):
            try:
                self._pack([row])
            except Exception as error:  # noqa: BLE001  whatever it is, it is that env's
                yield env, bad_answer(error, self._envs[env], form)

    def _begin(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> None:
        self._infos = self._infos.copy()  # the transition that has them is its receiver's
        for env, given in zip(envs, seeds or [None] * len(envs), strict=True):
            seed = None if given is None else int(given)
            try:
                answer = self._envs[env].reset(seed=seed)
            except Exception as error:
                raise EnvRaised(env, error) from error
            try:
                self._last[env], self._infos[env] = (
                    answer if isinstance(answer, tuple | list) else (answer,)
                )  # not two rows of it
            except Exception as error:
                raise EnvRaised(env, bad_answer(error, self._envs[env], RESET)) from error
            if seed is not None:
                self._seeds[env] = seed
        self._limit.restart(envs)


def _core(env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], int | None]:
    """What to step, and after how many steps to truncate: the env without the wrappers this host stands in for."""
    limit: int | None = None
    while type(env) in _PASSING_ON:
        assert isinstance(env, gym.Wrapper)
        if isinstance(env, TimeLimit):
            most = None if env.spec is None else env.spec.max_episode_steps
            if most is None:  # it does not say its limit: it counts by itself
                break
            limit = most if limit is None else min(limit, most)
        env = env.env
    return env, limit


def require_equal_spaces(envs: Sequence[gym.Env[Any, Any]]) -> None:
    """Raise `ValueError` naming the first difference between these envs' spaces."""
    first = envs[0]
    for i, env in enumerate(envs):
        for name in ("observation_space", "action_space"):
            mine, theirs = getattr(env, name), getattr(first, name)
            if mine != theirs:
                raise ValueError(
                    f"envs of one worker must agree in their spaces: env {i} has {name} {mine}, env 0 has {theirs}"
                )
