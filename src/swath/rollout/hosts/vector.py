"""The host for envs that step as a batch: any gymnasium `VectorEnv`, EnvPool, ALE's vector env.

Vector envs begin the next episode by themselves in one of three ways, which have one meaning outside: `step` gives what
the step led to, `reset` the observation that the next episode begins with.

    DISABLED    nothing happens by itself: `reset` asks the env
    SAME_STEP   the env has already reset: the true last observation is in its info, `reset` gives what it kept
    NEXT_STEP   the env resets within its next step and ignores the action: that row is void
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from swath.rollout.hosts.base import ArraySpec, Ends, EnvRaised, Infos, Seeding, Transition, close_broken
from swath.rollout.hosts.returned import as_batch_of_flags, as_batch_of_rewards, bad_answer, first_info_of, info_of
from swath.rollout.spaces import Array, Leaf, Leaves, action_leaves, converted, joiner, observation_leaves, unbatched

STEP = "a gymnasium vector env has step(actions) -> observations, rewards, terminations, truncations, infos"


class VectorHost:
    """A vector env, stepped as a whole.

    Args:
        env: the vector env.
        make: builds another one like it.
        exact: observations keep the dtypes of their space, under any names.

    Raises:
        ValueError: an async EnvPool or ALE env whose batch is not all of its envs; an env that does not say when it
            begins its next episode.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        make: Callable[[], VectorEnv[Any, Any, Any]] | None = None,
        *,
        exact: bool = False,
    ) -> None:
        if batch_size(env) != env.num_envs:
            raise ValueError(f"{env} returns batches of {batch_size(env)} of its {env.num_envs} envs; make them equal")
        self._env, self._make = env, make
        self._mode = mode_of(env)
        self._resetting = VectorReset(env)
        self.spec = ArraySpec(
            num_envs=env.num_envs,
            batch_shape=(env.num_envs,),
            observation=observation_leaves(env.single_observation_space, exact=exact),
            action=action_leaves(env.single_action_space),
            action_space=env.single_action_space,
            resettable=self._resetting.masked,
            alone=False,
            skips=self._mode is AutoresetMode.NEXT_STEP,
            seeding=self._resetting.seeding,
        )
        self._shapes = [(env.num_envs, *leaf.shape) for leaf in self.spec.observation]
        self._join = joiner(env.single_action_space)
        self._seeds: list[int | None] = [None] * env.num_envs
        self._begun: list[int] = []
        """Envs that have begun their next episode with the last step, or that will within the next."""
        self._after: Leaves = []
        """What was observed after the last step, where envs reset within it."""
        self._retired = np.zeros(env.num_envs, dtype=np.bool_)
        self._info: Infos = {}
        self._first_infos: dict[int, Mapping[str, Any]] = {}
        self._closed = False

    @property
    def env(self) -> Any:
        """The vector env."""
        return self._env

    def reset_all(self, seeds: Sequence[int] | None = None) -> Leaves:
        """Begin an episode in every env; an env that takes one seed for all gets the first."""
        self._begun, self._first_infos = [], {}
        self._retired[:] = False
        self._remember(range(self.spec.num_envs), seeds)
        try:
            batch, self._info = self._resetting.everyone(seeds)
            return self._leaves(batch)
        except Exception as error:
            raise EnvRaised(0, error) from error

    def reset(self, envs: Sequence[int], onto: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs, those that get a seed anew even if they have begun by themselves."""
        own, asked = self._begun, dict[int, int | None]()
        if seeds is not None or envs != self._begun:
            given = dict(zip(envs, seeds or [None] * len(envs), strict=True))
            begun = set(self._begun)
            own = [env for env in envs if env in begun and given[env] is None]
            asked = {env: given[env] for env in sorted(set(envs).difference(own))}
        if self.spec.skips and not asked:
            return onto  # they begin within the next step
        fresh = [leaf.copy() for leaf in onto]
        if own and not self.spec.skips:
            for leaf, rows in zip(fresh, self._after, strict=True):
                leaf[own] = rows[own]
            self._first_infos |= {env: first_info_of(self._info, env) for env in own}
        if asked:
            self._ask([*asked], None if seeds is None else [*asked.values()], fresh)
        return fresh

    def step(self, action: Leaves) -> Transition:
        """Advance every env, also retired ones: a vector env only steps as a whole."""
        joined = self._join(action)
        try:
            answer = self._env.step(joined)
        except Exception as error:  # noqa: BLE001  it leaves by `Transition.failed`, as its own type
            return self._failed(error)
        n = self.spec.num_envs
        try:
            observation, paid, died, cut, info = answer
            reward = as_batch_of_rewards(paid, n)
            terminated, truncated = as_batch_of_flags("terminated", died, n), as_batch_of_flags("truncated", cut, n)
            there = self._leaves(observation)
        except Exception as error:  # noqa: BLE001  as above
            return self._failed(bad_answer(error, self._env, STEP))
        self._info, self._first_infos = info, {}
        void: Sequence[int] = ()
        if self.spec.skips:
            void = self._begun
        return self._transition(there, reward, Ends.flagged(terminated, truncated), void)

    def step_one(self, env: int, action: Leaves) -> Transition:
        """Not possible: a vector env steps as a whole; the loop rebuilds it instead."""
        raise RuntimeError(f"env {env} of {self._env} cannot be stepped alone (got {len(action)} leaves)")

    def rebuild(self) -> Leaves:
        """Close the vector env, make another and reset it."""
        if self._make is None:
            raise RuntimeError(f"{self._env} was given as an instance and cannot be built anew; pass a callable")
        close_broken(self._env.close)
        self._env = self._make()
        self._resetting = VectorReset(self._env)
        return self.reset_all()

    def retire(self, envs: Sequence[int]) -> None:
        """Rows of these envs mean nothing from now on; an env that may not step past its end is reset there, unseen."""
        self._retired[list(envs)] = True
        if self._mode is AutoresetMode.DISABLED:
            self._resetting.some(sorted(envs), None)

    def render(self, env: int) -> Array | None:
        """A frame of this env, if the vector env renders `"rgb_array"`."""
        if self._env.render_mode != "rgb_array":
            return None
        frames = self._env.render()
        return None if frames is None else np.asarray(frames[env])

    def info_of(self, env: int) -> Mapping[str, Any]:
        """What this env said with its latest observation."""
        if self.spec.skips and env in self._begun:
            return {}  # its episode begins within the next step
        first = self._first_infos.get(env)
        return info_of(self._info, env) if first is None else first

    def seed_of(self, env: int) -> int | None:
        """The seed this env was last reset with."""
        return self._seeds[env]

    def close(self) -> None:
        """Close the vector env; twice is fine."""
        if not self._closed:
            self._closed = True
            self._env.close()

    def _transition(self, there: Leaves, reward: Array, ended: Ends, void: Sequence[int]) -> Transition:
        if self._mode is not AutoresetMode.DISABLED:
            self._begun = ended.envs.tolist()
        if self._mode is AutoresetMode.SAME_STEP and ended:
            self._after = there
            there = [leaf.copy() for leaf in there]
            for leaf, rows in zip(self.spec.observation, there, strict=True):
                for env in self._begun:
                    rows[env] = converted(leaf, np.asarray(_final(self._info, leaf, env)))
        if self._mode is AutoresetMode.DISABLED and self._retired.any():
            over = ended.envs[self._retired[ended.envs]]
            if len(over):
                self._resetting.some(over.tolist(), None)
                ended = ended.without(over)
        return Transition(there, reward, ended, void, info=self._info)

    def _ask(self, envs: list[int], seeds: Sequence[int | None] | None, fresh: Leaves) -> None:
        """Have the vector env reset these envs; their rows of `fresh` are replaced."""
        self._remember(envs, seeds)
        try:
            batch, info = self._resetting.some(envs, seeds)
            leaves = self._leaves(batch)
        except Exception as error:
            raise EnvRaised(envs[0], error) from error
        for leaf, rows in zip(fresh, leaves, strict=True):
            leaf[envs] = rows[envs]
        self._first_infos |= {env: info_of(info, env) for env in envs}
        self._begun = [env for env in self._begun if env not in set(envs)]

    def _failed(self, error: Exception) -> Transition:
        n = self.spec.num_envs
        return Transition([], np.zeros(n), failed=[(env, error) for env in range(n)])

    def _leaves(self, batch: Any) -> Leaves:
        """What all envs observed, as leaves `[B, …]`.

        Raises:
            ValueError: of another shape.
        """
        leaves = unbatched(batch, self.spec.observation)
        if [rows.shape for rows in leaves] != self._shapes:
            self._refuse(leaves)
        return leaves

    def _refuse(self, leaves: Leaves) -> None:
        for leaf, rows, wanted in zip(self.spec.observation, leaves, self._shapes, strict=True):
            if rows.shape != wanted:
                raise ValueError(
                    f"the vector env returned observations of shape {rows.shape} for {leaf.key!r}; its "
                    f"{self.spec.num_envs} envs with observations of shape {leaf.shape} must return {wanted}"
                )

    def _remember(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> None:
        if seeds is not None and self.spec.seeding == "episode":
            for env, seed in zip(envs, seeds, strict=True):
                self._seeds[env] = self._seeds[env] if seed is None else int(seed)


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


_OWN_STATE = -1
"""What ALE takes for no seed."""


class VectorReset:
    """How one vector env is reset and seeded.

    Attributes:
        masked: whether chosen envs can be reset while the others go on.
        seeding: `"episode"`, `"layout"` or `"none"`, as in `HostSpec`.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self._env = env
        self._reset: Any = env.reset  # kinds differ in what they take as seeds
        self._is_envpool, self._is_atari = is_envpool(env), _is_atari(env)
        self._is_gymnasium = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        by_env = self._is_gymnasium or self._is_atari
        self.masked = by_env or self._is_envpool or mode_of(env) is AutoresetMode.DISABLED
        self.seeding: Seeding = "none" if self._is_envpool else "episode" if by_env else "layout"

    def everyone(self, seeds: Sequence[int] | None) -> Any:
        """Batched observation and info of a reset of all envs; EnvPool is seeded only where it is made."""
        if self._is_envpool:
            return self._reset()
        return self._reset(seed=None if seeds is None else self._seeds(range(self._env.num_envs), seeds))

    def some(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> Any:
        """Batched observation and info, of which the rows of these envs, in ascending order, count."""
        n = self._env.num_envs
        if self._is_envpool:
            ids = np.array(envs, dtype=np.int32)
            rows, info = self._reset(ids)
            return _spread(rows, ids, n), _spread(info, ids, n)
        if not self.masked:
            raise RuntimeError(
                f"{self._env} cannot reset envs {envs} alone (seeds {seeds}); use a vector env with "
                "autoreset mode DISABLED, or gymnasium's SyncVectorEnv"
            )
        mask = np.zeros(n, dtype=np.bool_)
        mask[list(envs)] = True
        return self._reset(seed=None if seeds is None else self._seeds(envs, seeds), options={"reset_mask": mask})

    def _seeds(self, envs: Sequence[int], seeds: Sequence[int | None]) -> Any:
        """As gymnasium takes them, one per env; as ALE does, one per env that is reset; elsewhere one for all."""
        if self._is_gymnasium:
            of = dict(zip(envs, seeds, strict=True))
            return [None if of.get(env) is None else int(of[env] or 0) for env in range(self._env.num_envs)]
        if self._is_atari:
            return np.array([_OWN_STATE if seed is None else seed for seed in seeds])
        return None if seeds[0] is None else int(seeds[0])


def mode_of(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """When this vector env begins its next episode. EnvPool does so within the next step, if it does not say else.

    Raises:
        ValueError: it does not say.
    """
    said = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if said is None and is_envpool(env):
        return AutoresetMode.NEXT_STEP
    known = [mode for mode in AutoresetMode if said in (mode, mode.value)]
    if not known:
        raise ValueError(
            f"{env} says autoreset_mode={said!r} in its metadata; it must be one of {[*AutoresetMode]}, "
            "or nobody can tell the last observation of an episode from the first of the next"
        )
    return known[0]


def is_vector_env(env: object) -> bool:
    """Whether this steps as a batch."""
    return isinstance(env, VectorEnv) or is_envpool(env)


def is_envpool(env: object) -> bool:
    """Whether this is an EnvPool, seen without importing it."""
    inner = env.unwrapped if isinstance(env, VectorEnv) else env
    return any(base.__module__.startswith("envpool.") for base in type(inner).__mro__)


def batch_size(env: VectorEnv[Any, Any, Any]) -> int:
    """How many envs one step of an EnvPool or ALE env returns; elsewhere all of them."""
    inner: Any = env.unwrapped
    if is_envpool(env):
        return int(inner.config["batch_size"])
    return int(inner.batch_size) if _is_atari(env) else env.num_envs


def _is_atari(env: VectorEnv[Any, Any, Any]) -> bool:
    return type(env.unwrapped).__module__.startswith("ale_py.")


def _spread(rows: Any, ids: Array, num_envs: int) -> Any:
    """Rows of some envs at their places among all."""
    if isinstance(rows, dict):
        return {name: _spread(part, ids, num_envs) for name, part in rows.items()}
    if not isinstance(rows, np.ndarray) or len(rows) != len(ids):
        return rows
    spread = np.zeros((num_envs, *rows.shape[1:]), dtype=rows.dtype)
    spread[ids] = rows
    return spread
