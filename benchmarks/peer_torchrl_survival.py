"""TorchRL's collectors with two workers: `peer_torchrl_survival.py ray|processes ENVS STEPS ADDRESS FOLDER`.

Run by its own Python; envs and policy as in peer_torchrl.py.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from typing import Any

import ray
import torch
from torchrl.collectors import MultiSyncCollector
from torchrl.collectors.distributed import RayCollector
from torchrl.envs import GymWrapper, SerialEnv

from peer_torchrl import WORKERS, actor
from survival_stage import make_env, tell


def wrapped(folder: str) -> Any:
    """One env."""
    return GymWrapper(make_env(folder), categorical_action_encoding=True)


def on_ray(makers: list[Any], frames: int, address: str) -> Any:
    """A collector whose workers are actors."""
    ray.init(
        address=address,
        log_to_driver=False,
        runtime_env={"py_executable": sys.executable, "env_vars": {"OMP_NUM_THREADS": "1"}},
    )
    needs = {"num_cpus": 1, "num_gpus": 0, "memory": 10**9}
    return RayCollector(
        makers, actor(), frames_per_batch=frames, total_frames=10**12, sync=True, remote_configs=needs
    )  # fmt: skip


def in_processes(makers: list[Any], frames: int) -> Any:
    """A collector whose workers are processes."""
    return MultiSyncCollector(makers, actor(), frames_per_batch=frames, total_frames=10**12, cat_results="stack")


def main(where: str, envs: int, steps: int, address: str, folder: str) -> None:
    """Tell what comes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    makers, frames = [partial(SerialEnv, envs, partial(wrapped, folder))] * WORKERS, WORKERS * envs * steps
    collector = on_ray(makers, frames, address) if where == "ray" else in_processes(makers, frames)
    batches = iter(collector)
    tell(lambda: int(next(batches).numel()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6])
