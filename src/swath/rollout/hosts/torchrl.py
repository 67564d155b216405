"""TorchRL's envs for `TensorDictHost`: any `EnvBase`, batched or not, and its preparation.

env ──▶ device ──▶ limit of steps ──▶ TorchRLEnv
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.errors import warn
from swath.keys import ACTION_MASK, DONE, STEP_COUNT, Key, as_key, as_tuple
from swath.rollout.hosts.base import TensorDictSpec
from swath.rollout.spaces import Array

# Module and name of TorchRL's factory of envs with a common state.
CREATOR = ("torchrl.envs.env_creator", "EnvCreator")


def is_torchrl_env(value: object) -> bool:
    """Tell whether an object is an `EnvBase`, without importing torchrl."""
    return isinstance(value, getattr(sys.modules.get("torchrl.envs"), "EnvBase", ()))


def has_makers(env: Any) -> bool:
    """Tell whether an object is a batched env that has not built its envs, so that it accepts keywords."""
    return is_torchrl_env(env) and _is_batch_of_envs(env) and bool(env.is_closed)


def batch_of(makers: Sequence[Callable[[], Any]]) -> Any:
    """Return a batched env with an env of each factory. If they differ, each first builds one more env."""
    return _envs().SerialEnv(len(makers), list(makers))


def reduce_env_creator(creator: Any) -> tuple[Any, ...]:
    """Reduce an `EnvCreator` for pickling to a function that builds envs with its present state.

    Warns if the state has statistics, which TorchRL shares between processes, and Swath copies.
    """
    if statistics := [name for name in creator.state_dict() if name.endswith("_extra_state")]:
        warn(
            f"statistics of an EnvCreator ({', '.join(statistics)}) are not shared with workers in other processes: "
            "each begins with a copy and goes on with it; for one set of statistics use a Collector in this process, "
            "or normalise in the policy"
        )
    return partial, (_build_with_state, creator.create_env_fn, creator.create_env_kwargs, creator.state_dict())


def _build_with_state(
    make: Callable[..., Any], fixed_kwargs: Mapping[str, Any], state: Mapping[str, Any], **kwargs: Any
) -> Any:
    env = make(**{**kwargs, **fixed_kwargs})
    env.load_state_dict(state, strict=False)
    return env


@dataclass(frozen=True)
class EnvOptions:
    """Options of TensorDict envs.

    Attributes:
        max_steps: step limit of an episode, which the env counts itself.
        device: device to move the env to, or `None`.
        separate: whether to step copies one by one, each with its own seeds, instead of as one batch.
        plans: whether a `ParallelEnv` may step by its plan.
    """

    max_steps: int | None = None
    device: torch.device | None = None
    separate: bool = False
    plans: bool = False

    def apply(self, env: Any) -> Any:
        """Return the `EnvBase` with device and step limit.

        Raises:
            ValueError: the env counts steps already.
        """
        if self.device is not None:
            env = env.to(self.device)
        if self.max_steps is None:
            return env
        if any(STEP_COUNT in as_tuple(key) for key in env.output_spec.keys(include_nested=True, leaves_only=True)):
            raise ValueError(f"max_frames_per_traj={self.max_steps}: 'step_count' is already present in the env")
        return _envs().TransformedEnv(env, _envs().StepCounter(max_steps=self.max_steps), auto_unwrap=True)


class TorchRLEnv:
    """An `EnvBase`.

    Args:
        env: the env.
        autoresets: whether a step resets episodes that end.
        reason_for_no_plan: why a `ParallelEnv` has no plan; `""` for other envs.

    Attributes:
        env: the env.
        spec: properties of the env.
        plan: steps the envs of a `ParallelEnv`; `None` if TorchRL does.
        kind: name and value of a property that must be equal in all envs of a host.
        stateful: the transforms, or the batched env, with a `state_dict`; or `None`.
    """

    plan: Any = None

    def __init__(self, env: Any, *, autoresets: bool, reason_for_no_plan: str = "") -> None:
        self.env, self.autoresets, self.reason_for_no_plan = env, autoresets, reason_for_no_plan
        if isinstance(env, _envs().SerialEnv) and env.is_closed:
            env.start()  # its envs become accessible
        flags = _keys(env.done_keys)
        groups = {as_tuple(key)[:-1] for key in flags}
        outer = [key for key in flags if not any(as_tuple(key)[:n] in groups for n in range(len(as_tuple(key)) - 1))]
        self.spec = TensorDictSpec(
            env.batch_size.numel(),
            tuple(env.batch_size),
            observation_keys=_keys(env.observation_keys),
            action_keys=_keys(env.action_keys),
            reward_keys=_keys(env.reward_keys),
            done_keys=tuple(outer),
            all_done_keys=flags,
            steps_singly=False,
            seeding="layout" if env.batch_size else "episode",
        )
        entries = (self.spec.observation_keys, self.spec.action_keys, self.spec.reward_keys, flags)
        self.kind = ("entries", [sorted(map(as_tuple, keys)) for keys in entries])
        transformed = isinstance(env, _envs().TransformedEnv)
        self.stateful = env.transform if transformed else env if _is_batch_of_envs(env) else None

    def reset(self, seeds: Sequence[int | None] | None) -> Any:
        """Begin an episode in every env of the batch, seeded from the first seed, and return the root."""
        if seeds is not None:
            self.env.set_seed(seeds[0], static_seed=len(seeds) > 1 and len({*seeds}) == 1)
        root = self.env.reset()
        return root if self.env.device is None else root.to(self.env.device)

    def reset_some(self, root: TensorDictBase, envs: Sequence[int]) -> Any:
        """Begin an episode in these envs of the batch and all of their groups, and return the root with their rows."""
        for flag in [key for key in self.spec.done_keys if as_tuple(key)[-1] == DONE]:
            mask = torch.zeros(root.get(flag).shape, dtype=torch.bool, device=root.device)
            mask.view(self.spec.num_envs, -1)[list(envs)] = True
            root.set((*as_tuple(flag)[:-1], "_reset"), mask)
        return self.env.reset(root, select_reset_only=True)

    def step(self, root: TensorDictBase) -> tuple[Any, Any]:
        """Step, reset if `autoresets`, and return the root with `"next"` and the root of the next step."""
        if self.autoresets:
            return self.env.step_and_maybe_reset(root)  # type: ignore[no-any-return]
        root = self.env.step(root)
        return root, self.env.step_mdp(root)

    def zero_step(self) -> Any:
        """Return a TensorDict of zeros with the entries of a step, except those that the policy writes."""
        return self.env.fake_tensordict()

    def render(self, env: int) -> Array | None:
        """Return a frame of this env of the batch; `None` if it does not render arrays."""
        frame = self.env.render() if hasattr(self.env, "render") else None
        if self.spec.num_envs > 1 and isinstance(frame, list | tuple):  # a frame per env
            frame = frame[env]
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        """Close the env."""
        if not self.env.is_closed:
            self.env.close()

    def draw(self, root: TensorDictBase) -> TensorDictBase:
        """Write random actions into a root; choices obey an action mask in their group.

        An `ActionMask` transform puts the mask into the action's spec, from which the action is drawn. Without it the
        spec allows all choices. A mask that allows none, as for absent agents, allows all.
        """
        root, binary = self.env.rand_action(root), importlib.import_module("torchrl.data").Binary
        for action in self.spec.action_keys:
            spec, mask = self.env.full_action_spec[action], root.get((*as_tuple(action)[:-1], ACTION_MASK), None)
            if mask is not None and getattr(spec, "mask", False) is None and not isinstance(spec, binary):
                spec, allowed = spec.clone(), mask.bool()
                spec.update_mask(allowed | ~allowed.any(-1, keepdim=True))
                root.set(action, spec.rand())
        return root


def _is_batch_of_envs(env: Any) -> bool:
    return isinstance(env, _envs().SerialEnv | _envs().ParallelEnv)


def _envs() -> Any:
    return importlib.import_module("torchrl.envs")


def _keys(keys: Sequence[Any]) -> tuple[Key, ...]:
    return tuple(as_key(as_tuple(key)) for key in keys)
