"""Measure what each library does after one of its two workers is killed.

    python benchmarks/survival.py [--quick]      # needs swath[ray]; the peers' environments are made at first use

CartPole-v1, two workers of eight envs, 128 steps each a batch, synchronous; each library with the policy of its users
and its defaults. One after another: it collects, SIGKILL for one of its workers, and it goes on, or does not. All are
on one Ray cluster on this machine. Ends with 1 if a batch of ours is not whole, or no batch follows.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from peer_envs import BATCH, RAISED, marked_env, report
from rounds import begin_ray, claim, course, ended, parser, python_of, table, verdict

WORKERS, ENVS, STEPS = 2, 8, 128
PROMISED = WORKERS * ENVS * STEPS
UP_WITHIN_S, BIN_S = 180.0, 0.5
OURS = {"RayCollector": "ray", "MultiSyncCollector": "processes"}


def commands() -> dict[str, list[object]]:
    """Return our commands and the peers'; number of envs, steps, address and folder follow."""
    torchrl = [python_of("torchrl"), "peer_torchrl.py", "survive"]
    return {
        **{name: [sys.executable, "survival.py", "--ours", where] for name, where in OURS.items()},
        "TorchRL's RayCollector": [*torchrl, "ray"],
        "TorchRL's MultiSyncCollector": [*torchrl, "processes"],
        "RLlib's EnvRunnerGroup": [python_of("rllib"), "peer_rllib.py", "survive"],
    }


@dataclass
class Watched:
    """The reports of a library: times and frames of batches, and the error that ended it."""

    batches: list[tuple[float, int]] = field(default_factory=list)
    raised: str = ""
    begin: float = 0.0
    killed: float = 0.0
    end: float = 0.0

    def read(self, lines: Iterator[str]) -> None:
        """Read reports until the process ends."""
        for line in lines:
            if line.startswith(RAISED):
                self.raised = line.split()[-1]
            elif line.startswith(BATCH):
                at, frames = line.split()[-2:]
                self.batches.append((float(at), int(frames)))

    def rate(self, begin: float, end: float) -> float:
        """Return the frames per second between two moments."""
        return sum(frames for at, frames in self.batches if begin <= at < end) / (end - begin)

    @property
    def last_rate(self) -> float:
        """Return the frames per second in the last third after the kill."""
        return self.rate(self.end - (self.end - self.killed) / 3, self.end)

    @property
    def smallest_batch(self) -> float:
        """Return the smallest batch after the kill, as a share of the promised size."""
        return min((frames for at, frames in self.batches if at >= self.killed), default=0) / PROMISED

    @property
    def longest_wait(self) -> float:
        """Return the longest time between two batches after the kill, in seconds."""
        moments = [self.killed, *(at for at, _ in self.batches if self.killed <= at < self.end), self.end]
        return max(later - earlier for earlier, later in pairwise(moments))

    def curve(self) -> list[tuple[float, float]]:
        """Return points of seconds after the kill and frames per second."""
        starts = [self.begin + number * BIN_S for number in range(round((self.end - self.begin) / BIN_S))]
        return [(start + BIN_S / 2 - self.killed, self.rate(start, start + BIN_S)) for start in starts]


@contextmanager
def collecting(command: list[object], address: str, folder: str) -> Iterator[tuple[Watched, int]]:
    """Let a library collect, and yield its reports and its process."""
    python, script, *args = command
    full = [python, Path(__file__).parent / str(script), *args, ENVS, STEPS, address, folder]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        list(map(str, full)), stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    watched = Watched()
    threading.Thread(target=watched.read, args=(child.stdout,), daemon=True).start()
    try:
        yield watched, child.pid
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def watch(name: str, command: list[object], address: str, before: float, after: float) -> Watched:
    """Wait for three batches, watch, kill a worker, and watch again."""
    with tempfile.TemporaryDirectory() as folder, collecting(command, address, folder) as (watched, driver):
        until = time.monotonic() + UP_WITHIN_S
        while len(watched.batches) < 3:
            if watched.raised or time.monotonic() > until:
                raise RuntimeError(f"{name} does not collect: {watched.raised or f'nothing in {UP_WITHIN_S:g} s'}")
            time.sleep(0.1)
        watched.begin = time.monotonic()
        time.sleep(before)
        makers = {int(file.name) for file in Path(folder).iterdir()} - {driver}
        os.kill(max(pid for pid in makers if Path(f"/proc/{pid}").exists()), signal.SIGKILL)
        watched.killed = time.monotonic()
        time.sleep(after)
        watched.end = watched.killed + after
    return watched


def collect_ours(where: str, envs: str, steps: str, address: str, folder: str) -> None:
    """Collect with one of our collectors."""
    from policies import lean_actor, quiet_threads
    from swath import MultiSyncCollector, RayCollector

    quiet_threads()
    logging.getLogger("swath").setLevel(logging.ERROR)
    if where == "ray":
        begin_ray(address)
    make = [partial(marked_env, folder)] * WORKERS
    frames = WORKERS * int(envs) * int(steps)
    kind = RayCollector if where == "ray" else MultiSyncCollector
    with kind(make, lean_actor(), frames_per_batch=frames, envs_per_worker=int(envs)) as collector:
        report(lambda: collector.next().numel())


def main() -> int:
    """Watch all libraries; print a table and the longest waits, and keep curves."""
    command_line = parser(__doc__)
    command_line.add_argument("--ours", nargs=5, help=argparse.SUPPRESS)
    options = command_line.parse_args()
    if options.ours:
        collect_ours(*options.ours)
    before, after = (2.0, 6.0) if options.quick else (5.0, 10.0)
    every, address = commands(), begin_ray()
    libraries = {name: watch(name, command, address, before, after) for name, command in every.items()}
    columns = {"frames/s before": ",.0f", "frames/s in the end": ",.0f", "least batch": ".0%"}
    rows = {
        name: [library.rate(library.begin, library.killed), library.last_rate, library.smallest_batch]
        for name, library in libraries.items()
    }
    table("One of two workers is killed", columns, rows)
    course(
        "One of two workers is killed at 0 s",
        "frames/s",
        {name: library.curve() for name, library in libraries.items()},
    )
    for name, library in libraries.items():
        silent = "" if library.last_rate else "until it was ended"
        note = f"then it raised {library.raised}" if library.raised else silent
        verdict(f"{name}: longest time without a batch", library.longest_wait, ".2f s", note=note)
    is_whole = {name: libraries[name].last_rate > 0 and libraries[name].smallest_batch == 1 for name in OURS}
    return ended([claim(f"{name}: goes on, every batch whole", holds) for name, holds in is_whole.items()])


if __name__ == "__main__":
    sys.exit(main())
