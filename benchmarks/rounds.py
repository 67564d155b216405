"""What all benchmarks share: contenders in turns, tables and verdicts, and other libraries in processes of their own.

    round 1   A ▇▇▇  B ▇▇▇  C ▇▇▇      contenders run in turn, so that whatever else the machine does hits all alike
    round 2   C ▇▇▇  B ▇▇▇  A ▇▇▇      A/B is the median over the rounds of A's rate by B's in the same round
    round 3   A ▇▇▇  …

Seconds are those of the clock on the wall. `BENCH_CLOCK=cpu` counts CPU seconds of this process instead.

What is printed is also written to the file that `SWATH_FIGURES` names, a line of JSON each; suite.py reads it.

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

KEPT_IN = "SWATH_FIGURES"
WARM_UP_S = 0.2
CPU = os.environ.get("BENCH_CLOCK") == "cpu"
clock = time.process_time if CPU else time.perf_counter

PEERS = Path(__file__).parent.parent / ".venv-peers"
PACKAGES = {
    "torchrl": ("ray==2.60.0", "torch==2.14.1", "torchrl==0.14.1", "tensordict==0.14.3", "gymnasium==1.4.0"),
    "sb3": ("stable_baselines3==2.9.2", "torch==2.14.1", "gymnasium==1.4.0"),
    "rllib": ("ray[rllib]==2.60.0", "torch==2.14.1"),
}
"""Other libraries, each in an environment of its own: their requirements may contradict ours."""


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A command line with `--quick`."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help="a short run: a look, not a measurement")
    return made


# ---- tables and verdicts


def table(title: str, columns: Mapping[str, str], rows: Mapping[str, Sequence[float | None]]) -> None:
    """Print a table, and keep it.

    Args:
        title: above it.
        columns: heading and format of each; the first is what a picture of the table shows.
        rows: name and numbers of each; `None` leaves a cell empty.
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
    what: str, got: float, spec: str = "", *, least: float | None = None, most: float | None = None, note: str = ""
) -> bool:
    """Print a figure, keep it, and return whether it is within its limits, if it has any.

    `spec` is its format; a unit may follow after a space: `".2f ms"`.
    """
    passed = (least is None or got >= least) and (most is None or got <= most)
    limits = [f"{sign} {limit:g}" for sign, limit in (("≥", least), ("≤", most)) if limit is not None]
    return _judged(what, _cell(got, spec), " and ".join(limits), note, passed=passed)


def claim(what: str, holds: bool, note: str = "") -> bool:
    """Print whether something holds, keep it, and return it."""
    return _judged(what, "yes" if holds else "no", "yes", note, passed=holds)


def ended(passed: Collection[bool]) -> int:
    """Print the outcome; return the exit code."""
    print(f"\n{'all targets reached' if all(passed) else 'a target was missed'}")
    return int(not all(passed))


def _judged(what: str, got: str, wanted: str, note: str, *, passed: bool) -> bool:
    words = f", target {wanted}: {'passed' if passed else 'MISSED'}" if wanted else ""
    print(f"  {what:58} {got:>8}{words}{f'  ({note})' if note else ''}", flush=True)
    _keep(kind="verdict", what=what, got=got, wanted=wanted, note=note, passed=passed)
    return passed


def _cell(number: float | None, spec: str) -> str:
    if number is None:
        return ""
    spec, _, unit = spec.partition(" ")
    return f"{number:{spec}} {unit}".strip()


def _keep(**fact: Any) -> None:
    if file := os.environ.get(KEPT_IN):
        with Path(file).open("a", encoding="utf-8") as kept:
            kept.write(json.dumps(fact) + "\n")


# ---- rounds


class Target(NamedTuple):
    """What one contender must reach, as a multiple of another; `least` is None where it is only reported."""

    contender: str
    reference: str
    least: float | None = None


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
    """Let contenders run in turn, print their median rates and the ratios; whether all targets are reached."""
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
    return verdict(f"{target.contender} × {target.reference}", median, ".2f", least=target.least, note=note)


# ---- other processes


class Peer:
    """A contender in a process of its own, which ends in `serve(run)`: seconds go in, rates come out, a line each.

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
        """End of input stops it."""
        self._process.communicate()


def serve(run: Run) -> None:
    """The other process's side of `Peer`."""
    for line in sys.stdin:
        print(run(float(line)), flush=True)


def python_of(library: str) -> Path:
    """The interpreter of a library's environment, which is installed at first use."""
    home, wanted = PEERS / library, "\n".join(PACKAGES[library])
    python, stamp = home / "bin" / "python", home / ".has-all"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {library} into {home}, to measure against", flush=True)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES[library]], check=True)
        stamp.write_text(wanted)
    return python


def begin_ray(address: str | None = None) -> str:
    """Start Ray on this machine, with more CPUs than it has so that everybody is placed, or join it; its address."""
    import ray

    warnings.filterwarnings("ignore", module="ray")
    os.environ["RAY_AUTH_MODE"] = "disabled"  # only this machine can reach it
    os.environ["OMP_NUM_THREADS"] = "1"
    if address:
        of_worker = {"py_executable": sys.executable, "env_vars": {"OMP_NUM_THREADS": "1"}}
        context = ray.init(address=address, log_to_driver=False, runtime_env=of_worker)
    else:
        settings = {"num_cpus": 16, "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        context = ray.init(**settings, _node_ip_address="127.0.0.1")
    return str(context.address_info["gcs_address"])
