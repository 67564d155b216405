"""`swath bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from swath.cli.naming import env_named
from swath.cli.options import FILES, OPTIONS, Count, Counts, GivenText, Text, backend_named, require_in_range


def bench(
    env: str,
    /,
    *,
    policy: GivenText = None,
    backends: Text = "inline,process",
    workers: Counts = None,
    envs: Counts = None,
    batch: Count = 2048,
    rounds: Count = 3,
    seconds: Annotated[float, Parameter(group=OPTIONS)] = 1.0,
    out: Annotated[Path | None, Parameter(group=FILES, show_default=False)] = None,
) -> int:
    """Measure how many frames per second an env and a policy make, in many settings, and name the best.

    Settings take turns. A turn draws batches and does nothing else with them; its first batch, for which workers are
    built, is not counted.

    Args:
        env: An id, such as CartPole-v1, or module:name, where name is a class or function that makes an env, or an id
            that importing the module registers; modules of the current folder are found, too.
        policy: Who acts: a folder of `swath train`, a checkpoint of one, or module:name. [default: random actions]
        backends: Where workers live, of inline, process, thread and ray, with commas.
        workers: Numbers of workers, with commas; inline there is one. [default: 1,2,4,8, up to the CPUs]
        envs: Numbers of envs that each worker steps together, with commas. [default: 1,4,8,16]
        batch: Frames of a batch, rounded up to whole steps of all envs.
        rounds: Turns of each setting.
        seconds: Length of a turn.
        out: File for the figures, in CSV.
    """
    require_in_range(batch=batch, rounds=rounds)
    places = [backend_named(name.strip()) for name in backends.split(",")]
    env_named(env)
    from swath.cli.bench import run_bench  # noqa: PLC0415  imports torch

    return run_bench(env, policy, places, workers, envs, batch, rounds, seconds, out)
