"""`swath bench`: find the setting with the most frames per second."""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from math import ceil
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from cyclopts import Parameter, Token

from swath.cli import options
from swath.cli.failure import OK, UsageError, command_line, run_errors, usage_errors
from swath.cli.naming import find_env

if TYPE_CHECKING:
    from swath.collectors.collector import Collector


Place = Literal["inline", "process", "thread", "ray"]
Setting = tuple[str, int, int | None]
"""Backend, workers, envs of each worker; `None` for an env that is batched already."""


def read_counts(_type: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    """Parse `8` or `1,4,8`."""
    counts = tuple(int(word) for token in tokens for word in token.value.split(","))
    if min(counts) < 1:
        raise ValueError("numbers must be at least 1")
    return counts


Counts = Annotated[
    tuple[int, ...],
    Parameter(group=options.OPTIONS, show_default=False, converter=read_counts, n_tokens=1, negative=""),
]


def bench(
    env: str,
    /,
    *,
    policy: options.Text | None = None,
    backends: Annotated[str, Parameter(group=options.OPTIONS)] = "inline,process",
    workers: Counts = (),
    envs: Counts = (1, 4, 8, 16),
    env_processes: options.Count | None = None,
    batch: options.Count = 2048,
    rounds: options.Count = 3,
    seconds: Annotated[float, Parameter(group=options.OPTIONS)] = 1.0,
    env_kwargs: options.KeyValues | None = None,
    out: Annotated[Path | None, Parameter(group=options.FILES, show_default=False)] = None,
) -> int:
    """Measure the frames per second of an env and a policy in many settings, and name the best setting.

    Settings take turns. A turn draws batches and does nothing else with them. Its first batch does not count, since
    workers start then.

    Args:
        env: An id, for example CartPole-v1, or module:name, where name is a class or function that makes an env, or
            an id that importing the module registers. The current folder may have the module.
        policy: The policy: a folder or a checkpoint of `swath train`, or module:name. [default: random actions]
        backends: Places of workers: inline, process, thread and ray, with commas.
        workers: Numbers of workers, with commas; inline has one. [default: 1,2,4,8, up to the CPUs]
        envs: Numbers of envs that each worker steps together, with commas. [default: 1,4,8,16]
        env_processes: Processes that each worker's envs live in, at most one per env. [default: none]
        batch: Frames of a batch, rounded up to full steps of all envs.
        rounds: Turns of each setting.
        seconds: Length of a turn.
        env_kwargs: Keywords of the env, for example --env-kwargs.map-name 8x8.
        out: File for the figures, in CSV.
    """
    places, kwargs = backends.split(","), options.parse_items(env_kwargs or {})
    if not {*places} <= {*get_args(Place)}:
        raise UsageError(f"--backends {backends} must be of {', '.join(get_args(Place))}, with commas between")
    make, console = find_env(env, kwargs), options.start_console()
    import torch

    from swath.cli.parts import describe_speed, find_policy, make_collector
    from swath.rollout.hosts.sources import Source, make_env
    from swath.rollout.hosts.vector import is_vector_env
    from swath.workers.create import backend as backend_named

    torch.set_num_threads(1)
    with run_errors(env), usage_errors():
        actor, instance = find_policy(policy, env, kwargs), make_env(Source(make))
        instance.close()
        if out is not None:
            out.touch()
    counts = workers or [number for number in (1, 2, 4, 8) if number <= (os.cpu_count() or 1)]
    settings = [
        (place, count, size)
        for place in places
        for count in ((1,) if place == options.INLINE else counts)
        for size in ((None,) if is_vector_env(instance) else envs)
    ]
    rates: dict[Setting, list[float]] = {setting: [] for setting in settings}
    plans: dict[str, str] = {}
    # All settings fork their processes from one server.
    fork_server = closing(backend_named(options.PROCESS)) if options.PROCESS in places else nullcontext()
    with run_errors(env), fork_server, console.status("") as status:
        for turn, setting in enumerate(settings * rounds):
            status.update(f"{turn + 1} of {len(settings) * rounds}: {options.describe_workers(*setting)}")
            config, envs_per_worker = _config_of(setting, env, kwargs, env_processes), setting[-1]
            step = config.workers * config.envs
            frames = ceil(batch / step) * step
            with make_collector(config, actor, frames_per_batch=frames, envs_per_worker=envs_per_worker) as collector:
                rates[setting].append(frames_per_second(collector, seconds))
                plans["env and policy"] = collector.stats().get("plan", "")
    table = options.make_table("backend", "workers", "envs each", "frames/s", "lowest", "highest")
    for setting, samples in rates.items():
        cells = ["-" if value is None else str(value) for value in setting]
        table.add_row(*cells, *(f"{rate:,.0f}" for rate in (median(samples), min(samples), max(samples))))
    console.print(table)
    console.print(describe_speed(plans), soft_wrap=True)
    if out is not None:
        rows = [[*setting, round(median(samples), 1), len(samples)] for setting, samples in rates.items()]
        with out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["backend", "workers", "envs", "frames_per_second", "rounds"], *rows])
    backend, count, size = best = max(rates, key=lambda setting: median(rates[setting]))
    console.print(f"best: {options.describe_workers(*best)}, {median(rates[best]):,.0f} frames/s", soft_wrap=True)
    if size is not None:
        arguments: tuple[Any, ...] = "--envs", size, "--workers", count, "--backend", backend, "--batch", batch
        if (processes := _config_of(best, env, kwargs, env_processes).env_processes) is not None:
            arguments = (*arguments, "--env-processes", processes)
        console.print(f"to train so: {command_line('train', env, *arguments)}", soft_wrap=True)
    return OK


def frames_per_second(collector: Collector, seconds: float) -> float:
    """Return the frames per second of drawing batches for some seconds, without the first batch."""
    from swath.collectors.delivery import count_frames

    batches = iter(collector)
    next(batches)
    frames, began = 0, time.perf_counter()
    while not frames or time.perf_counter() - began < seconds:
        frames += count_frames(next(batches))
    return frames / (time.perf_counter() - began)


def _config_of(
    setting: Setting, env: str, kwargs: dict[str, Any], env_processes: int | None
) -> options.CollectionConfig:
    backend, workers, envs = setting
    if env_processes is not None and envs is not None:
        env_processes = min(env_processes, envs)
    return options.CollectionConfig(
        env, envs=envs or 1, workers=workers, backend=backend, env_kwargs=kwargs, env_processes=env_processes
    )
