"""Compare `Collector` in this process with the loop that a good user writes.

    python benchmarks/collector_local.py [--quick]

Frames per second with one torch thread. Policies sample actions and give log-probabilities. Stable-Baselines3 is there
for orientation. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import envpool
import gymnasium
import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor, nn

from policies import Sampler, lean_actor, mlp, quiet_threads, tensordict_actor
from rounds import CPU, Peer, Target, compare, drawing, ended, parser, python_of, timed
from swath import Collector

LOOP, SAME = "loop by hand", "Collector, same policy"
LEAN, TENSORDICT, PEER = "Collector, our actor head", "Collector, tensordict policy", "Stable-Baselines3"
OTHERS = {LEAN: 1.3, TENSORDICT: 0.6, PEER: None}
"""At 8 and 16 envs."""


class Loop:
    """Collects `steps` steps of all envs with each call, for envs in autoreset mode SAME_STEP or NEXT_STEP.

        obs ─▶ policy ─▶ action ─▶ envs.step ─▶ arrays [T, B, …] ─▶ a dict of tensors

    Arrays are made once per batch, rows written in place: the quickest of the forms tried. True last observations are
    kept only where episodes ended, which is less work than a `next` entry per row.
    """

    def __init__(self, envs: VectorEnv, policy: nn.Module, steps: int) -> None:
        self.envs, self.policy, self.steps = envs, policy, steps
        self.next_step = envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        self.obs, _ = envs.reset(seed=0)
        self.was_done = np.zeros(envs.num_envs, bool)

    @torch.no_grad()
    def collect(self) -> dict[str, Tensor]:
        """Collect a batch `[T, B, …]`."""
        rows, n = self.steps, self.envs.num_envs
        space = self.envs.single_observation_space
        observation = np.empty((rows, n, *space.shape), space.dtype)
        action = np.empty((rows, n), np.int64)
        log_prob, reward = np.empty((rows, n), np.float32), np.empty((rows, n), np.float32)
        terminated, done, valid = (np.empty((rows, n), bool) for _ in range(3))
        last_observation = {}
        policy, envs, obs, was_done = self.policy, self.envs, self.obs, self.was_done
        for t in range(rows):
            observation[t] = obs
            act, logp = policy(torch.from_numpy(obs))
            action[t], log_prob[t] = act.numpy(), logp.numpy()
            obs, rew, term, trunc, info = envs.step(action[t])
            over = term | trunc
            reward[t], terminated[t], done[t] = rew, term, over
            if self.next_step:
                valid[t] = ~was_done  # its last observation is the next row's, which is no transition
                was_done = over
            elif over.any():
                for env in np.flatnonzero(over):
                    last_observation[t, env] = info["final_obs"][env]
        self.obs, self.was_done, self.last_observation = obs, was_done, last_observation
        arrays = {"observation": observation, "action": action, "log_prob": log_prob, "reward": reward}
        arrays |= {"terminated": terminated, "done": done} | ({"valid": valid} if self.next_step else {})
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def frames(self) -> int:
        """Collect a batch and return the number of its transitions."""
        batch = self.collect()
        return int(batch["valid"].sum()) if self.next_step else batch["reward"].numel()


class Scaled(nn.Module):
    """Maps bytes to numbers between 0 and 1."""

    def forward(self, image: Tensor) -> Tensor:
        """Return float images of the same shape."""
        return image.float() / 255


def cnn(actions: int = 6) -> nn.Sequential:
    """Return a small CNN for 4×84×84 bytes."""
    return nn.Sequential(
        Scaled(), nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 9 * 9, 128), nn.ReLU(), nn.Linear(128, actions),
    )  # fmt: skip


def native(envs: int) -> VectorEnv:
    """Return gymnasium's CartPole written with arrays."""
    return gymnasium.make_vec("CartPole-v1", num_envs=envs, vectorization_mode="vector_entry_point")


def pool(envs: int) -> VectorEnv:
    """Return EnvPool's CartPole; its rows that begin an episode are no frames."""
    pool_envs = envpool.make_gymnasium("CartPole-v1", num_envs=envs, num_threads=1, seed=0)
    pool_envs.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    return pool_envs


def pong(envs: int) -> VectorEnv:
    """Return Pong as agents see it, stepped by ALE's own vector env."""
    return AtariVectorEnv("pong", num_envs=envs, autoreset_mode=AutoresetMode.SAME_STEP)


def cartpole(envs: int, rounds: int, seconds: float) -> bool:
    """Compare on CartPole-v1 envs, in a list or in `SyncVectorEnv`, and return whether the targets are reached."""
    steps, net = max(128, 2048 // envs), mlp()
    vector = SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * envs, copy=False, autoreset_mode=AutoresetMode.SAME_STEP
    )
    policies = {SAME: Sampler(net)}
    if envs in (8, 16):
        policies |= {LEAN: lean_actor(), TENSORDICT: tensordict_actor(net)}
    with ExitStack() as stack:
        contenders = {LOOP: timed(Loop(vector, policies[SAME], steps).frames)}
        targets = [Target(SAME, LOOP, 1.15)]
        for name, policy in policies.items():
            collector = Collector("CartPole-v1", policy, envs_per_worker=envs, frames_per_batch=envs * steps)
            contenders[name] = drawing(stack.enter_context(collector))
        if envs in (8, 16):
            contenders[PEER] = peer = Peer(python_of("sb3"), "peer_sb3.py", envs, steps)
            stack.callback(peer.close)
            targets += [Target(name, LOOP, minimum) for name, minimum in OTHERS.items()]
        title = f"CartPole-v1, {envs} env{'s' if envs > 1 else ''}, MLP 4-64-64-2, {steps} steps a batch"
        return compare(title, contenders, targets, rounds, seconds)


def vector(title: str, make: Callable[[], VectorEnv], net: nn.Module, steps: int, minimum: float, *how: float) -> bool:
    """Compare on a vector env that both step, and return whether the target is reached."""
    policy = Sampler(net)
    loop = Loop(make(), policy, steps)
    with Collector(make, policy, frames_per_batch=steps * loop.envs.num_envs) as collector:
        contenders = {LOOP: timed(loop.frames), SAME: drawing(collector)}
        return compare(f"{title}, {steps} steps a batch", contenders, [Target(SAME, LOOP, minimum)], *how)


def main() -> int:
    """Measure every setting."""
    how = (9, 0.05) if parser(__doc__).parse_args().quick else (51, 0.05)
    quiet_threads()
    print(f"one torch thread, {how[0]} rounds, {'CPU' if CPU else 'wall'} seconds")
    passed = [cartpole(envs, *how) for envs in (1, 8, 16, 64)]
    for envs in (64, 256, 1024):
        title = f"CartPole-v1, gymnasium's vector env of {envs}, MLP"
        passed.append(vector(title, partial(native, envs), mlp(), 128, 0.97, *how))
        passed.append(vector(f"CartPole-v1, EnvPool of {envs}, MLP", partial(pool, envs), mlp(), 128, 0.95, *how))
    passed.append(vector("ALE Pong, 8 envs, 4×84×84 bytes, small CNN", partial(pong, 8), cnn(), 32, 0.98, *how))
    return ended(passed)


if __name__ == "__main__":
    sys.exit(main())
