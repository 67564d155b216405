"""`swath collect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from swath.cli.collect_config import CollectConfig
from swath.cli.failure import UsageError
from swath.cli.naming import require_env
from swath.cli.options import COLLECTION, FILES, CollectionCount
from swath.cli.places import placed


def collect(
    env: str | None = None,
    /,
    *,
    frames: CollectionCount = None,
    policy: Annotated[Path | None, Parameter(group=COLLECTION, show_default=False)] = None,
    greedy: Annotated[bool | None, Parameter(group=COLLECTION, show_default=False)] = None,
    max_episode_steps: CollectionCount = None,
    envs: CollectionCount = None,
    workers: CollectionCount = None,
    backend: Annotated[str | None, Parameter(group=COLLECTION, show_default=False)] = None,
    batch: CollectionCount = None,
    seed: CollectionCount = None,
    device: Annotated[str | None, Parameter(group=COLLECTION, show_default=False)] = None,
    threads: CollectionCount = None,
    out: Annotated[Path | None, Parameter(group=FILES, show_default=False)] = None,
) -> int:
    """Collect experience in an env and write it to disk.

    The same command goes on with what is there, until there are as many frames as asked for. Ctrl-C stops after the
    running batch. However it ends, what lies there are whole batches, and no frame comes twice.

    Args:
        env: An id, such as CartPole-v1, or module:name, where name is a class or function that makes an env, or an id
            that importing the module registers; modules of the current folder are found, too.
        frames: Frames to have in the end, exactly; a larger number goes on with what is there. [default: 100000]
        policy: Who acts: a folder of `swath train`, or a checkpoint of one. [default: random actions]
        greedy: Take the policy's most probable action. [default: --no-greedy, sample]
        max_episode_steps: Truncate episodes at this many steps. [default: where the env does so]
        envs: Envs that each worker steps together. [default: 8]
        workers: Workers that collect; every batch has a share of each. [default: 1]
        backend: Where workers live: inline (one, in this process), process, thread or ray.
            [default: inline for one worker, else process]
        batch: Most frames that are written at a time, and that a crash can cost. [default: 10000]
        seed: Root of all seeds. [default: 0]
        device: Where the policy is: cpu, cuda, cuda:1; on Ray it is on the CPU. [default: cpu]
        threads: Threads for torch; small networks are fastest with one. [default: 1]
        out: Where to: a path that ends in .parquet is a folder of Parquet files, any other one of memory-mapped
            TensorDicts.
    """
    given = {
        "env": env,
        "frames": frames,
        "policy": policy,
        "greedy": greedy,
        "max_episode_steps": max_episode_steps,
        "envs": envs,
        "workers": workers,
        "backend": backend,
        "batch": batch,
        "seed": seed,
        "device": device,
        "threads": threads,
    }
    require_env(env, "swath collect CartPole-v1 --out data/poles")
    if out is None:
        raise UsageError("collect: say where to with --out, such as --out data/poles or --out data/poles.parquet")
    config = CollectConfig(**placed({name: value for name, value in given.items() if value is not None}))
    from swath.cli.collect import run_collection  # noqa: PLC0415  imports torch

    return run_collection(config, out)
