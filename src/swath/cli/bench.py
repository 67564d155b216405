"""`swath bench`: which setting makes most frames per second."""

from __future__ import annotations

import csv
import os
import time
from contextlib import closing, nullcontext
from math import ceil
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from swath.cli.collect import rows_of
from swath.cli.failure import FAILED, INTERRUPTED, OK, broken_off, preparing
from swath.cli.folder import require_folder
from swath.cli.naming import env_named
from swath.cli.parts import actor_named, collector_keywords
from swath.cli.words import INLINE, PROCESS, command_line, place_words
from swath.collectors import Collector
from swath.report.text import number
from swath.rollout.hosts.sources import Source, make_env
from swath.rollout.hosts.vector import is_vector_env
from swath.workers.create import backend

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Setting(NamedTuple):
    """One way to collect; `envs` is `None` for an env that is batched already."""

    place: str
    workers: int
    envs: int | None


def run_bench(  # noqa: PLR0917  the options of the command
    env: str,
    policy: str | None,
    backends: Sequence[str],
    workers: Sequence[int] | None,
    envs: Sequence[int] | None,
    batch: int,
    rounds: int,
    seconds: float,
    out: Path | None,
) -> int:
    """Measure, print the figures and the best setting, and return the exit code.

    Raises:
        UsageError: the env, the policy or the folder of `out` cannot be used; nothing was measured.
        BrokenOffError: the env raised when it was built.
    """
    console = Console(highlight=False, emoji=False, markup=False)
    torch.set_num_threads(1)
    with broken_off(env), preparing():
        make, actor = env_named(env), actor_named(policy, env)
        one = make_env(Source(make))
        one.close()
    if out is not None:
        require_folder(out.parent)
    sizes = (None,) if is_vector_env(one) else envs or (1, 4, 8, 16)
    counts = workers or [2**power for power in range(4) if 2**power <= (os.cpu_count() or 1)]
    settings = [
        Setting(place, count, size)
        for place in backends
        for count in ((1,) if place == INLINE else counts)
        for size in sizes
    ]
    rates: dict[Setting, list[float]] = {setting: [] for setting in settings}
    failures: dict[Setting, str] = {}
    code = OK
    kept = closing(backend(PROCESS)) if PROCESS in backends else nullcontext()  # what new processes are forked from
    try:
        with kept, console.status("") as status:
            for turn, setting in enumerate(settings * rounds):
                status.update(f"{turn + 1} of {len(settings) * rounds}: {_words(setting)}")
                if setting not in failures:
                    try:
                        rates[setting].append(_rate(make, actor, setting, batch, seconds))
                    except Exception as error:  # noqa: BLE001  what fails is said, the others go on
                        rates[setting], failures[setting] = [], f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        console.print("interrupted; the table has what is known")
        code = INTERRUPTED
    console.print(_table(rates, failures))
    for why in dict.fromkeys(failures.values()):
        console.print(f"failed: {why}; {command_line('doctor', env)} looks at the env alone", soft_wrap=True)
    if out is not None:
        _write(out, rates)
    best = max(rates, key=lambda setting: median(rates[setting] or [0.0]))
    if not rates[best]:
        return code or FAILED
    console.print(f"best: {_words(best)}, {number(round(median(rates[best])))} frames/s", soft_wrap=True)
    if best.envs is not None:
        words = ("--envs", best.envs, "--workers", best.workers, "--backend", best.place, "--batch", batch)
        console.print(f"to train so: {command_line('train', env, *words)}", soft_wrap=True)
    return code


def frames_per_second(collector: Collector, seconds: float) -> float:
    """Frames per second of the batches that are drawn in so many seconds, at least one, after a first one."""
    batches = iter(collector)
    next(batches)
    frames, began = 0, time.perf_counter()
    while not frames or time.perf_counter() - began < seconds:
        frames += len(rows_of(next(batches)))
    return frames / (time.perf_counter() - began)


def _rate(make: Any, actor: Any, setting: Setting, batch: int, seconds: float) -> float:
    size = setting.workers * (setting.envs or 1)
    collector = Collector(
        make,
        actor,
        frames_per_batch=ceil(batch / size) * size,
        envs_per_worker=setting.envs,
        seed=0,
        storing_device="cpu",
        **collector_keywords(setting.workers, setting.place, "cpu"),
    )
    with collector:
        return frames_per_second(collector, seconds)


def _words(setting: Setting) -> str:
    return place_words(setting.workers, setting.envs, setting.place)


def _table(rates: dict[Setting, list[float]], failures: dict[Setting, str]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("backend")
    for name in ("workers", "envs each", "frames/s", "lowest", "highest"):
        table.add_column(name, justify="right")
    for setting, seen in rates.items():
        figures = [number(round(rate)) for rate in (median(seen), min(seen), max(seen))] if seen else ["no turn"]
        place = (setting.place, f"{setting.workers}", "-" if setting.envs is None else f"{setting.envs}")
        table.add_row(*place, *(["failed"] if setting in failures else figures))
    return table


def _write(out: Path, rates: dict[Setting, list[float]]) -> None:
    with out.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow([*Setting._fields, "frames_per_second", "rounds"])
        rows.writerows([*setting, round(median(seen or [0.0]), 1), len(seen)] for setting, seen in rates.items())
