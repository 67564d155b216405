"""`swath bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from swath.cli.naming import require_env
from swath.cli.options import FILES, MEASUREMENT, MeasurementCount, MeasurementCounts


def bench(
    env: str | None = None,
    /,
    *,
    policy: Annotated[str | None, Parameter(group=MEASUREMENT, show_default=False)] = None,
    policy_factory: Annotated[str | None, Parameter(group=MEASUREMENT, show_default=False)] = None,
    backends: Annotated[str | None, Parameter(group=MEASUREMENT, show_default=False)] = None,
    workers: MeasurementCounts = None,
    envs: MeasurementCounts = None,
    batch: MeasurementCount = None,
    rounds: MeasurementCount = None,
    seconds: Annotated[float | None, Parameter(group=MEASUREMENT, show_default=False)] = None,
    seed: MeasurementCount = None,
    device: Annotated[str | None, Parameter(group=MEASUREMENT, show_default=False)] = None,
    threads: MeasurementCount = None,
    out: Annotated[Path | None, Parameter(group=FILES, show_default=False)] = None,
) -> int:
    """Measure how many frames per second an env and a policy make, in many settings, and name the best.

    Settings take turns. What counts is how fast each is beside the fastest of the same round, the median over the
    rounds. A turn draws batches and does nothing else with them; its first batch, for which workers are built, is not
    counted.

    Args:
        env: An id, such as CartPole-v1, or module:name, where name is a class or function that makes an env, or an id
            that importing the module registers; modules of the current folder are found, too.
        policy: Who acts: a folder of `swath train`, a checkpoint of one, or module:name. [default: random actions]
        policy_factory: Who makes who acts, in each worker: module:name.
        backends: Where workers live, of inline, process, thread and ray, with commas. [default: inline,process]
        workers: Numbers of workers, with commas; inline there is one. [default: 1,2 and so on, doubled, to the CPUs]
        envs: Numbers of envs that each worker steps together, with commas. [default: 1,4,8,16]
        batch: Frames of a batch, rounded up to whole steps of all envs. [default: 2048]
        rounds: Turns of each setting. [default: 3]
        seconds: Length of a turn. [default: 1]
        seed: Seed of envs and actions. [default: 0]
        device: Where the policy acts: cpu, cuda, cuda:1; on Ray it acts on the CPU. [default: cpu]
        threads: Threads for torch in this process; others have one. [default: 1]
        out: File for the figures, which ends in .csv or .json.
    """
    given = {
        "policy": policy,
        "policy_factory": policy_factory,
        "backends": backends,
        "workers": workers,
        "envs": envs,
        "batch": batch,
        "rounds": rounds,
        "seconds": seconds,
        "seed": seed,
        "device": device,
        "threads": threads,
    }
    name_of_env = require_env(env, "swath bench CartPole-v1")
    from swath.cli.bench import run_bench  # noqa: PLC0415  imports torch

    return run_bench(name_of_env, {name: value for name, value in given.items() if value is not None}, out)
