"""Peak memory of a draw: at most 1.3 times the batch, above what the envs, the policy and the libraries take.

How it is measured, on Linux: with envs, policy and libraries warm (a few steps by hand), the kernel's high-water mark
of this process is reset, a `Collector` is made of the same envs and policy and three batches are drawn, each released
before the next. The figure is that mark, less the memory in use before, over the bytes of a batch (each storage
counted once).
"""

from __future__ import annotations

import sys

import torch

import memory
from figures import ended, verdict
from policies import Sampler, cnn, quiet_threads
from pong import pong
from swath import Collector

LIMIT = 1.3
ENVS, STEPS = 8, 512


def size(batch) -> int:
    """Bytes of all storages of a batch."""
    storages = [tensor.untyped_storage() for tensor in batch.values(include_nested=True, leaves_only=True)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def warm(envs, policy: torch.nn.Module) -> None:
    """What any loop over these envs does, so that it is not counted."""
    obs, _ = envs.reset(seed=0)
    with torch.no_grad():
        for _ in range(20):
            action, _ = policy(torch.from_numpy(obs))
            obs, *_ = envs.step(action.numpy())


def main() -> int:
    """Print the figure; 1 if it is over the limit."""
    quiet_threads()
    policy, envs = Sampler(cnn()), pong(ENVS)
    warm(envs, policy)
    before = memory.begin()
    with Collector(envs, policy, frames_per_batch=ENVS * STEPS, total_frames=3 * ENVS * STEPS) as collector:
        batches = iter(collector)
        bytes_of_batch = max(size(next(batches)) for _ in range(3))
    share = (memory.peak() - before) / bytes_of_batch
    size_mb = bytes_of_batch / 1e6
    return ended([verdict(f"peak memory, in batches of {size_mb:.0f} MB", share, ".2f", most=LIMIT)])


if __name__ == "__main__":
    sys.exit(main())
