"""A short way through TorchRL's plain gymnasium wrappers: the same entries, without the checks of every step.

action [*B, …] ──▶ one action per env ──▶ gymnasium's own step ──▶ arrays ──▶ "next" [*B]

It is taken for a `GymEnv` or `GymWrapper` of one gymnasium env, or a `SerialEnv` of these, and only where everything
that TorchRL would do in between is known to change nothing: one array as observation, no info, no skipped frames, no
transforms, the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from swath.keys import ACTION, DONE, NEXT, OBSERVATION, REWARD, TERMINATED, TRUNCATED

_FLAGS = (TERMINATED, TRUNCATED, DONE)


def short_way(env: Any) -> ShortWay | None:
    """What steps and resets as the env does, quicker; `None` if that is not certain."""
    batched = sys.modules["torchrl.envs.batched_envs"]
    if type(env) is batched.SerialEnv:
        return _short_way_in_turn(env)
    return ShortWay([env], ()) if _is_plain(env) else None


def _short_way_in_turn(env: Any) -> ShortWay | None:
    if env.is_closed:
        env.start()
    inner = env._envs  # noqa: SLF001  there is no public way to them
    same = all(_is_plain(one) and one.specs == inner[0].specs for one in inner)
    return ShortWay(inner, (len(inner),)) if same and env.device is None else None


class ShortWay:
    """Steps and resets plain gymnasium envs and writes what they say as TorchRL does.

    Args:
        envs: TorchRL's wrappers around them.
        batch: `*B`.
    """

    def __init__(self, envs: Sequence[Any], batch: tuple[int, ...]) -> None:
        self._envs = [env._env for env in envs]  # noqa: SLF001  as above
        self._steps = [env.step for env in self._envs]
        self._batch = torch.Size(batch)
        self._dtype = _numpy_of(envs[0].observation_spec[OBSERVATION].dtype)
        self._shape = (*batch, *envs[0].observation_spec[OBSERVATION].shape)
        self._split = _splitter(envs[0], batched=bool(batch))
        self.any_ended = False

    def step(self, td: TensorDictBase) -> None:
        """Write `"next"`; what the policy has written there stays beside it."""
        rows = [step(action) for step, action in zip(self._steps, self._split(td.get(ACTION)), strict=True)]
        observations, rewards, terminated, truncated, _ = zip(*rows, strict=True)
        done = [ended or cut for ended, cut in zip(terminated, truncated, strict=True)]
        self.any_ended = any(done)
        flags = torch.from_numpy(np.array((terminated, truncated, done), dtype=np.bool_))
        reward = torch.from_numpy(np.array(rewards, dtype=np.float32))
        entries = {OBSERVATION: self._observation(observations), REWARD: reward.view(*self._batch, 1)}
        entries.update(zip(_FLAGS, flags.view(3, *self._batch, 1).unbind(), strict=True))
        following = TensorDict(entries, batch_size=self._batch)
        preset = td.get(NEXT, None)
        if preset is not None:
            following.update(preset.exclude(*following.keys()))
        td.set(NEXT, following)

    def reset(self, root: TensorDictBase, envs: Sequence[int]) -> TensorDictBase:
        """Begin an episode in these envs; whatever else `root` has is zero in their rows, unless it is all of them."""
        observations: list[Any] = [np.zeros(self._shape[len(self._batch) :], self._dtype)] * len(self._envs)
        going_on = torch.ones(self._batch, dtype=torch.bool)
        for env in envs:
            observations[env], _ = self._envs[env].reset()
            going_on.view(-1)[env] = False
        flags = torch.zeros(3, *self._batch, 1, dtype=torch.bool).unbind()
        entries = {OBSERVATION: self._observation(observations), **dict(zip(_FLAGS, flags, strict=True))}
        begun = TensorDict(entries, batch_size=self._batch)
        if len(envs) == len(self._envs):
            return root.update(begun)
        return root.where(going_on, begun, out=root, pad=0)

    def _observation(self, rows: Sequence[Any]) -> torch.Tensor:
        return torch.from_numpy(np.array(rows, dtype=self._dtype)).view(self._shape)


def _is_plain(env: Any) -> bool:
    """Whether all that this env does in a step is known."""
    library = sys.modules.get("torchrl.envs.libs.gym")
    if library is None or type(env) not in (library.GymEnv, library.GymWrapper):
        return False
    inner = env._env  # noqa: SLF001  as above
    return (
        isinstance(inner, gym.Env)
        and not env.batch_size
        and env.device is None
        and not env.info_dict_reader
        and env.wrapper_frame_skip == 1
        and not env.run_type_checks
        and isinstance(inner.observation_space, gym.spaces.Box)
        and _specs_are_plain(env)
        and _action_is_plain(env)
    )


def _specs_are_plain(env: Any) -> bool:
    observed, rewards = set(env.observation_spec.keys()), env.full_reward_spec
    return (
        observed == {OBSERVATION}
        and set(env.full_done_spec.keys()) == set(_FLAGS)
        and set(rewards.keys()) == {REWARD}
        and tuple(rewards[REWARD].shape) == (1,)
        and rewards[REWARD].dtype == torch.float32
        and not env.state_spec.keys()
    )


def _action_is_plain(env: Any) -> bool:
    specs = sys.modules["torchrl.data.tensor_specs"]
    keys, spec = env.action_keys, env.action_spec
    served = (specs.OneHot, specs.Categorical, specs.BoundedContinuous)
    return list(keys) == [ACTION] and type(spec) in served and not getattr(spec, "use_register", False)


def _splitter(env: Any, *, batched: bool) -> Callable[[torch.Tensor], Sequence[Any]]:
    """How an action `[*B, …]` becomes what each env takes."""
    specs = sys.modules["torchrl.data.tensor_specs"]
    spec = env.action_spec
    if type(spec) is specs.OneHot:
        return lambda action: action.long().argmax(-1).reshape(-1).tolist()
    if type(spec) is specs.Categorical:
        return lambda action: action.reshape(-1).tolist()
    if batched:
        return lambda action: [env.read_action(one) for one in action]
    return lambda action: [env.read_action(action)]


def _numpy_of(dtype: torch.dtype) -> np.dtype[Any]:
    found: np.dtype[Any] = torch.empty(0, dtype=dtype).numpy().dtype
    return found
