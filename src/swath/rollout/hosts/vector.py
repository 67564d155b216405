"""The host for envs that step as a batch: any gymnasium `VectorEnv`, EnvPool, ALE's vector env.

The three ways in which vector envs begin the next episode by themselves are three classes with one meaning outside:
`step` gives what the step led to, `reset` the observation that the next episode begins with.

    DISABLED, EnvPool   nothing happens by itself: `reset` asks the env
    SAME_STEP           the env has already reset: the true last observation is in its info, `reset` gives what it kept
    NEXT_STEP           the env resets within its next step and ignores the action: that row is void
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from swath.rollout.hosts.base import Ended, EnvRaised, Transition
from swath.rollout.hosts.closing import close_broken
from swath.rollout.hosts.returned import as_batch_of_flags, as_batch_of_rewards, bad_answer
from swath.rollout.hosts.specs import ArraySpec
from swath.rollout.hosts.vector_reset import batch_size, control_of, mode_of
from swath.rollout.spaces import Array, Leaf, Leaves, action_leaves, joiner, observation_leaves, unbatched

Make = Callable[[], VectorEnv[Any, Any, Any]]

STEP = "a gymnasium vector env has step(actions) -> observations, rewards, terminations, truncations, infos"


class VectorHost(ABC):
    """What all vector envs share. Build one with `vector_host`, whose arguments these are."""

    skips = False

    def __init__(self, env: VectorEnv[Any, Any, Any], make: Make | None = None, *, exact: bool = False) -> None:
        self._make = make
        self._env = env
        self._control = control_of(env)
        control = self._control
        self.spec = ArraySpec(
            num_envs=env.num_envs,
            batch_shape=(env.num_envs,),
            observation=observation_leaves(env.single_observation_space, exact=exact),
            action=action_leaves(env.single_action_space),
            action_space=env.single_action_space,
            resettable=control.masked,
            alone=False,
            skips=self.skips,
            seeding=control.seeding,
        )
        self._join = joiner(env.single_action_space)
        self._seeds: list[int | None] = [None] * env.num_envs
        self._after: Leaves = []
        self._closed = False

    @property
    def env(self) -> Any:
        """The vector env."""
        return self._env

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env; an env that takes one seed for all gets the first."""
        self._remember(range(self.spec.num_envs), seeds)
        try:
            return self._leaves(self._control.reset_all(seeds))
        except Exception as error:
            raise EnvRaised(0, error) from error

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs."""
        given = dict(zip(envs, seeds or [None] * len(envs), strict=True))
        kept, open_ = self._kept([env for env in envs if given[env] is None])
        asked = sorted([*open_, *(env for env in envs if given[env] is not None)])
        if not kept and not asked:
            return onto
        fresh = [leaf.copy() for leaf in onto]
        if kept:
            _write_rows(fresh, self._after, kept)
        if asked:
            chosen = None if seeds is None else [given[env] for env in asked]
            self._remember(asked, chosen)
            try:
                rows = self._leaves(self._control.reset_some(asked, chosen))
            except Exception as error:
                raise EnvRaised(asked[0], error) from error
            _write_rows(fresh, rows, asked)
        return fresh

    def step(self, action: Leaves) -> Transition:
        """Advance every env, also retired ones: a vector env only steps as a whole."""
        joined = self._join(action)
        try:
            answer = self._env.step(joined)
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            return self._failed(error)
        try:
            observation, paid, died, cut, info = answer
            n = self.spec.num_envs
            reward = as_batch_of_rewards(paid, n)
            terminated, truncated = as_batch_of_flags("terminated", died, n), as_batch_of_flags("truncated", cut, n)
            there = self._leaves(observation)
        except Exception as error:  # noqa: BLE001  as above
            return self._failed(bad_answer(error, self._env, STEP))
        ended: Sequence[Ended] = ()
        over = np.logical_or(terminated, truncated).nonzero()[0]
        if len(over):
            ended = list(zip(over.tolist(), terminated[over].tolist(), truncated[over].tolist(), strict=True))
        return self._transition(Transition(there, reward, ended, info=info))

    def _failed(self, error: Exception) -> Transition:
        n = self.spec.num_envs
        return Transition([], np.zeros(n), failed=[(env, error) for env in range(n)])

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Not possible: a vector env steps as a whole; the loop rebuilds it instead."""
        raise RuntimeError(f"env {env} of {self._env} cannot be stepped alone (got {len(action)} leaves)")

    def rebuild(self) -> Leaves:
        """Close the vector env, make another and reset it."""
        if self._make is None:
            raise RuntimeError(f"{self._env} was given as an instance and cannot be built anew; pass a callable")
        close_broken(self._env.close)
        self._env = self._make()
        self._control = control_of(self._env)
        return self.reset_all()

    def retire(self, envs: Sequence[int]) -> None:  # noqa: B027  most have nothing to do
        """Nothing to do: rows of these envs are ignored by whoever retired them."""

    def render(self, env: int) -> Array | None:
        """A frame of this env, if the vector env renders `"rgb_array"`."""
        if self._env.render_mode != "rgb_array":
            return None
        frames = self._env.render()
        return None if frames is None else np.asarray(frames[env])

    def seed_of(self, env: int) -> int | None:
        """The seed this env was last reset with."""
        return self._seeds[env]

    def close(self) -> None:
        """Close the vector env; twice is fine."""
        if not self._closed:
            self._closed = True
            self._env.close()

    def _leaves(self, batch: Any) -> Leaves:
        """What all envs observed, as leaves `[B, …]`.

        Raises:
            ValueError: of another shape.
        """
        leaves = unbatched(batch, self.spec.observation)
        for leaf, rows in zip(self.spec.observation, leaves, strict=True):
            if rows.shape != (self.spec.num_envs, *leaf.shape):
                raise ValueError(
                    f"the vector env returned observations of shape {rows.shape} for {leaf.key!r}; its "
                    f"{self.spec.num_envs} envs with observations of shape {leaf.shape} must return "
                    f"{(self.spec.num_envs, *leaf.shape)}"
                )
        return leaves

    @abstractmethod
    def _transition(self, moved: Transition) -> Transition:
        """The transition as hosts define it, `moved` being what the vector env returned."""

    def _kept(self, envs: Sequence[int]) -> tuple[list[int], list[int]]:
        """Which of these envs have begun by themselves, with the rows of `_after`, and which must be asked."""
        return [], list(envs)

    def _remember(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> None:
        if seeds is not None and self.spec.seeding == "episode":
            for env, seed in zip(envs, seeds, strict=True):
                self._seeds[env] = self._seeds[env] if seed is None else int(seed)


class ManualHost(VectorHost):
    """A vector env that resets only when `reset` is called: autoreset mode `DISABLED`, or EnvPool.

    It steps as a whole and may not step an env that has ended, so retired envs are reset where they end, unseen.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], make: Make | None = None, *, exact: bool = False) -> None:
        super().__init__(env, make, exact=exact)
        self._retired: set[int] = set()

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env, also in retired ones."""
        self._retired.clear()
        return super().reset_all(seeds)

    def retire(self, envs: Sequence[int]) -> None:
        """Rows of these envs mean nothing from now on."""
        self._retired.update(envs)
        self._control.reset_some(sorted(envs), None)

    def _transition(self, moved: Transition) -> Transition:
        over = [env for env, _, _ in moved.ended if env in self._retired]
        if over:
            self._control.reset_some(over, None)
            moved.ended = [end for end in moved.ended if end[0] not in self._retired]
        return moved


class SameStepHost(VectorHost):
    """A vector env that begins the next episode within the step that ends one."""

    def __init__(self, env: VectorEnv[Any, Any, Any], make: Make | None = None, *, exact: bool = False) -> None:
        super().__init__(env, make, exact=exact)
        self._begun: set[int] = set()

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env; those that had begun by themselves are forgotten."""
        self._begun = set()
        return super().reset_all(seeds)

    def _transition(self, moved: Transition) -> Transition:
        self._begun = {env for env, _, _ in moved.ended}
        if moved.ended:
            self._after = moved.observation
            moved.observation = [leaf.copy() for leaf in moved.observation]
            for leaf, rows in zip(self.spec.observation, moved.observation, strict=True):
                for env in self._begun:
                    rows[env] = _final(moved.info, leaf, env)
        return moved

    def _kept(self, envs: Sequence[int]) -> tuple[list[int], list[int]]:
        return [env for env in envs if env in self._begun], [env for env in envs if env not in self._begun]


class NextStepHost(VectorHost):
    """A vector env that begins the next episode within the step after the end, ignoring the action."""

    skips = True

    def __init__(self, env: VectorEnv[Any, Any, Any], make: Make | None = None, *, exact: bool = False) -> None:
        super().__init__(env, make, exact=exact)
        self._waiting: list[int] = []

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env."""
        self._waiting = []
        return super().reset_all(seeds)

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in the envs that were cut or get a seed; the others begin within the next step."""
        if seeds is None and envs == self._waiting:
            return onto
        fresh = super().reset(envs, onto, seeds)
        given = seeds or [None] * len(envs)
        begun = {env for env, seed in zip(envs, given, strict=True) if seed is not None or env not in self._waiting}
        self._waiting = [env for env in self._waiting if env not in begun]
        return fresh

    def _transition(self, moved: Transition) -> Transition:
        if self._waiting:
            moved.void = self._waiting
            begun = set(self._waiting)
            moved.ended = [end for end in moved.ended if end[0] not in begun]
        self._waiting = [env for env, _, _ in moved.ended]
        return moved

    def _kept(self, envs: Sequence[int]) -> tuple[list[int], list[int]]:
        return [], [env for env in envs if env not in self._waiting]


def vector_host(env: VectorEnv[Any, Any, Any], make: Make | None = None, *, exact: bool = False) -> VectorHost:
    """The host for this vector env.

    Args:
        env: the vector env.
        make: builds another one like it.
        exact: observations keep the dtypes of their space, under any names.

    Raises:
        ValueError: an async EnvPool or ALE env whose batch is not all of its envs; an env that does not say when it
            begins its next episode.
    """
    if batch_size(env) != env.num_envs:
        raise ValueError(f"{env} returns batches of {batch_size(env)} of its {env.num_envs} envs; make them equal")
    return _HOSTS[mode_of(env)](env, make, exact=exact)


_HOSTS: dict[AutoresetMode, type[VectorHost]] = {
    AutoresetMode.DISABLED: ManualHost,
    AutoresetMode.SAME_STEP: SameStepHost,
    AutoresetMode.NEXT_STEP: NextStepHost,
}


def _write_rows(leaves: Leaves, source: Leaves, envs: Sequence[int]) -> None:
    for leaf, new in zip(leaves, source, strict=True):
        leaf[list(envs)] = new[list(envs)]


def _final(info: Any, leaf: Leaf, env: int) -> Any:
    """The true last observation of one env: gymnasium keeps an object per env, others stack as observations are."""
    value = info.get("final_obs") if isinstance(info, dict) else [said.get("final_obs") for said in info]
    if value is None:
        raise KeyError(
            f"the vector env ended an episode of env {env} in SAME_STEP mode without info['final_obs']; "
            "the last observation would be lost; use autoreset mode DISABLED or NEXT_STEP"
        )
    if isinstance(value, list) or (isinstance(value, np.ndarray) and value.dtype == np.object_):
        return reduce(getitem, leaf.path, value[env])
    return reduce(getitem, leaf.path, value)[env]
