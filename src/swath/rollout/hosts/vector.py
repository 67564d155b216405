"""The host for envs that step as a batch: any gymnasium `VectorEnv`, EnvPool, ALE's vector env.

The host hides the autoreset mode of the vector env: `step` returns what the step led to, `reset` the first observation
of the next episode.

    DISABLED    the env does not reset itself: `reset` calls its reset
    SAME_STEP   the env resets within the last step: its info has the true last observation, `reset` returns the first
    NEXT_STEP   the env resets within the next step and ignores the action: that row is void

A `VecEnv` of Stable-Baselines3 is recognised by the module of its class, so that nothing has to be imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from swath.rollout.hosts.base import ArrayHost, ArraySpec, Ends, EnvRaised, Infos, MakeEnvs, Seeding, Transition
from swath.rollout.hosts.results import bad_answer, final_of, first_info_of, flags_of, info_of, rewards_of
from swath.rollout.spaces import Array, Converter, Leaf, Leaves, action_leaves, joiner, observation_leaves, unpacker

Kind = Literal["gymnasium", "ale", "envpool", "other"]
_SEEDING: Mapping[Kind, Seeding] = {"gymnasium": "episode", "ale": "episode", "envpool": "none", "other": "layout"}

# The attributes of a `gymnasium.Env` that steps many envs at once.
BATCHED = ("num_envs", "single_observation_space", "single_action_space")

RESET = "a gymnasium vector env has reset(seed=…, options=…) -> observations, infos"
STEP = "a gymnasium vector env has step(actions) -> observations, rewards, terminations, truncations, infos"


class VectorHost(ArrayHost):
    """A vector env, stepped as a whole.

    Args:
        env: the vector env.
        make: returns a list with a vector env of the same kind.
        first: observation and infos of a reset, if no step was made after it.
        exact: observations keep the dtypes of their space, under any names.
        keep_float64: observations of float64 stay float64.

    Raises:
        ValueError: an async EnvPool or ALE env whose batch is not all of its envs; an env without an autoreset mode.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        make: MakeEnvs | None = None,
        *,
        first: tuple[Any, Any] | None = None,
        exact: bool = False,
        keep_float64: bool = False,
    ) -> None:
        super().__init__([env], make)
        self._first = first
        mode, self._kind = mode_of(env), kind_of(env)
        n, observation_space, action_space = env.num_envs, env.single_observation_space, env.single_action_space
        inner: Any = env.unwrapped
        size = inner.config["batch_size"] if self._kind == "envpool" else inner.batch_size if self._kind == "ale" else n
        if size != n:
            raise ValueError(f"{env} returns batches of {size} of its {n} envs; make them equal")
        self._same_step, self._no_autoreset = mode is AutoresetMode.SAME_STEP, mode is AutoresetMode.DISABLED
        observation = observation_leaves(observation_space, exact=exact, keep_float64=keep_float64)
        self.spec = ArraySpec(
            n,
            (n,),
            observation,
            action_leaves(action_space),
            observation_space,
            action_space,
            resettable=self._no_autoreset or self._kind != "other",
            steps_singly=False,
            next_step_autoreset=mode is AutoresetMode.NEXT_STEP,
            seeding=_SEEDING[self._kind],
        )
        self._converters = [*map(Converter, observation)]
        self._unpack, self._join = unpacker(observation, self._converters, n), joiner(action_space)
        # Envs that reset themselves within the last step, or will within the next.
        self._autoreset: list[int] = []
        # The observations of resets within the last step.
        self._reset_observation: Leaves = []
        self._info: Infos = {}
        # The infos of resets after the last step, by env.
        self._reset_infos: dict[int, Infos] = {}

    @property
    def env(self) -> Any:
        """Return the vector env, or the `VecEnv`."""
        return getattr(self.envs[0], "vec_env", self.envs[0])

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env; a vector env that takes one seed for all gets the first."""
        self._autoreset, self._reset_infos = [], {}
        leaves, self._info = self._reset_envs(range(self.spec.num_envs), seeds)
        return leaves

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; an env with a seed is reset even if it has reset itself."""
        autoreset, seed_by_env = self._autoreset, dict[int, int | None]()
        if seeds is not None or envs != autoreset:
            seed_by_env = dict(zip(envs, seeds or [None] * len(envs), strict=True))
            autoreset = [env for env in autoreset if env in seed_by_env and seed_by_env[env] is None]
            seed_by_env = {env: seed for env, seed in seed_by_env.items() if env not in autoreset}
        if self.spec.next_step_autoreset and not seed_by_env:
            return base
        observation = [leaf.copy() for leaf in base]
        if autoreset and self._same_step:
            for leaf, rows in zip(observation, self._reset_observation, strict=True):
                leaf[autoreset] = rows[autoreset]
            self._reset_infos |= dict.fromkeys(autoreset, self._info)
        if seed_by_env:
            leaves, info = self._reset_envs([*seed_by_env], None if seeds is None else [*seed_by_env.values()])
            for leaf, rows in zip(observation, leaves, strict=True):
                leaf[[*seed_by_env]] = rows[[*seed_by_env]]
            self._reset_infos |= dict.fromkeys(seed_by_env, info)
            self._autoreset = [env for env in self._autoreset if env not in seed_by_env]
        return observation

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Step every env, also retired ones; `only` must be `None`."""
        assert only is None
        self._first = None
        n, batched_action = self.spec.num_envs, self._join(action)
        returned: Any = None
        try:
            returned = self.envs[0].step(batched_action)
            observation, reward, terminated, truncated, info = returned
            reward = rewards_of(reward, n)
            terminated, truncated = flags_of("terminated", terminated, n), flags_of("truncated", truncated, n)
            leaves = self._unpack(observation)
        except Exception as error:  # noqa: BLE001  `Transition.failed` has it, with its type
            env_error = error if returned is None else bad_answer(error, self.env, STEP)
            return Transition([], np.zeros(n), failed=[(env, env_error) for env in range(n)])
        self._info, self._reset_infos = info, {}
        ends, void = Ends.from_flags(terminated, truncated), self._autoreset
        self._autoreset = [] if self._no_autoreset else ends.envs.tolist()
        if self._same_step and self._autoreset:
            self._reset_observation, leaves = leaves, [leaf.copy() for leaf in leaves]
            finals, is_sent = _final_observations(info, n)
            senders = ends.envs[is_sent[ends.envs]]
            for leaf, convert, rows in zip(self.spec.observation, self._converters, leaves, strict=True):
                if len(senders):
                    rows[senders] = convert(_rows_of(finals, leaf, senders))
            if len(senders) < len(ends.envs):
                ends.lacks_final = ~is_sent[ends.envs]
        return Transition(leaves, reward, ends, void if self.spec.next_step_autoreset else (), info=info)

    def render(self, env: int) -> Array | None:
        """Return a frame of this env, if the vector env renders `"rgb_array"`."""
        frames = self.envs[0].render() if self.envs[0].render_mode == "rgb_array" else None
        return None if frames is None or frames[env] is None else np.asarray(frames[env])

    def info_of(self, env: int) -> Mapping[str, Any]:
        """Return the info dict that came with the latest observation of this env."""
        if self.spec.next_step_autoreset and env in self._autoreset:
            return {}  # its episode begins within the next step
        reset_info = self._reset_infos.get(env)
        return info_of(self._info, env) if reset_info is None else first_info_of(reset_info, env)

    def _reset_envs(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> tuple[Leaves, Infos]:
        """Reset envs, in ascending order; return leaves and infos, in which only their rows count.

        Raises:
            EnvRaised: the reset raised, or returned an invalid value.
        """
        n, reset, masked = self.spec.num_envs, self.envs[0].reset, dict[str, Any]()
        first, self._first = self._first, None
        returned: Any = None
        if seeds is not None and self.spec.seeding == "episode":
            self._seeds |= {env: seed for env, seed in zip(envs, seeds, strict=True) if seed is not None}
        if len(envs) < n and not self.spec.resettable:
            message = f"cannot reset envs {envs} alone; use a vector env with autoreset mode DISABLED"
            raise EnvRaised(envs[0], RuntimeError(message))
        try:
            if len(envs) < n:
                masked = {"options": {"reset_mask": self._mask(envs)}}
            if first is not None and seeds is None and len(envs) == n:
                returned = first
            elif self._kind == "envpool":
                ids = np.array(envs, dtype=np.int32)
                returned = tuple(_scatter(part, ids, n) for part in reset(ids))
            else:
                returned = reset(seed=None if seeds is None else self._seed_argument(seeds, envs), **masked)
            batch, info = returned
            return self._unpack(batch), info
        except Exception as error:
            env_error = error if returned is None else bad_answer(error, self.env, RESET)
            raise EnvRaised(envs[0], env_error) from error

    def _mask(self, envs: Sequence[int]) -> Any:
        """Return a mask `[B]` of envs."""
        mask = np.zeros(self.spec.num_envs, dtype=np.bool_)
        mask[list(envs)] = True
        return mask

    def _seed_argument(self, seeds: Sequence[int | None], envs: Sequence[int]) -> Any:
        """Return the `seed` of a reset: one per env for gymnasium, one per env that is reset for ALE, else one."""
        if self._kind == "gymnasium":
            by_env = dict(zip(envs, seeds, strict=True))
            return [by_env.get(env) for env in range(self.spec.num_envs)]
        if self._kind == "ale":
            return np.array([-1 if seed is None else seed for seed in seeds])  # -1 for no seed
        return seeds[0]


def _final_observations(info: Any, n_envs: int) -> tuple[Any, Array]:
    """Return the last observations in the infos of a step, and a mask `[B]` of envs that have sent theirs."""
    if isinstance(info, dict):
        value, is_sent = final_of(info)
        is_sent = value is not None if is_sent is None else is_sent
    else:  # a `VecEnv`
        value = [final_of(env_info)[0] for env_info in info]
        is_sent = [env_value is not None for env_value in value]
    return value, np.broadcast_to(np.asarray(is_sent, np.bool_), n_envs)


def _rows_of(finals: Any, leaf: Leaf, envs: Array) -> Array:
    """Return a leaf of the last observations of envs, from an object per env (gymnasium) or a batch (others)."""
    if isinstance(finals, list) or (isinstance(finals, np.ndarray) and finals.dtype == np.object_):
        return np.array([reduce(getitem, leaf.path, finals[env]) for env in envs.tolist()])
    return np.asarray(reduce(getitem, leaf.path, finals))[envs]


def kind_of(env: VectorEnv[Any, Any, Any]) -> Kind:
    """Return the library of this vector env; libraries differ in their resets and seeds."""
    if is_envpool(env):
        return "envpool"
    if type(env.unwrapped).__module__.startswith("ale_py."):
        return "ale"
    return "gymnasium" if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv) else "other"


def mode_of(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Return the autoreset mode in the metadata of a vector env; by default `NEXT_STEP` for EnvPool.

    Raises:
        ValueError: no such mode in the metadata.
    """
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    if mode is None and is_envpool(env):
        return AutoresetMode.NEXT_STEP
    if mode not in {*AutoresetMode, *(member.value for member in AutoresetMode)}:
        raise ValueError(f"{env} has autoreset_mode={mode!r} in its metadata; it must be one of {[*AutoresetMode]}")
    return AutoresetMode(mode)


def is_vector_env(env: object) -> bool:
    """Tell whether an object is an env that steps as a batch."""
    return isinstance(env, VectorEnv) or is_batched_env(env) or is_envpool(env)


def is_batched_env(env: object) -> bool:
    """Tell whether an object is a `gymnasium.Env` that steps many envs at once, as Isaac Lab's do."""
    return isinstance(env, gym.Env) and not is_envpool(env) and all(map(env.has_wrapper_attr, BATCHED))


def is_envpool(env: object) -> bool:
    """Tell whether an object is an EnvPool, without importing envpool."""
    inner = env.unwrapped if isinstance(env, VectorEnv) else env
    return any(base.__module__.startswith("envpool.") for base in type(inner).__mro__)


def _scatter(rows: Any, ids: Array, num_envs: int) -> Any:
    """Return arrays `[B, …]` with the rows of the envs `ids`, and zeros elsewhere."""
    if isinstance(rows, dict):
        return {name: _scatter(part, ids, num_envs) for name, part in rows.items()}
    if not isinstance(rows, np.ndarray) or len(rows) != len(ids):
        return rows
    scattered = np.zeros((num_envs, *rows.shape[1:]), dtype=rows.dtype)
    scattered[ids] = rows
    return scattered


class AsVectorEnv(VectorEnv[Any, Any, Any]):
    """A `VecEnv` with the interface of gymnasium's vector envs, in mode `SAME_STEP`, with one seed for all envs.

    `infos[i]["terminal_observation"]` is the last observation; `infos[i]["TimeLimit.truncated"]` tells a truncation.

    Args:
        env: the `VecEnv`.
    """

    def __init__(self, env: Any) -> None:
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.vec_env, self.num_envs, self.render_mode = env, env.num_envs, getattr(env, "render_mode", None)
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:  # noqa: ARG002  gymnasium's
        """Reset all envs and return observations and infos."""
        if seed is not None:
            self.vec_env.seed(seed)
        return self.vec_env.reset(), [{}] * self.num_envs

    def step(self, actions: Any) -> Any:
        """Step all envs; the infos are a list."""
        observation, reward, done, infos = self.vec_env.step(actions)
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & done
        return observation, reward, done & ~truncated, truncated, infos

    def render(self) -> Any:
        """Return a frame of each env."""
        return self.vec_env.get_images()

    def close_extras(self) -> None:
        """Close the `VecEnv`."""
        self.vec_env.close()


def is_from_stable_baselines(kind: type, *names: str) -> bool:
    """Tell whether a class is, or derives from, a Stable-Baselines3 class with a name in `names`."""
    bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "stable_baselines3"]
    return any(base.__name__ in names for base in bases)
