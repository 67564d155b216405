"""The host for envs with several agents each, stepped one after another in this thread.

    observations   [[{agent: observation}, …]]   one leaf: a list of N dicts, of the agents that each env returned
    actions        [[{agent: action}, …], …]     likewise, of the agents that act; all leaves behind it are ignored

Agents come and go, so there is nothing to stack here: that is done where agents are sorted by their policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from swath.rollout.hosts.base import Ended, EnvRaised, Transition
from swath.rollout.hosts.by_agent import ALL, ByAgent, Step, check_reset, check_step, paid
from swath.rollout.hosts.closing import close_all, close_broken
from swath.rollout.hosts.returned import bad_answer
from swath.rollout.hosts.specs import ArraySpec
from swath.rollout.spaces import Array, Leaves

Make = Callable[[], list[Any]]

REWARDS, TERMINATEDS, TRUNCATEDS, INFOS = "rewards", "terminateds", "truncateds", "infos"
"""What `Transition.info` has of each env that stepped: rewards, flags and infos of its agents, each a dict."""

_SILENCE: Mapping[str, Any] = {}  # the info of an env that did not step

STEP = "an env with several agents has step(actions) -> observations, rewards, terminateds, truncateds, infos: dicts"
RESET = "an env with several agents has reset(*, seed=None, options=None) -> observations, infos: dicts"


class MultiAgentHost:
    """N multi-agent envs. What breaks the promises of such envs has failed, as one that raises has.

    The reward `[N]` of a transition is the sum over agents; what each of them was paid is in its `info`.

    Args:
        envs: at least one env.
        make: builds the envs anew.

    Attributes:
        told: the infos by agent that came with the latest observations, one dict per env.
    """

    def __init__(self, envs: Sequence[Any], *, make: Make | None = None) -> None:
        self._make = make
        self._envs = list(envs)
        n = len(self._envs)
        self.spec = ArraySpec(
            num_envs=n, batch_shape=(n,), observation=(), action=(), action_space=spaces.Dict()
        )  # nothing is the same for all agents
        self.told: list[ByAgent] = [{} for _ in self._envs]
        self._last: list[ByAgent] = [{} for _ in self._envs]
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
        moved = Transition([self._last.copy()], np.zeros(n), info=[_SILENCE] * n)
        ended, failed = list[Ended](), list[tuple[int, Exception]]()
        for env in self._stepping:
            try:
                ended += self._advance(env, action[0][env], moved)
            except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
                failed.append((env, error))
        self._last = moved.observation[0]
        moved.ended, moved.failed = ended, failed
        return moved

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

    def close(self) -> None:
        """Close every env, also if one of them raises; the first error is raised at the end."""
        if self._closed:
            return
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
        self._last[env], self.told[env] = observations, infos
        if seed is not None:
            self._seeds[env] = seed
        observed: ByAgent = observations
        return observed

    def _advance(self, env: int, actions: ByAgent, moved: Transition) -> Sequence[Ended]:
        """Step an env and write down what it returned; whether its episode ended."""
        returned: Step = self._envs[env].step(actions)
        try:
            check_step(returned)
            observations, rewards, terminateds, truncateds, infos = returned
            rewards, moved.reward[env] = paid(rewards)
        except Exception as error:
            raise bad_answer(error, self._envs[env], STEP) from error
        moved.observation[0][env], self.told[env] = observations, infos
        answer = {REWARDS: rewards, TERMINATEDS: terminateds, TRUNCATEDS: truncateds, INFOS: infos}
        moved.info[env] = answer  # type: ignore[index]  # made as a list by `step`
        terminated, truncated = bool(terminateds[ALL]), bool(truncateds[ALL])
        return [(env, terminated, truncated)] if terminated or truncated else ()
