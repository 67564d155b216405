"""The host for envs with several agents each, stepped one after another in this thread; and what such envs return.

    reset ──▶ observations, infos               step ──▶ observations, rewards, terminateds, truncateds, infos

    observations   [[{agent: observation}, …]]   one leaf: a list of N dicts, of the agents that each env returned
    actions        [[{agent: action}, …], …]     likewise, of the agents that act; all leaves behind it are ignored

Agents come and go, so there is nothing to stack here: that is done where agents are sorted by their policies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces

from swath.rollout.hosts.base import ArraySpec, Ends, EnvRaised, Transition, close_all, close_broken
from swath.rollout.hosts.returned import as_flag, as_reward, bad_answer
from swath.rollout.spaces import Array, Leaves

ByAgent: TypeAlias = dict[Any, Any]
"""Values by agent id; in flags also by `ALL`."""

Step: TypeAlias = tuple[ByAgent, Any, Any, Any, ByAgent]
"""Observations, rewards, terminated and truncated flags, infos: all of them dicts.

Those in the middle are `Any` to type checkers: gymnasium's base class declares a number and two booleans.
"""

ALL = "__all__"
"""The flag of the whole env, in both dicts of flags."""

COMMON = "__common__"
"""The key of an info that is for no agent alone."""

REWARDS, TERMINATEDS, TRUNCATEDS, INFOS = "rewards", "terminateds", "truncateds", "infos"
"""What `Transition.info` has of each env that stepped: rewards, flags and infos of its agents, each a dict."""

STEP = "an env with several agents has step(actions) -> observations, rewards, terminateds, truncateds, infos: dicts"
RESET = "an env with several agents has reset(*, seed=None, options=None) -> observations, infos: dicts"


class MultiAgentHost:
    """N multi-agent envs. What breaks the promises of such envs has failed, as one that raises has.

    The reward `[N]` of a transition is the sum over agents; what each of them was paid is in its `info`.

    Args:
        envs: at least one env.
        make: builds the envs anew.
    """

    def __init__(self, envs: Sequence[Any], *, make: Callable[[], list[Any]] | None = None) -> None:
        self._make = make
        self._envs = list(envs)
        n = len(self._envs)
        self.spec = ArraySpec(
            num_envs=n, batch_shape=(n,), observation=(), action=(), action_space=spaces.Dict()
        )  # nothing is the same for all agents
        self._last: list[ByAgent] = [{} for _ in self._envs]
        self._infos: list[ByAgent] = [{} for _ in self._envs]
        self._seeds: list[int | None] = [None] * n
        self._stepping = list(range(n))
        self._closed = False

    @property
    def env(self) -> Any:
        """The env itself if there is one, else the list of envs."""
        return self._envs[0] if len(self._envs) == 1 else self._envs

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env."""
        self._stepping = list(range(len(self._envs)))
        return self.reset(self._stepping, [self._last], seeds)

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; the others have the observations of `onto`."""
        begun = list(onto[0])
        for env, seed in zip(envs, seeds or [None] * len(envs), strict=True):
            begun[env] = self._begin(env, None if seed is None else int(seed))
        return [begun]

    def step(self, action: Leaves) -> Transition:
        """Advance every env that is not retired; an env that raises does not keep the others from stepping."""
        n = len(self._envs)
        observations, rewards, infos = self._last.copy(), np.zeros(n), list[Mapping[str, Any]]([{}] * n)
        ended, failed = list[tuple[int, bool, bool]](), list[tuple[int, Exception]]()
        for env in self._stepping:
            try:
                returned: Step = self._envs[env].step(action[0][env])
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                failed.append((env, error))
                continue
            try:
                check_step(returned)
                there, paid, terminateds, truncateds, told = returned
                paid, rewards[env] = _paid(paid)
            except Exception as error:  # noqa: BLE001  likewise
                failed.append((env, bad_answer(error, self._envs[env], STEP)))
                continue
            observations[env], self._infos[env] = there, told
            infos[env] = {REWARDS: paid, TERMINATEDS: terminateds, TRUNCATEDS: truncateds, INFOS: told}
            if terminateds[ALL] or truncateds[ALL]:
                ended.append((env, bool(terminateds[ALL]), bool(truncateds[ALL])))
        self._last = observations
        return Transition([observations], rewards, Ends.listed(ended), (), failed, infos)

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Advance this env alone, in the place of a step of it that failed."""
        others, self._stepping = self._stepping, [env]
        try:
            return self.step(action)
        finally:
            self._stepping = others

    def rebuild(self) -> Leaves:
        """Close the envs, build others and reset them."""
        if self._make is None:
            raise RuntimeError(f"{self._envs[0]} was given as an instance and cannot be built anew; pass a callable")
        close_broken(self.close)
        self._envs, self._closed = self._make(), False
        return self.reset_all()

    def renew(self, env: int, make: Callable[[], Any]) -> None:
        """Close this env and put what `make` builds in its place; it is to be reset before it is stepped."""
        close_broken(self._envs[env].close)
        self._envs[env] = make()

    def retire(self, envs: Sequence[int]) -> None:
        """Step these envs no more until `reset_all`."""
        self._stepping = [env for env in self._stepping if env not in envs]

    def render(self, env: int) -> Array | None:
        """A frame of this env, if its `render_mode` is `"rgb_array"`."""
        drawn = getattr(self._envs[env], "render_mode", None) == "rgb_array"
        return np.asarray(self._envs[env].render()) if drawn else None

    def seed_of(self, env: int) -> int | None:
        """The seed this env was last reset with."""
        return self._seeds[env]

    def info_of(self, env: int) -> ByAgent:
        """The infos by agent that came with this env's latest observations."""
        return self._infos[env]

    def close(self) -> None:
        """Close every env, also if one of them raises; the first error is raised at the end."""
        if not self._closed:
            self._closed = True
            close_all(self._envs)

    def _begin(self, env: int, seed: int | None) -> ByAgent:
        try:
            answer = self._envs[env].reset(seed=seed)
        except Exception as error:
            raise EnvRaised(env, error) from error
        try:
            observations, infos = answer
            check_reset(observations, infos)
        except Exception as error:
            raise EnvRaised(env, bad_answer(error, self._envs[env], RESET)) from error
        self._last[env], self._infos[env] = observations, infos
        if seed is not None:
            self._seeds[env] = seed
        observed: ByAgent = observations
        return observed


def check_reset(observations: Mapping[Hashable, Any], infos: Mapping[Hashable, Any]) -> None:
    """Check what a reset returned.

    Raises:
        TypeError: no dict where there must be one.
        ValueError: an info of an agent that is not observed.
    """
    _check_dicts("reset", {"observations": observations, INFOS: infos})
    _check_infos("reset", observations, infos)


def check_step(returned: Step) -> None:
    """Check what a step returned.

    Raises:
        TypeError: no dict where there must be one.
        ValueError: flags without `"__all__"`, or that say neither yes nor no; an info of an agent that is not observed.
    """
    observations, rewards, terminateds, truncateds, infos = returned
    ends = {TERMINATEDS: terminateds, TRUNCATEDS: truncateds}
    _check_dicts("step", {"observations": observations, REWARDS: rewards, **ends, INFOS: infos})
    for name, flags in ends.items():
        if ALL not in flags:
            raise ValueError(f"step returned {name} of {_list(flags)} without {ALL!r}; both dicts of flags need it")
        for agent, value in flags.items():
            if value and value is not True:
                as_flag(f"{name}[{agent!r}]", value)
    _check_infos("step", observations, infos)


def _paid(rewards: ByAgent) -> tuple[ByAgent, float]:
    """The rewards as numbers, and their sum.

    Raises:
        ValueError: that of an agent is not one number.
    """
    try:
        return rewards, float(sum(rewards.values()))
    except (TypeError, ValueError):
        numbers = {agent: as_reward(reward, f" of agent {agent!r}") for agent, reward in rewards.items()}
        return numbers, sum(numbers.values())


def _check_dicts(what: str, returned: Mapping[str, Any]) -> None:
    for name, value in returned.items():
        if type(value) is not dict and not isinstance(value, Mapping):
            raise TypeError(f"{what} returned {name}={value!r}; it must be a dict by agent")


def _check_infos(what: str, observations: Mapping[Hashable, Any], infos: Mapping[Hashable, Any]) -> None:
    for agent, info in infos.items():
        if type(info) is not dict and not isinstance(info, Mapping):
            raise TypeError(f"{what} returned infos[{agent!r}]={info!r}; an info is a dict")
    strangers = infos.keys() - observations.keys() - {COMMON}
    if strangers:
        raise ValueError(
            f"{what} returned infos of {_list(strangers)}, but observations of {_list(observations)}: infos are of "
            f"agents that are observed, or under {COMMON!r}"
        )


def _list(ids: Collection[Hashable]) -> str:
    return ", ".join(sorted(map(repr, ids))) or "nobody"
