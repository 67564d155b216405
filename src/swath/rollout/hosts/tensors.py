"""The host for simulators that step many envs at once, and take and return tensors of torch on any device.

    vector env, or gymnasium.Env with `num_envs` ──▶ first reset returns tensors ──▶ TensorHost

Nothing is read from the device in a step: ends stay flags `[B]`, and the loop goes on with what the simulator returned.

    SAME_STEP   the simulator resets within the last step; its infos have the true last observations, or have not
    NEXT_STEP   it resets within the next step and ignores the action: that row is void
    DISABLED    `reset(options={"reset_mask": mask})` begins the next episodes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from swath.errors import warn
from swath.rollout.hosts.base import DeviceEnds, MakeEnvs, Transition
from swath.rollout.hosts.results import bad_answer, final_of
from swath.rollout.hosts.vector import BATCHED, STEP, VectorHost
from swath.rollout.memory import torch_dtype
from swath.rollout.spaces import Leaf, Leaves, action_leaves, build_value


class TensorHost(VectorHost):
    """A vector env of tensors, stepped as a whole.

    Args:
        env: the vector env.
        make: returns a list with a vector env of the same kind.
        device: where its tensors are.
        first: observation and infos of a reset, if no step was made after it.
        keep_float64: observations of float64 stay float64.

    Raises:
        ValueError: an env without an autoreset mode.
        BadAnswer: an observation that is not in the observation space's form.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        make: MakeEnvs | None = None,
        *,
        device: torch.device,
        first: tuple[Any, Any] | None = None,
        keep_float64: bool = False,
    ) -> None:
        super().__init__(env, make, first=first, keep_float64=keep_float64)
        autoresets = not self._no_autoreset
        self.spec = replace(self.spec, device=device, of_tensors=True, autoresets=autoresets)
        space, casts = self.spec.action_space, [_cast(leaf, device) for leaf in action_leaves(self.spec.action_space)]
        self._join = lambda leaves: build_value(space, (cast(leaf) for cast, leaf in zip(casts, leaves, strict=False)))
        if not isinstance(space, spaces.Dict | spaces.Tuple):
            self._join = lambda leaves: casts[0](leaves[0])
        self._readers = [(leaf, torch_dtype(leaf.dtype)) for leaf in self.spec.observation]
        self._unpack = self._read_observation
        # The ends of the last step, and the envs that reset themselves within the next one.
        self._last: DeviceEnds | None = None
        self._void: torch.Tensor | None = None

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env; the simulator takes one seed for all."""
        self._last = self._void = None
        return super().reset_all(seeds)

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs; envs that reset themselves have begun it, or will in the next step."""
        if seeds is None and self.spec.autoresets and self._last is not None:
            ended = self._last.read()[0].envs
            envs = [env for env in envs if env not in ended]
        if not envs:
            return base
        leaves, self._info = self._reset_envs(envs, seeds)
        mask = self._mask(envs)
        if self._void is not None:
            self._void = self._void & ~mask
        return [torch.where(_rows(mask, leaf), leaf, before) for leaf, before in zip(leaves, base, strict=True)]

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Step every env, also retired ones; `only` must be `None`."""
        assert only is None
        self._first, n, returned = None, self.spec.num_envs, None
        actions = self._join(action)
        try:
            returned = self.envs[0].step(actions)
            observation, reward, terminated, truncated, info = returned
            leaves, reward = self._unpack(observation), self._row("reward", reward)
            terminated, truncated = self._flag("terminated", terminated), self._flag("truncated", truncated)
            final, sent = self._final(info) if self._same_step else (None, None)
        except Exception as error:  # noqa: BLE001  `Transition.failed` has it, with its type
            env_error = error if returned is None else bad_answer(error, self.env, STEP)
            no_reward = torch.zeros(n, device=self.spec.device)
            return Transition([], no_reward, failed=[(env, env_error) for env in range(n)])
        void, self._info = self._void, info
        self._last = ends = DeviceEnds(terminated, truncated, void, final, sent, self._same_step)
        self._void = ends.ended if self.spec.next_step_autoreset else None
        return Transition(leaves, reward, info=info, device_ends=ends)

    def info_of(self, env: int) -> Mapping[str, Any]:  # noqa: ARG002  an info is about all envs
        """Return the entries of the infos as they are: simulators have no infos of single envs."""
        return self._info if isinstance(self._info, Mapping) else {}

    def _mask(self, envs: Sequence[int]) -> Any:
        mask = torch.zeros(self.spec.num_envs, dtype=torch.bool)
        mask[list(envs)] = True
        return mask.to(self.spec.device)

    def _read_observation(self, observation: Any) -> Leaves:
        """Copy an observation, which the simulator may overwrite, into its leaves."""
        return [self._read(leaf, dtype, reduce(getitem, leaf.path, observation)) for leaf, dtype in self._readers]

    def _read(self, leaf: Leaf, dtype: torch.dtype, value: Any) -> torch.Tensor:
        shape = (self.spec.num_envs, *leaf.shape)
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"it returned {type(value).__name__} for {leaf.key!r}; its first reset returned tensors")
        if value.shape != shape:
            raise ValueError(f"it returned shape {tuple(value.shape)} for {leaf.key!r}; its space says {shape}")
        same = value.dtype is dtype and value.device == self.spec.device  # clone is quicker
        return value.clone() if same else value.to(self.spec.device, dtype, copy=True)

    def _row(self, name: str, value: Any) -> torch.Tensor:
        """Return one number per env, `[B]`, which the simulator may overwrite in the next step."""
        n = self.spec.num_envs
        if not isinstance(value, torch.Tensor) or value.numel() != n:
            raise ValueError(f"it returned {name}={value!r:.200}; it must be a tensor of one number per env")
        row: torch.Tensor = value.detach() if value.requires_grad else value
        return row if row.shape == (n,) else row.reshape(n)

    def _flag(self, name: str, value: Any) -> torch.Tensor:
        """Return flags `[B]`, which the simulator may overwrite in the next step."""
        flags = self._row(name, value)
        return flags if flags.dtype is torch.bool else flags != 0

    def _final(self, info: Any) -> tuple[Leaves | None, torch.Tensor | None]:
        """Return the true last observations `[B, …]` in the infos of a step, and which envs have sent theirs."""
        value, sent = final_of(info) if isinstance(info, Mapping) else (None, None)
        mask = None if sent is None else self._flag("the mask of last observations", sent).clone()
        try:
            return None if value is None else self._read_observation(value), mask
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"of the last observations in its infos: {error}") from error


class BatchedEnv(VectorEnv[Any, Any, Any]):
    """A `gymnasium.Env` of many envs with the interface of gymnasium's vector envs, without its outermost wrappers.

    A simulator that does not say when it resets is taken to reset within the step, as Isaac Lab's do, with a warning.

    Args:
        env: has `num_envs`, `single_observation_space` and `single_action_space`.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.vec_env, inner = env, env
        while type(inner) in (OrderEnforcing, PassiveEnvChecker):  # the checker expects arrays
            assert isinstance(inner, gym.Wrapper)
            inner = inner.env
        self._env = inner
        self.num_envs, self.single_observation_space, self.single_action_space = map(inner.get_wrapper_attr, BATCHED)
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.render_mode, self.spec = getattr(env, "render_mode", None), env.spec
        self.metadata = dict(env.metadata or {})
        if self.metadata.get("autoreset_mode") is None:
            self.metadata["autoreset_mode"] = AutoresetMode.SAME_STEP
            warn(
                f"{env} has no metadata['autoreset_mode']; it is taken to reset its envs within the step in which "
                "their episodes end (SAME_STEP); set it in the class if it does not"
            )

    @property
    def unwrapped(self) -> Any:
        """Return the simulator."""
        return self.vec_env.unwrapped

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset all envs, or those in a mask."""
        return self._env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        """Step all envs."""
        return self._env.step(actions)

    def render(self) -> Any:
        """Return the rendering of the simulator."""
        return self.vec_env.render()

    def close_extras(self) -> None:
        """Close the simulator."""
        self.vec_env.close()


def _values(observation: Any) -> list[Any]:
    """Return the values in the dicts and tuples of an observation."""
    if isinstance(observation, Mapping | tuple | list):
        parts = observation.values() if isinstance(observation, Mapping) else observation
        return [value for part in parts for value in _values(part)]
    return [observation]


def tensor_device(observation: Any) -> torch.device | None:
    """Return the device of the first tensor of torch in an observation; `None` without tensors."""
    return next((value.device for value in _values(observation) if isinstance(value, torch.Tensor)), None)


def _cast(leaf: Leaf, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that copies actions to the dtype of their space: the simulator may write into them."""
    dtype = torch_dtype(leaf.dtype)
    return lambda actions: actions.clone() if actions.dtype is dtype else actions.to(device, dtype)


def _rows(mask: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    return mask.view(-1, *[1] * (leaf.dim() - 1))
