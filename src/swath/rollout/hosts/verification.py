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
from swath.rollout.hosts.plan import PlanHost
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.hosts.torchrl import TorchRLEnv
from swath.rollout.hosts.transforms import NoPlan
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
        self.reward_space = getattr(env, "reward_space", None)

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


def _with_answers(host: PlanHost) -> tuple[Any, list[Answers]]:
    """Return a TorchRL env with the wrappers and transforms of a plan, over envs that give random answers.

    Raises:
        NoPlan: its specs differ from the specs of the plan's env.
    """
    torchrl_envs, program = importlib.import_module("torchrl.envs"), host.program
    first, n = program.wrappers[0], 2 if program.batched else 1
    sources = [Answers(program.envs[0], seed) for seed in range(n)]
    wrap = partial(torchrl_envs.GymWrapper, frame_skip=first.wrapper_frame_skip, device=first.device)
    if wrap(sources[0]).specs != first.specs:
        wrap = partial(wrap, categorical_action_encoding=True)
        if wrap(sources[0]).specs != first.specs:
            raise NoPlan("the env has other specs than its spaces say")
    env = (
        torchrl_envs.SerialEnv(n, [partial(wrap, source) for source in sources])
        if program.batched
        else wrap(sources[0])
    )
    if program.transforms:
        copies = [copy.deepcopy(transform.clone()) for transform in program.transforms]  # a clone has no env
        env = torchrl_envs.TransformedEnv(env, torchrl_envs.Compose(*copies))
    env.reset()  # starts a SerialEnv
    return env, sources


def verify(host: PlanHost) -> None:
    """Run the env's plan and TorchRL's own steps on the same answers and actions, once per process and settings.

    Raises:
        NoPlan: they differ.
    """
    if host.config in _verified:
        return
    with preserve_generators(), torch.no_grad():
        (env, sources), (planned_env, planned_sources) = _with_answers(host), _with_answers(host)
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
