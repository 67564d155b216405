"""TorchRL's `RayCollector` as a contender: `peer_torchrl.py sync|async ENVS STEPS ADDRESS`, run by its own Python.

Two workers, each with a `SerialEnv` of `GymEnv`s and a `ProbabilisticActor` with log-probabilities, as users write it.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial

import ray
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors.distributed import RayCollector
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import ProbabilisticActor

from rounds import serve, timed

WORKERS = 2


def actor() -> ProbabilisticActor:
    """4-64-64-2."""
    net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    return ProbabilisticActor(
        TensorDictModule(net, ["observation"], ["logits"]),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )


def main(order: str, envs: int, steps: int, address: str) -> None:
    """Serve rates for CartPole-v1."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ray.init(
        address=address,
        log_to_driver=False,
        runtime_env={"py_executable": sys.executable, "env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    make = partial(SerialEnv, envs, partial(GymEnv, "CartPole-v1", categorical_action_encoding=True))
    sync = order == "sync"
    collector = RayCollector(
        [make] * WORKERS,
        actor(),
        frames_per_batch=envs * steps * (WORKERS if sync else 1),
        total_frames=10**12,
        sync=sync,
        remote_configs={"num_cpus": 1, "num_gpus": 0, "memory": 10**9},
    )
    batches = iter(collector)

    def collect() -> int:
        return int(next(batches).numel())

    serve(timed(collect))
    collector.shutdown(shutdown_ray=False)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
