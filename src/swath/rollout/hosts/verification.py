"""The check of an env's plan: it and TorchRL's own steps give the same bytes for the same answers and actions.

    spaces of the env ──▶ random answers ─┬▶ GymWrapper, SerialEnv, transforms ──▶ entries ─┐
                                          └▶ PlanHost ──▶ leaves ───────────────────────────┴▶ equal, or no plan

The env itself is not stepped, and its random state does not change.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDictBase

from swath.keys import ACTION, FLAGS, REWARD, Key
from swath.rollout.hosts.plan import PlanHost, Program
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.hosts.torchrl import TorchRLEnv
from swath.rollout.plans import NoPlan
from swath.rollout.seeding import GeneratorStates, preserve_generators
from swath.rollout.spaces import Leaves

N_CHECKED_STEPS = 24
_verified = set[Any]()  # settings of plans that gave TorchRL's bytes in this process


class Answers(gym.Env[Any, Any]):
    """A gymnasium env that gives random answers of its spaces, the same for the same seed.

    Args:
        env: an env with these spaces.
        seed: of the answers.

    Attributes:
        actions: type and bytes of the actions that it got.
    """

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        self.observation_space, self.action_space = copy.deepcopy(env.observation_space), env.action_space
        self.observation_space.seed(seed)
        self._random, self.actions = np.random.default_rng(seed), list[Any]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        """Return an observation."""
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return an answer; one in four ends an episode."""
        array = np.asarray(action)
        self.actions.append((type(action), array.dtype, array.shape, array.tobytes()))
        kind = self._random.random()
        reward = float(self._random.normal() * 10)
        return self.observation_space.sample(), reward, kind < 0.15, 0.1 < kind < 0.25, {}


def _copy_over(wrapper: Any, env: gym.Env[Any, Any], source: Answers) -> Any:
    """Return a copy of a TorchRL wrapper of a gymnasium env, over an env that gives random answers."""
    return copy.deepcopy(wrapper, {id(env): source})


def _with_answers(program: Program) -> tuple[Any, list[Answers]]:
    """Return a TorchRL env with the wrappers and transforms of a plan, over envs that give random answers."""
    torchrl_envs = importlib.import_module("torchrl.envs")
    sources = [Answers(program.envs[0], seed) for seed in range(2 if program.batched else 1)]
    copies = [partial(_copy_over, program.wrappers[0], program.envs[0], source) for source in sources]
    env = torchrl_envs.SerialEnv(len(sources), copies) if program.batched else copies[0]()
    if program.transforms:
        transforms = [copy.deepcopy(transform.clone()) for transform in program.transforms]  # a clone has no env
        env = torchrl_envs.TransformedEnv(env, torchrl_envs.Compose(*transforms))
    env.reset()  # starts a SerialEnv
    return env, sources


def _require_arrays(program: Program) -> None:
    """Check that each wrapper hands actions on as arrays or numbers.

    Raises:
        NoPlan: it hands on tensors.
    """
    for wrapper, env in zip(program.wrappers, program.envs, strict=True):
        source = Answers(env, 0)
        trial = _copy_over(wrapper, env, source)
        trial.step(trial.rand_action())
        if issubclass(source.actions[0][0], torch.Tensor):
            raise NoPlan(f"{type(wrapper).__name__} has actions as tensors")


def verify(host: PlanHost) -> None:
    """Run the env's plan and TorchRL's own steps on the same answers and actions, once per process and settings.

    The actions of each wrapper are looked at every time, since TorchRL does not publish this setting.

    Raises:
        NoPlan: they differ.
    """
    with preserve_generators(), torch.no_grad():
        _require_arrays(host.program)
        if host.config in _verified:
            return
        (env, sources), (planned_env, planned_sources) = (_with_answers(host.program) for _ in range(2))
        plain = TensorDictHost([TorchRLEnv(env, autoresets=True)], None, separate=False)
        planned = PlanHost(planned_env, autoresets=True)
        root, leaves, keys = plain.reset_all()[0], planned.reset_all(), planned.spec.observation_keys
        for _ in range(N_CHECKED_STEPS):
            require_same("the first", keys, leaves, root)
            action = env.full_action_spec[ACTION].rand()
            with preserve_generators():
                expected = plain.step([root.clone().set(ACTION, action.clone())])
                draws = GeneratorStates()
            rows = action.numpy()
            transition = planned.step([rows if host.spec.batch_shape else rows[None]])
            for _, error in (*expected.failed, *transition.failed):
                raise NoPlan(f"a step raised {error!r}")
            if not draws.equals(GeneratorStates()):
                raise NoPlan("the env draws other random numbers in a plan")
            ends, flags = transition.ends, np.zeros((3, len(sources), 1), np.bool_)
            flags[1, ends.envs, 0], flags[2, ends.envs, 0] = ends.terminated, ends.truncated
            flags[0] = flags[1] | flags[2]
            step = [*transition.observation, transition.reward[:, None], *flags]
            require_same("the next", (*keys, REWARD, *FLAGS), step, plain.following)
            root = expected.observation[0]
            leaves = planned.reset(ends.envs.tolist(), transition.observation)
        if [source.actions for source in sources] != [source.actions for source in planned_sources]:
            raise NoPlan("the env gets other actions in a plan")
    _verified.add(host.config)


def require_same(place: str, keys: Sequence[Key], leaves: Leaves, td: TensorDictBase) -> None:
    """Check leaves `[B, …]` against entries `[*B, …]`.

    Raises:
        NoPlan: they differ.
    """
    for key, leaf in zip(keys, leaves, strict=True):
        value = td.get(key).numpy(force=True)
        same_form = value.dtype == leaf.dtype and leaf.shape in (value.shape, (1, *value.shape))
        if not same_form or value.tobytes() != leaf.tobytes():
            raise NoPlan(f"{place} {key!r} is {leaf!r} in a plan, and {value!r} in TorchRL")
