"""How each kind of vector env is reset and seeded, in part or as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from swath.rollout.hosts.specs import Seeding
from swath.rollout.spaces import Array


class ResetControl:
    """How a kind of vector env is reset and seeded.

    Attributes:
        masked: whether chosen envs can be reset while the others go on.
        seeding: `"episode"`, `"layout"` or `"none"`, as in `HostSpec`.
    """

    masked = False
    seeding: Seeding = "layout"

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self._reset: Any = env.reset  # kinds differ in what they take as seeds

    def reset_all(self, seeds: Sequence[int] | None) -> Any:
        """Batched observation of a reset of all envs."""
        return self._reset(seed=None if seeds is None else int(seeds[0]))[0]

    def reset_some(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> Any:
        """Batched observation, of which the rows of these envs count."""
        raise RuntimeError(
            f"{self.env} cannot reset envs {list(envs)} alone (seeds {seeds}); use a vector env with "
            "autoreset mode DISABLED, or gymnasium's SyncVectorEnv"
        )


class MaskControl(ResetControl):
    """Envs that understand `options={"reset_mask": …}`, but take one seed for all."""

    masked = True

    def reset_some(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> Any:
        """Reset by mask."""
        return self._reset(seed=self._chosen(envs, seeds), options={"reset_mask": self._mask(envs)})[0]

    def _mask(self, envs: Sequence[int]) -> Array:
        mask = np.zeros(self.env.num_envs, dtype=np.bool_)
        mask[list(envs)] = True
        return mask

    def _chosen(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> Any:  # noqa: ARG002
        return None if seeds is None or seeds[0] is None else int(seeds[0])


class GymnasiumControl(MaskControl):
    """Gymnasium's own `SyncVectorEnv` and `AsyncVectorEnv`: a list of seeds, one per env."""

    seeding: Seeding = "episode"

    def reset_all(self, seeds: Sequence[int] | None) -> Any:
        """Reset with one seed per env."""
        return self._reset(seed=None if seeds is None else [int(seed) for seed in seeds])[0]

    def _chosen(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> Any:
        if seeds is None:
            return None
        of = dict(zip(envs, seeds, strict=True))
        return [of.get(env) for env in range(self.env.num_envs)]


_OWN_STATE = -1
"""What ALE takes for no seed."""


class AtariControl(MaskControl):
    """ALE's vector env: an array of seeds, one per env that is reset."""

    seeding: Seeding = "episode"

    def reset_all(self, seeds: Sequence[int] | None) -> Any:
        """Reset with one seed per env."""
        return self._reset(seed=None if seeds is None else np.asarray(seeds))[0]

    def _chosen(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> Any:
        if seeds is None:
            return None
        of = dict(zip(envs, seeds, strict=True))
        return np.array([_OWN_STATE if of[env] is None else of[env] for env in sorted(of)])


class EnvPoolControl(ResetControl):
    """EnvPool: resets by env number, seeded only where it is made."""

    masked = True
    seeding: Seeding = "none"

    def reset_all(self, seeds: Sequence[int] | None) -> Any:  # noqa: ARG002
        """Reset; seeds cannot be given."""
        return self._reset()[0]

    def reset_some(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> Any:  # noqa: ARG002
        """Reset by number; EnvPool answers with these envs' rows only."""
        ids = np.array(sorted(envs), dtype=np.int32)
        rows = self._reset(ids)[0]
        return _spread(rows, ids, self.env.num_envs)


def control_of(env: VectorEnv[Any, Any, Any]) -> ResetControl:
    """The control for this vector env."""
    if is_envpool(env):
        return EnvPoolControl(env)
    if isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        return GymnasiumControl(env)
    if _is_atari(env):
        return AtariControl(env)
    return MaskControl(env) if mode_of(env) is AutoresetMode.DISABLED else ResetControl(env)


def mode_of(env: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """When this vector env begins its next episode; EnvPool is reset from outside.

    Raises:
        ValueError: it does not say.
    """
    if is_envpool(env):
        return AutoresetMode.DISABLED
    said = env.metadata.get("autoreset_mode")
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
    spread = np.zeros((num_envs, *rows.shape[1:]), dtype=rows.dtype)
    spread[ids] = rows
    return spread
