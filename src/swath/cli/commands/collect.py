"""`swath collect`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from swath.cli.failure import UsageError
from swath.cli.folder import find_checkpoint
from swath.cli.naming import env_named
from swath.cli.options import FILES, OPTIONS, Count, Given, GivenText, Text, placed, require_in_range, require_room

OF_THE_DATA = ("env", "greedy", "max_episode_steps", "envs", "workers", "backend", "seed")
"""Which options say what the data are, beside the policy's weights; the others say how many and how."""


@dataclass(frozen=True)
class CollectConfig:
    """The options of one collection, as the command explains them."""

    env: str
    frames: int
    policy: Path | None
    greedy: bool
    max_episode_steps: int | None
    envs: int
    workers: int
    backend: str
    batch: int
    seed: int
    device: str
    threads: int

    def settings(self, policy: str) -> dict[str, Any]:
        """What the data are collected with, as plain values.

        Args:
            policy: who acts.
        """
        return {**{name: getattr(self, name) for name in OF_THE_DATA}, "policy": policy}


def collect(
    env: str,
    /,
    *,
    frames: Count = 100_000,
    policy: Annotated[Path | None, Parameter(group=OPTIONS, show_default=False)] = None,
    greedy: Annotated[bool, Parameter(group=OPTIONS)] = False,
    max_episode_steps: Given = None,
    envs: Count = 8,
    workers: Count = 1,
    backend: GivenText = None,
    batch: Count = 10_000,
    seed: Count = 0,
    device: Text = "cpu",
    threads: Count = 1,
    out: Annotated[Path, Parameter(group=FILES)],
) -> int:
    """Collect experience in an env and write it to disk.

    The same command goes on with what is there, until there are as many frames as asked for. Ctrl-C stops after the
    running batch. However it ends, what lies there are whole batches, and no frame comes twice.

    Args:
        env: An id, such as CartPole-v1, or module:name, where name is a class or function that makes an env, or an id
            that importing the module registers; modules of the current folder are found, too.
        frames: Frames to have in the end, exactly; a larger number goes on with what is there.
        policy: Who acts: a folder of `swath train`, or a checkpoint of one. [default: random actions]
        greedy: Take the policy's most probable action.
        max_episode_steps: Truncate episodes at this many steps. [default: where the env does so]
        envs: Envs that each worker steps together.
        workers: Workers that collect; every batch has a share of each.
        backend: Where workers live: inline (one, in this process), process, thread or ray.
            [default: inline for one worker, else process]
        batch: Most frames that are written at a time, and that a crash can cost.
        seed: Root of all seeds.
        device: Where the policy is: cpu, cuda, cuda:1; on Ray it is on the CPU.
        threads: Threads for torch; small networks are fastest with one.
        out: Where to: a path that ends in .parquet is a folder of Parquet files, any other one of memory-mapped
            TensorDicts.
    """
    numbers = {"frames": frames, "max_episode_steps": max_episode_steps, "envs": envs, "workers": workers}
    require_in_range(**numbers, batch=batch, seed=seed, threads=threads)
    place = placed(workers, backend)
    require_room(workers, place)
    if policy is not None:
        find_checkpoint(policy)
    elif greedy:
        raise UsageError("--greedy is about the actions of a policy; name one with --policy")
    env_named(env)
    config = CollectConfig(
        env, frames, policy, greedy, max_episode_steps, envs, workers, place, batch, seed, device, threads
    )
    from swath.cli.collect import run_collection  # noqa: PLC0415  imports torch

    return run_collection(config, out)
