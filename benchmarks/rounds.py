"""Shared code of all benchmarks: contenders in turns, tables and verdicts, other libraries in separate processes.

    round 1   A ▇▇▇  B ▇▇▇  C ▇▇▇      contenders run in turn, so that other work on the machine slows all of them
    round 2   C ▇▇▇  B ▇▇▇  A ▇▇▇      A/B is the median over the rounds of A's rate by B's in the same round
    round 3   A ▇▇▇  …

Seconds are wall-clock seconds; with `BENCH_CLOCK=cpu`, CPU seconds of this process.

Printed figures are also written to the file named by `SWATH_FIGURES`, a line of JSON each; suite.py reads it.

Standard library only: the processes of other libraries import this module too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Run = Callable[[float], float]
"""Work for about so many seconds; return units done per second."""

FIGURES_VARIABLE = "SWATH_FIGURES"
WARM_UP_S, SHUTDOWN_LIMIT_S = 0.2, 30.0
CPU = os.environ.get("BENCH_CLOCK") == "cpu"
clock = time.process_time if CPU else time.perf_counter

PEERS = Path(__file__).parent.parent / ".venv-peers"
PACKAGES = {
    "torchrl": ("ray==2.60.0", "torch==2.14.1", "torchrl==0.14.1", "tensordict==0.14.3", "gymnasium==1.4.0"),
    "sb3": (
        "stable_baselines3==2.9.2",
        "torch==2.14.1",
        "gymnasium[mujoco]==1.4.0",
        "ale_py==0.12.1",
        "opencv-python-headless",
    ),
    "rllib": ("ray[rllib]==2.60.0", "torch==2.14.1"),
}
"""Other libraries, each in a separate environment: their requirements may contradict ours."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a command line with `--quick`."""
    command_line = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    command_line.add_argument("--quick", action="store_true", help="a short run: a look, not a measurement")
    return command_line


# ---- tables and verdicts


def table(title: str, columns: Mapping[str, str], rows: Mapping[str, Sequence[float | None]]) -> None:
    """Print a table, and keep it.

    Args:
        title: above it.
        columns: headings and formats; a picture of the table shows the first.
        rows: names and numbers; `None` leaves a cell empty.
    """
    shown = {name: [_cell(*pair) for pair in zip(row, columns.values(), strict=True)] for name, row in rows.items()}
    widths = [max(map(len, cells)) for cells in zip(columns, *shown.values(), strict=True)]
    first = max(34, *map(len, shown))
    print(f"\n{title}")
    for name, cells in {"": list(columns), **shown}.items():
        print(f"  {name:{first}} " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
    print(end="", flush=True)
    bars = {name: row[0] for name, row in rows.items()}
    _keep(kind="table", title=title, columns=list(columns), rows=shown, bars=bars)


def course(title: str, unit: str, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Keep curves for a picture: seconds and a figure."""
    _keep(kind="course", title=title, unit=unit, lines=lines)


def verdict(
    title: str,
    got: float,
    spec: str = "",
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    note: str = "",
) -> bool:
    """Print a figure, keep it, and return whether it is within its limits, if it has any.

    `spec` is its format; a unit may follow after a space: `".2f ms"`.
    """
    passed = (minimum is None or got >= minimum) and (maximum is None or got <= maximum)
    limits = [f"{sign} {limit:g}" for sign, limit in (("≥", minimum), ("≤", maximum)) if limit is not None]
    return _print_verdict(title, _cell(got, spec), " and ".join(limits), note, passed=passed)


def claim(title: str, holds: bool, note: str = "") -> bool:
    """Print whether something holds, keep it, and return it."""
    return _print_verdict(title, "yes" if holds else "no", "yes", note, passed=holds)


def ended(passed: Collection[bool]) -> int:
    """Print the outcome; return the exit code."""
    print(f"\n{'all targets reached' if all(passed) else 'a target was missed'}")
    return int(not all(passed))


def _print_verdict(title: str, got: str, wanted: str, note: str, *, passed: bool) -> bool:
    words = f", target {wanted}: {'passed' if passed else 'MISSED'}" if wanted else ""
    print(f"  {title:58} {got:>8}{words}{f'  ({note})' if note else ''}", flush=True)
    _keep(kind="verdict", what=title, got=got, wanted=wanted, note=note, passed=passed)
    return passed


def _cell(number: float | None, spec: str) -> str:
    if number is None:
        return ""
    spec, _, unit = spec.partition(" ")
    return f"{number:{spec}} {unit}".strip()


def _keep(**fact: Any) -> None:
    if file := os.environ.get(FIGURES_VARIABLE):
        with Path(file).open("a", encoding="utf-8") as kept:
            kept.write(json.dumps(fact) + "\n")


# ---- rounds


class Target(NamedTuple):
    """The rate of one contender as a multiple of another, and its minimum; `None` if the ratio is only reported."""

    contender: str
    reference: str
    minimum: float | None = None


def timed(work: Callable[[], int]) -> Run:
    """Repeat `work`, which returns how many units it did, until the time is up."""

    def run(seconds: float) -> float:
        done, began = 0, clock()
        while (elapsed := clock() - began) < seconds:
            done += work()
        return done / elapsed

    return run


def drawing(collector: Any) -> Run:
    """Draw batches of any collector, and count their valid frames."""
    batches = iter(collector)

    def draw() -> int:
        batch = next(batches)
        mask = batch.get(("collector", "mask"), None)
        return int(batch.numel() if mask is None else mask.sum())

    return timed(draw)


def compare(
    title: str,
    contenders: Mapping[str, Run],
    targets: Collection[Target],
    rounds: int,
    seconds: float,
    unit: str = "frames/s",
) -> bool:
    """Run contenders in turn, print their median rates and ratios, and return whether all targets are reached."""
    for run in contenders.values():
        run(WARM_UP_S)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(rounds):
        for name in order:
            rates[name].append(contenders[name](seconds))
        order.reverse()
    medians = {name: [statistics.median(column)] for name, column in rates.items()}
    table(title, {unit: f",.{0 if max(medians.values()) > [1000] else 1}f"}, medians)
    return sum(not _ratio(target, rates) for target in targets) == 0


def _ratio(target: Target, rates: Mapping[str, list[float]]) -> bool:
    pairs = zip(rates[target.contender], rates[target.reference], strict=True)
    lower, median, upper = statistics.quantiles((a / b for a, b in pairs), n=4)
    note = f"{lower:.2f}–{upper:.2f}"  # half of the rounds
    return verdict(f"{target.contender} × {target.reference}", median, ".2f", minimum=target.minimum, note=note)


# ---- other processes


class Peer:
    """A contender in another process, which ends in `serve(run)`: it reads seconds and writes rates, a line each.

    Args:
        command: an interpreter, a script in this folder, its arguments.
    """

    def __init__(self, *command: object) -> None:
        python, script, *args = command
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).parent / str(script)), *map(str, args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, seconds: float) -> float:
        """Work, and wait for the rate."""
        self.begin(seconds)
        return self.rate()

    def begin(self, seconds: float) -> None:
        """Start working."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def rate(self) -> float:
        """Wait for the rate."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()} instead of a rate")
        return float(line)

    def close(self) -> None:
        """Stop the process by ending its input; kill one that does not end, as TorchRL's collectors sometimes."""
        try:
            self._process.communicate(timeout=SHUTDOWN_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def serve(run: Run) -> None:
    """Serve rates to the `Peer` of this process."""
    for line in sys.stdin:
        print(run(float(line)), flush=True)


def python_of(library: str) -> Path:
    """Return the interpreter of a library's environment; install the environment at first use."""
    home, wanted = PEERS / library, "\n".join(PACKAGES[library])
    python, stamp = home / "bin" / "python", home / ".has-all"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {library} into {home}, to measure against", flush=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES[library]], check=True)
        stamp.write_text(wanted)
    return python


def begin_ray(address: str | None = None) -> str:
    """Join Ray, or start it with more CPUs than this machine has, to place all workers; return its address."""
    import ray

    warnings.filterwarnings("ignore", module="ray")
    os.environ["RAY_AUTH_MODE"] = "disabled"  # only this machine can reach it
    os.environ["OMP_NUM_THREADS"] = "1"
    if address:
        worker_env = {"py_executable": sys.executable, "env_vars": {"OMP_NUM_THREADS": "1"}}
        context = ray.init(address=address, log_to_driver=False, runtime_env=worker_env)
    else:
        settings = {"num_cpus": 16, "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        context = ray.init(**settings, _node_ip_address="127.0.0.1")
    return str(context.address_info["gcs_address"])
