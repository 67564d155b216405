"""Compare `Collector` and a TensorDict policy with the loop that calls the same network and distribution.

    python benchmarks/policy_plan.py [--quick]      # needs swath[torchrl]

Frames per second with one torch thread, policies of TorchRL with log-probabilities. The collector without plans is for
orientation. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict.nn import NormalParamExtractor, TensorDictModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.modules import ProbabilisticActor, TanhNormal

from policies import mlp, quiet_threads
from rounds import CPU, Target, compare, drawing, ended, parser, timed
from swath import Collector

LOOP, PLAN, PLAIN = "loop by hand", "Collector", "Collector, plans=False"
ENVS = (1, 8, 64)

Act = Callable[[Tensor], tuple[Tensor, Tensor]]


class Setting(NamedTuple):
    """An env, a policy, and what the policy does as a function of observations: actions and log-probabilities."""

    env: str
    policy: nn.Module
    act: Act


def pendulum() -> Setting:
    """Return a Gaussian squashed by tanh."""
    net = nn.Sequential(mlp(3, 2), NormalParamExtractor())
    bounds = {"low": -2.0, "high": 2.0}
    policy = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs=bounds,
        return_log_prob=True,
    )

    def act(observation: Tensor) -> tuple[Tensor, Tensor]:
        loc, scale = net(observation)
        return TanhNormal(loc, scale, **bounds).rsample_and_log_prob()

    return Setting("Pendulum-v1", policy, act)


def cartpole() -> Setting:
    """Return a choice among two actions."""
    net = mlp()
    policy = ProbabilisticActor(
        TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )

    def act(observation: Tensor) -> tuple[Tensor, Tensor]:
        choice = Categorical(logits=net(observation))
        action = choice.sample()
        return action, choice.log_prob(action)

    return Setting("CartPole-v1", policy, act)


class Loop:
    """Collects `steps` steps of all envs with each call, into arrays `[T, B, …]`."""

    def __init__(self, setting: Setting, envs: int, steps: int) -> None:
        make = [lambda: gymnasium.make(setting.env)] * envs
        self.envs = SyncVectorEnv(make, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
        self.act, self.steps = setting.act, steps
        self.observation, _ = self.envs.reset(seed=0)

    @torch.no_grad()
    def frames(self) -> int:
        """Collect a batch and return the number of its frames."""
        space, n = self.envs.single_observation_space, self.envs.num_envs
        observations = np.empty((self.steps, n, *space.shape), space.dtype)
        actions, scores, rewards, ends = [], np.empty((self.steps, n), np.float32), np.empty((self.steps, n)), []
        for step in range(self.steps):
            observations[step] = self.observation
            action, scores[step] = (value.numpy() for value in self.act(torch.from_numpy(self.observation)))
            self.observation, rewards[step], terminated, truncated, _ = self.envs.step(action)
            actions.append(action)
            ends.append(terminated | truncated)
        return int(rewards.size) if len(np.stack(actions)) == len(np.stack(ends)) else 0


def measure(setting: Setting, envs: int, rounds: int, seconds: float) -> bool:
    """Compare, and return whether the target is reached."""
    steps = max(128, 1024 // envs)
    with ExitStack() as stack:
        contenders = {LOOP: timed(Loop(setting, envs, steps).frames)}
        for name, plans in ((PLAN, True), (PLAIN, False)):
            collector = Collector(
                setting.env, setting.policy, envs_per_worker=envs, frames_per_batch=envs * steps, plans=plans
            )
            contenders[name] = drawing(stack.enter_context(collector))
        title = f"{setting.env}, {envs} env{'s' if envs > 1 else ''}, TensorDict policy, {steps} steps a batch"
        return compare(title, contenders, [Target(PLAN, LOOP, 0.95)], rounds, seconds)


def main() -> int:
    """Measure every setting."""
    how = (5, 0.05) if parser(__doc__).parse_args().quick else (31, 0.1)
    quiet_threads()
    print(f"one torch thread, {how[0]} rounds, {'CPU' if CPU else 'wall'} seconds")
    return ended([measure(setting, envs, *how) for setting in (pendulum(), cartpole()) for envs in ENVS])


if __name__ == "__main__":
    sys.exit(main())
