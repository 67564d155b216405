"""TorchRL as a contender, written as its users write it; run by its own environment's Python.

peer_torchrl.py collect sync|async ENVS STEPS ADDRESS            rates of `RayCollector`, two workers, CartPole-v1
peer_torchrl.py survive ray|processes ENVS STEPS ADDRESS FOLDER  batches with their time, until it is ended
peer_torchrl.py evaluate ENVS EPISODES MAX_STEPS                 evaluations of CartPole-v1 per second
peer_torchrl.py uneven ENVS EPISODES                             mean return of an evaluation
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Evaluator, MultiSyncCollector
from torchrl.collectors.distributed import RayCollector
from torchrl.envs import GymEnv, GymWrapper, SerialEnv
from torchrl.modules import ProbabilisticActor

from peer_envs import Uneven, marked_env, report
from rounds import begin_ray, serve, timed

WORKERS, FRAMES = 2, 10**12


def cartpole() -> Any:
    """Return one env."""
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def wrapped(make: Any, *args: Any) -> Any:
    """Wrap an env that Gymnasium does not know by name."""
    return GymWrapper(make(*args), categorical_action_encoding=True)


def actor() -> ProbabilisticActor:
    """Return a 4-64-64-2 actor with log-probabilities."""
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    logits = TensorDictModule(net, ["observation"], ["logits"])
    return ProbabilisticActor(logits, in_keys=["logits"], distribution_class=Categorical, return_log_prob=True)


def on_ray(make: Any, envs: int, frames: int, *, sync: bool) -> Any:
    """Return a collector whose two workers are actors."""
    needs = {"num_cpus": 1, "num_gpus": 0, "memory": 10**9}
    makers = [partial(SerialEnv, envs, make)] * WORKERS
    return RayCollector(
        makers, actor(), frames_per_batch=frames, total_frames=FRAMES, sync=sync, remote_configs=needs
    )  # fmt: skip


def collect(order: str, envs: str, steps: str, address: str) -> None:
    """Serve rates."""
    begin_ray(address)
    sync = order == "sync"
    frames = int(envs) * int(steps) * (WORKERS if sync else 1)
    collector = on_ray(cartpole, int(envs), frames, sync=sync)
    batches = iter(collector)
    serve(timed(lambda: int(next(batches).numel())))
    collector.shutdown(shutdown_ray=False)


def survive(where: str, envs: str, steps: str, address: str, folder: str) -> None:
    """Report batches."""
    make, frames = partial(wrapped, marked_env, folder), WORKERS * int(envs) * int(steps)
    if where == "ray":
        begin_ray(address)
        collector = on_ray(make, int(envs), frames, sync=True)
    else:
        makers = [partial(SerialEnv, int(envs), make)] * WORKERS
        collector = MultiSyncCollector(
            makers, actor(), frames_per_batch=frames, total_frames=FRAMES, cat_results="stack"
        )  # fmt: skip
    batches = iter(collector)
    report(lambda: int(next(batches).numel()))


def evaluate(envs: str, episodes: str, max_steps: str) -> None:
    """Serve evaluations per second."""

    def upright(observation: torch.Tensor) -> torch.Tensor:
        return (observation[..., 2] + observation[..., 3] > 0).long()

    policy = TensorDictModule(upright, ["observation"], ["action"])
    env = SerialEnv(int(envs), cartpole)
    evaluator = Evaluator(env, policy, num_trajectories=int(episodes), max_steps=int(max_steps))
    serve(timed(lambda: len([evaluator.evaluate()])))
    evaluator.shutdown()


def uneven(envs: str, episodes: str) -> None:
    """Serve mean returns."""

    def left(observation: torch.Tensor) -> torch.Tensor:
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)

    make = partial(wrapped, Uneven)
    env = make() if envs == "1" else SerialEnv(int(envs), make)
    policy = TensorDictModule(left, ["observation"], ["action"])
    evaluator = Evaluator(env, policy, num_trajectories=int(episodes), max_steps=100)
    serve(lambda _: float(evaluator.evaluate()["eval/reward"]))
    evaluator.shutdown()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    {"collect": collect, "survive": survive, "evaluate": evaluate, "uneven": uneven}[sys.argv[1]](*sys.argv[2:])
