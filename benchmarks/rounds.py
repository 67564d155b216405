"""Interleaved rounds: contenders run in turn, so that whatever else the machine does hits all of them alike.

    round 1   A ▇▇▇  B ▇▇▇  C ▇▇▇
    round 2   C ▇▇▇  B ▇▇▇  A ▇▇▇      every slice lasts `seconds`; A/B is the median over the rounds of A's rate
    round 3   A ▇▇▇  …                 by B's in the same round

Seconds are those of the clock on the wall. `BENCH_CLOCK=cpu` counts the process's CPU seconds instead: what neighbours
on a busy machine take is then left out, and so is time spent waiting, of which a loop in one thread has none.

Standard library only: the children that stand for other libraries import it too.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from figures import table, verdict

Run = Callable[[float], float]
"""Work for about so many seconds; answer units done per second."""

WARM_UP = 0.2
CPU = os.environ.get("BENCH_CLOCK") == "cpu"
clock = time.process_time if CPU else time.perf_counter


def timed(work: Callable[[], int]) -> Run:
    """Repeat `work`, which answers how many units it did, until the time is up."""

    def run(seconds: float) -> float:
        done, began = 0, clock()
        while (elapsed := clock() - began) < seconds:
            done += work()
        return done / elapsed

    return run


def interleave(contenders: Mapping[str, Run], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Rates of each contender, one per round, after a short warm-up that is not counted."""
    for run in contenders.values():
        run(WARM_UP)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(rounds):
        for name in order:
            rates[name].append(contenders[name](seconds))
        order.reverse()
    return rates


def ratios(rates: Mapping[str, list[float]], name: str, reference: str) -> tuple[float, float, float]:
    """Quartiles of the ratios within each round; the one in the middle, the median, is the figure."""
    lower, median, upper = statistics.quantiles(
        (a / b for a, b in zip(rates[name], rates[reference], strict=True)), n=4
    )
    return lower, median, upper


@dataclass(frozen=True)
class Target:
    """What one contender must reach, as a multiple of another; None: it is only told."""

    contender: str
    reference: str
    least: float | None


def show(title: str, rates: Mapping[str, list[float]], unit: str) -> None:
    """Print the median of each contender."""
    medians = {name: statistics.median(column) for name, column in rates.items()}
    spec = f",.{0 if max(medians.values()) > 1000 else 1}f"
    table(title, {unit: spec}, {name: [median] for name, median in medians.items()})


def reached(rates: Mapping[str, list[float]], targets: Collection[Target]) -> bool:
    """Print the ratios; whether all that have a target reach it."""
    passed = []
    for target in targets:
        lower, median, upper = ratios(rates, target.contender, target.reference)
        what, note = f"{target.contender} × {target.reference}", f"half of the rounds {lower:.2f} to {upper:.2f}"
        passed.append(verdict(what, median, ".2f", least=target.least, note=note))
    return all(passed)


class Peer:
    """A contender in a child process of another virtual environment: a line with seconds in, a line with a rate out.

    Args:
        python: the interpreter of its environment.
        script: a file beside this one that ends in `serve(run)`.
        args: its command line.
    """

    def __init__(self, python: Path, script: str, *args: object) -> None:
        command = [python, Path(__file__).parent / script, *map(str, args)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, seconds: float) -> float:
        """Let the child work, and wait for its rate."""
        self.begin(seconds)
        return self.rate()

    def begin(self, seconds: float) -> None:
        """Let the child work."""
        assert self._child.stdin is not None
        self._child.stdin.write(f"{seconds}\n")
        self._child.stdin.flush()

    def rate(self) -> float:
        """Wait for what it says at the end."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._child.args} ended with {self._child.wait()} instead of an answer")
        return float(line)

    def close(self) -> None:
        """End of input tells the child to stop."""
        self._child.communicate()


class AtOnce:
    """Contenders in children that work at the same time, and know nothing of each other; their rates are added.

    Args:
        peers: the children.
    """

    def __init__(self, *peers: Peer) -> None:
        self._peers = peers

    def __call__(self, seconds: float) -> float:
        """Let all of them work, and wait for them."""
        for peer in self._peers:
            peer.begin(seconds)
        return sum(peer.rate() for peer in self._peers)

    def close(self) -> None:
        """Tell them to stop."""
        for peer in self._peers:
            peer.close()


def serve(run: Run) -> None:
    """The child's side of `Peer`."""
    for line in sys.stdin:
        print(run(float(line)), flush=True)
