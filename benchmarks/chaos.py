"""Check that every batch is whole while workers are killed, hang and raise, and measure the remaining speed.

    python benchmarks/chaos.py [--backend process ray] [--order sync async] [--seconds 60] [--quick]

Four workers with four counting envs each, whose observations say which env, episode and step they are of; a step takes
60 µs of CPU, a fragment is 64 steps. For a minute: SIGKILL for a random worker every ten seconds, one worker that hangs
once (it is late after three seconds) and one env that raises every 1,000 steps. An undisturbed collector takes turns
with it, five seconds after every ten. Then one SIGKILL every second, with the default `Restarts`, until these are used
up or half a minute is over. Ends with 1 if a frame is missing, twice there or mixed with another, if losses are not
counted, if recovery takes 5 s, or if less than 70 % of the undisturbed rate is left.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from policies import lean_actor, quiet_threads
from rounds import begin_ray, claim, ended, parser, verdict
from swath import MultiAsyncCollector, MultiSyncCollector, RayCollector, Restarts
from swath.errors import FleetFailed
from swath.testing import Counting, CountingEnv, Fault, Script, check_lives

COUNTING = Counting(script=Script(lengths=(200, 500, 100, 300)))
WORKERS, ENVS, STEPS = 4, 4, 64
COST_S = 50e-6
"""CPU time that a step takes besides the counting, which is another 10 µs."""
HANGING, RAISING, LOOK_EVERY = 1, 2, 50
KILL_EVERY_S, KILL_AT_S, HANG_AT_S, LATE_S = 10.0, 2.0, 4.0, 3.0
LEAST_SHARE, MOST_RECOVERY_S = 0.7, 5.0
MANY = Restarts(max_per_worker=100, backoff_s=0.1)
"""More restarts than the run needs, whichever worker is killed."""


class Line(NamedTuple):
    """A worker, its process, and the time of its first frame or of its kill."""

    worker: int
    pid: int
    at: float


@dataclass(frozen=True)
class Diary:
    """Notes of workers in an empty folder; all processes of this machine have the same clock."""

    home: Path

    def write(self, worker: int) -> None:
        """Note the first frame of this process."""
        with (self.home / "diary").open("a") as file:
            file.write(f"{worker} {os.getpid()} {time.monotonic()}\n")

    def lines(self) -> list[Line]:
        """Return all notes in order."""
        with suppress(FileNotFoundError):
            rows = (row.split() for row in (self.home / "diary").read_text().splitlines())
            return [Line(int(worker), int(pid), float(at)) for worker, pid, at in rows]
        return []

    def hang_file(self, worker: int) -> Path:
        """Return the file that makes a worker hang; the worker removes it first."""
        return self.home / f"hang-{worker}"


class Toiling(CountingEnv):
    """A slow counting env; the first one of a worker writes the diary, and hangs on request."""

    def __init__(
        self, worker: int, number: int, diary: Diary, faults: tuple[Fault, ...] = (), counting: Counting = COUNTING
    ) -> None:
        super().__init__(worker * ENVS + number, counting, faults)
        self._worker, self._diary, self._first, self._n_steps = worker, diary, number == 0, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step and use CPU time."""
        until = time.thread_time() + COST_S
        result = super().step(action)
        while time.thread_time() < until:
            pass
        self._n_steps += 1
        if self._first and self._n_steps == 1:
            self._diary.write(self._worker)
        if self._first and self._n_steps % LOOK_EVERY == 0:
            with suppress(FileNotFoundError):
                self._diary.hang_file(self._worker).unlink()
                threading.Event().wait()
        return result


@dataclass
class Source:
    """Builds the envs of one worker, with faults in the last; every life begins with the first env."""

    worker: int
    diary: Diary
    faults: tuple[Fault, ...] = ()
    n_built: int = 0

    def __call__(self) -> Toiling:
        """Build the next env."""
        number, self.n_built = self.n_built, self.n_built + 1
        return Toiling(self.worker, number, self.diary, self.faults if number == ENVS - 1 else ())


@dataclass
class Killer:
    """Kills random processes of workers, in another thread.

    Attributes:
        diary: has the process of each worker.
        killed: workers, with the time.
    """

    diary: Diary
    killed: list[Line] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def recoveries(self) -> list[float]:
        """Return the seconds from each kill to the first frame of the worker's next life, if that was noted."""
        lines = self.diary.lines()
        later = [
            [line.at for line in lines if line.worker == kill.worker and line.at > kill.at] for kill in self.killed
        ]
        return [at[0] - kill.at for kill, at in zip(self.killed, later, strict=True) if at]

    @contextmanager
    def at_work(self, first: float, every: float, spare: int | None = None) -> Iterator[None]:
        """Kill after `first` seconds, and again after `every` more; never the worker `spare`."""
        over = threading.Event()

        def work() -> None:
            due = time.monotonic() + first
            while not over.wait(min(due - time.monotonic(), threading.TIMEOUT_MAX)):
                self._kill_one(spare)
                due += every

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _kill_one(self, spare: int | None) -> None:
        """Kill a worker that is known to live, if there is one."""
        last = {line.worker: line.pid for line in self.diary.lines() if line.worker != spare}
        dead = {kill.pid for kill in self.killed}
        living = [(worker, pid) for worker, pid in last.items() if pid not in dead]
        self.chance.shuffle(living)
        for worker, pid in living:
            at = time.monotonic()
            with suppress(ProcessLookupError):  # it hung, and was killed by its collector
                os.kill(pid, signal.SIGKILL)
                self.killed.append(Line(worker, pid, at))
                return


@dataclass
class Drawn:
    """Batches that were drawn, and the time for them.

    Attributes:
        draw_one: draws a batch and returns its frames.
        frames: number of frames.
        timed_frames: number of frames of timed draws.
        seconds: duration of timed draws.
    """

    draw_one: Callable[[], int]
    frames: int = 0
    timed_frames: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Return frames per second."""
        return self.timed_frames / self.seconds

    def draw_until(self, is_enough: Callable[[], bool]) -> None:
        """Draw until the condition holds."""
        while not is_enough():
            self.frames += self.draw_one()

    def draw_for(self, seconds: float) -> None:
        """Draw for this time, and add to the timed frames."""
        began, frames = time.monotonic(), self.frames
        self.draw_until(lambda: time.monotonic() - began >= seconds)
        self.timed_frames += self.frames - frames
        self.seconds += time.monotonic() - began


def set_up(options: argparse.Namespace) -> None:
    """Set one thread per process and no logs; start Ray if it is needed."""
    quiet_threads()
    logging.getLogger("swath").setLevel(logging.ERROR)
    os.environ["OMP_NUM_THREADS"] = "1"
    if "ray" in options.backend:
        begin_ray()


def recovered(scene: object, recoveries: list[float]) -> bool:
    """Print how soon killed workers were replaced, and return whether that was soon enough."""
    note, title = f"at most {max(recoveries, default=0):.2f} s", f"{scene}: kill to the next life's first frame"
    return not recoveries or verdict(title, statistics.median(recoveries), ".2f s", maximum=MOST_RECOVERY_S, note=note)


@dataclass(frozen=True)
class Scene:
    """A backend, the order of collection, and a duration."""

    backend: str
    order: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.backend}, {self.order}"

    @contextmanager
    def drawn(self, restarts: Restarts, *, raising: bool) -> Iterator[tuple[Any, Drawn, Diary]]:
        """Yield a running collector, its draws and its workers' diary; check the batches at the end."""
        batches: list[Any] = []
        with ExitStack() as stack:
            diary = Diary(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            collector = stack.enter_context(self.collector(diary, restarts, raising=raising))

            def draw_one() -> int:
                batches.append(collector.next())
                return batches[-1].numel()

            drawn = Drawn(draw_one)
            drawn.draw_until(lambda: len(diary.lines()) == WORKERS)
            yield collector, drawn, diary
        assert {batch.shape for batch in batches} == {batches[0].shape}, "batches are of different sizes"
        check_lives(batches, COUNTING)

    def collector(self, diary: Diary, restarts: Restarts, *, raising: bool) -> Any:
        """Return a collector whose workers write the diary."""
        faults = (Fault("raise", every=1000),) if raising else ()
        sources = [Source(worker, diary, faults if worker == RAISING else ()) for worker in range(WORKERS)]
        kind: Callable[..., Any] = {"sync": MultiSyncCollector, "async": MultiAsyncCollector}[self.order]
        if self.backend == "ray":
            kind = partial(RayCollector, sync=self.order == "sync", remote_configs={"num_cpus": 1})
        return kind(
            sources,
            lean_actor(3, 3),
            frames_per_batch=(WORKERS if self.order == "sync" else 1) * ENVS * STEPS,
            envs_per_worker=ENVS,
            restarts=restarts,
            fragment_timeout_s=LATE_S,
            on_env_error="reset",
        )


def disturb(scene: Scene) -> bool:
    """Kill a worker every ten seconds, let one hang and an env raise; return whether the targets are reached."""
    with scene.drawn(MANY, raising=True) as (ours, drawn, diary), scene.drawn(MANY, raising=False) as (_, quiet, _):
        killer = Killer(diary)
        for turn in range(max(1, round(scene.seconds / KILL_EVERY_S))):
            with killer.at_work(KILL_AT_S, inf, spare=HANGING if turn == 0 else None):
                drawn.draw_for(HANG_AT_S)
                if turn == 0:
                    diary.hang_file(HANGING).touch()
                drawn.draw_for(KILL_EVERY_S - HANG_AT_S)
            quiet.draw_for(KILL_EVERY_S / 2)
        drawn.draw_until(lambda: len(killer.recoveries) == len(killer.killed))
        stats, recoveries = ours.stats(), killer.recoveries
    deaths = len(killer.killed) + stats["late"]
    exact = {"restarts": deaths, "frames": drawn.frames, "workers_lost": 0, "late": 1}
    wrong = [f"{name} is {stats[name]}, not {wanted}" for name, wanted in exact.items() if stats[name] != wanted]
    wrong += [] if stats["env_errors"] else ["no env error is counted"]
    wrong += [] if 0 < stats["fragments_lost"] <= deaths else [f"{stats['fragments_lost']} fragments are lost"]
    note = f"{drawn.rate:,.0f} of {quiet.rate:,.0f} frames/s"
    share = drawn.rate / quiet.rate
    return all(
        [
            print_counts(scene, stats, wrong),
            recovered(scene, recoveries),
            verdict(f"{scene}: share of the undisturbed rate", share, ".0%", minimum=LEAST_SHARE, note=note),
        ]
    )


def hunt(scene: Scene) -> bool:
    """Kill a worker every second until restarts are used up; return whether the counts are right."""
    failed: FleetFailed | None = None
    with scene.drawn(Restarts(), raising=True) as (ours, drawn, diary):
        killer = Killer(diary)
        with killer.at_work(1.0, 1.0):
            try:
                drawn.draw_for(scene.seconds / 2)
            except FleetFailed as error:
                failed = error
        stats = ours.stats()
    print(f"  {len(killer.killed)} kills; {f'FleetFailed: {failed}' if failed else 'the time was over'}")
    wrong = [] if stats["frames"] == drawn.frames else ["delivered frames are not counted"]
    return print_counts(
        scene, stats, wrong if failed is None or failed.causes else [*wrong, "FleetFailed has no causes"]
    )


def print_counts(scene: Scene, stats: dict[str, Any], wrong: list[str]) -> bool:
    """Print the counts and return whether none was wrong; `drawn` raises if a frame was."""
    names = ("restarts", "late", "fragments_lost", "env_errors", "frames")
    note = "; ".join(wrong) or ", ".join(f"{name} {stats[name]:,}" for name in names)
    return claim(f"{scene}: every frame once, and counted", not wrong, note)


def main() -> int:
    """Measure every backend and order."""
    command_line = parser(__doc__)
    command_line.add_argument("--backend", nargs="+", default=["process", "ray"], choices=("process", "ray"))
    command_line.add_argument("--order", nargs="+", default=["sync", "async"], choices=("sync", "async"))
    command_line.add_argument("--seconds", type=float, default=60.0)
    options = command_line.parse_args()
    set_up(options)
    passed = []
    for scene in (
        Scene(at, order, 10 if options.quick else options.seconds) for at in options.backend for order in options.order
    ):
        print(f"\n{scene}: a kill every ten seconds, a hang, an env that raises; then a kill every second", flush=True)
        passed += [disturb(scene), hunt(scene)]
    return ended(passed)


if __name__ == "__main__":
    sys.exit(main())
