"""TorchRL's envs for `TensorDictHost`: any `EnvBase`, batched or not, and what is put around one before it is stepped.

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
from swath.rollout.hosts.base import Seeding, TensorDictSpec
from swath.rollout.spaces import Array

# Where TorchRL's maker of envs with a common state is, and its name.
CREATOR = ("torchrl.envs.env_creator", "EnvCreator")


def is_torchrl_env(value: object) -> bool:
    """Whether this is an `EnvBase`; torchrl is not imported for it: whoever has such an env has done that."""
    return isinstance(value, getattr(sys.modules.get("torchrl.envs"), "EnvBase", ()))


def has_makers(env: Any) -> bool:
    """Whether this is a batched env that has yet to build its envs, so that keywords still reach their makers."""
    return is_torchrl_env(env) and _is_batch_of_envs(env) and bool(env.is_closed)


def batch_of(makers: Sequence[Callable[[], Any]]) -> Any:
    """One env that steps those of these makers together. From different makers it builds one env more each, first."""
    return _envs().SerialEnv(len(makers), list(makers))


def creator_apart(creator: Any) -> tuple[Any, ...]:
    """Give, for an `EnvCreator` in another process, a function that builds envs with the state that it has now.

    Warns where this is statistics, which TorchRL shares between processes: here they go apart.
    """
    if apart := [name for name in creator.state_dict() if name.endswith("_extra_state")]:
        warn(
            f"statistics of an EnvCreator ({', '.join(apart)}) are not shared with workers in other processes: each "
            "begins with a copy and goes on with it; for one set of statistics use a Collector in this process, or "
            "normalise in the policy"
        )
    return partial, (_created, creator.create_env_fn, creator.create_env_kwargs, creator.state_dict())


def _created(make: Callable[..., Any], fixed: Mapping[str, Any], state: Mapping[str, Any], **kwargs: Any) -> Any:
    env = make(**{**kwargs, **fixed})
    env.load_state_dict(state, strict=False)
    return env


@dataclass(frozen=True)
class Fitting:
    """What is asked of a TensorDict env beyond its source.

    Attributes:
        max_steps: most steps of an episode; counted, and cut, by the env itself.
        device: where it runs; `None` leaves it where it is.
        apart: whether several copies are stepped one by one, each with seeds of its own, instead of as one batch.
    """

    max_steps: int | None = None
    device: torch.device | None = None
    apart: bool = False

    def applied(self, env: Any) -> Any:
        """The `EnvBase`, fitted.

        Raises:
            ValueError: it counts steps already.
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
        resets: whether episodes that end begin anew within the step; if not, only when they are reset.

    Attributes:
        env: the env.
        spec: what it looks like.
        kind: in what envs side by side must agree: its name, and its value.
        stateful: the transforms, or the envs of a batch, whose state can be saved; `None` if nothing has one.
    """

    def __init__(self, env: Any, *, resets: bool) -> None:
        self.env, self.resets = env, resets
        if isinstance(env, _envs().SerialEnv) and env.is_closed:
            env.start()  # so that others can look into its envs
        flags = _keys(env.done_keys)
        groups = {as_tuple(key)[:-1] for key in flags}
        counts = [key for key in flags if not any(as_tuple(key)[:n] in groups for n in range(len(as_tuple(key)) - 1))]
        observed, acted, rewarded = map(_keys, (env.observation_keys, env.action_keys, env.reward_keys))
        n, shape = env.batch_size.numel(), tuple(env.batch_size)
        seeding: Seeding = "layout" if shape else "episode"
        self.spec = TensorDictSpec(
            n, shape, observed, acted, rewarded, tuple(counts), flags, alone=False, seeding=seeding
        )
        self.kind = ("entries", [sorted(map(as_tuple, keys)) for keys in (observed, acted, rewarded, flags)])
        transformed = isinstance(env, _envs().TransformedEnv)
        self.stateful = env.transform if transformed else env if _is_batch_of_envs(env) else None

    def begin(self, seeds: Sequence[int | None] | None) -> Any:
        """Begin an episode in every env of the batch: the root. The first seed is that of all; the env deals it out."""
        if seeds is not None:
            self.env.set_seed(seeds[0], static_seed=len(seeds) > 1 and len({*seeds}) == 1)
        root = self.env.reset()
        return root if self.env.device is None else root.to(self.env.device)

    def begin_in(self, root: TensorDictBase, envs: Sequence[int]) -> Any:
        """Begin an episode in these envs of the batch, whichever of their groups ended: the root with their rows."""
        for flag in [key for key in self.spec.done if as_tuple(key)[-1] == DONE]:
            mask = torch.zeros(root.get(flag).shape, dtype=torch.bool, device=root.device)
            mask.view(self.spec.num_envs, -1)[list(envs)] = True
            root.set((*as_tuple(flag)[:-1], "_reset"), mask)
        return self.env.reset(root, select_reset_only=True)

    def advance(self, root: TensorDictBase) -> tuple[Any, Any]:
        """Step, and reset where that is to happen: the root with `"next"`, and the root of the next step."""
        if self.resets:
            return self.env.step_and_maybe_reset(root)  # type: ignore[no-any-return]
        made = self.env.step(root)
        return made, self.env.step_mdp(made)

    def imagine(self) -> Any:
        """A TensorDict of zeros as a step leaves it, without what the policy writes."""
        return self.env.fake_tensordict()

    def rendered(self, env: int) -> Array | None:
        """A frame of this env of the batch; `None` if it does not render arrays."""
        frame = self.env.render() if hasattr(self.env, "render") else None
        if self.spec.num_envs > 1 and isinstance(frame, list | tuple):  # one of each
            frame = frame[env]
        return frame if isinstance(frame, np.ndarray) else None

    def close(self) -> None:
        """Close the env."""
        if not self.env.is_closed:
            self.env.close()

    def draw(self, root: TensorDictBase) -> TensorDictBase:
        """Write random actions into a root; those that are choices obey a mask beside them.

        An `ActionMask` transform puts such a mask into the action's spec, and what is drawn from the spec obeys it.
        Without one the spec allows everything. Where nothing is allowed, as for agents that are absent, everything is.
        """
        root, binary = self.env.rand_action(root), importlib.import_module("torchrl.data").Binary
        for action in self.spec.acted:
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
