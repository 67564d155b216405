"""Is every batch whole while workers are killed, hang and raise, and how much speed is left?

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
"""More than are needed: the run is to last, whoever is hit."""


class Line(NamedTuple):
    """A worker has made its first frame, in this process, at this time; or it was killed then."""

    worker: int
    pid: int
    at: float


@dataclass(frozen=True)
class Diary:
    """What workers write down in an empty folder; the clock is the same in all processes of this machine."""

    home: Path

    def write(self, worker: int) -> None:
        """This process's first frame."""
        with (self.home / "diary").open("a") as file:
            file.write(f"{worker} {os.getpid()} {time.monotonic()}\n")

    def lines(self) -> list[Line]:
        """All that were written, in their order."""
        with suppress(FileNotFoundError):
            rows = (row.split() for row in (self.home / "diary").read_text().splitlines())
            return [Line(int(worker), int(pid), float(at)) for worker, pid, at in rows]
        return []

    def hang_file(self, worker: int) -> Path:
        """A worker that finds it removes it, and hangs."""
        return self.home / f"hang-{worker}"


class Toiling(CountingEnv):
    """A counting env that takes its time; the first of a worker writes the diary, and hangs when it is to."""

    def __init__(
        self, worker: int, number: int, diary: Diary, faults: tuple[Fault, ...] = (), counting: Counting = COUNTING
    ) -> None:
        super().__init__(worker * ENVS + number, counting, faults)
        self._worker, self._diary, self._first, self._made = worker, diary, number == 0, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Count one step, and work for it."""
        until = time.thread_time() + COST_S
        result = super().step(action)
        while time.thread_time() < until:
            pass
        self._made += 1
        if self._first and self._made == 1:
            self._diary.write(self._worker)
        if self._first and self._made % LOOK_EVERY == 0:
            with suppress(FileNotFoundError):
                self._diary.hang_file(self._worker).unlink()
                threading.Event().wait()
        return result


@dataclass
class Source:
    """Builds the envs of one worker, with faults in the last; every life begins anew with the first."""

    worker: int
    diary: Diary
    faults: tuple[Fault, ...] = ()
    made: int = 0

    def __call__(self) -> Toiling:
        """The next env."""
        number, self.made = self.made, self.made + 1
        return Toiling(self.worker, number, self.diary, self.faults if number == ENVS - 1 else ())


@dataclass
class Killer:
    """Kills processes of workers at random, from a thread of its own.

    Attributes:
        diary: says which worker is in which process.
        killed: workers, and when.
    """

    diary: Diary
    killed: list[Line] = field(default_factory=list)
    chance: random.Random = field(default_factory=lambda: random.Random(0))

    @property
    def recoveries(self) -> list[float]:
        """Seconds from each kill to the first frame of that worker's next life; some may be missing yet."""
        lines = self.diary.lines()
        later = [[line.at for line in lines if line.worker == one.worker and line.at > one.at] for one in self.killed]
        return [at[0] - one.at for one, at in zip(self.killed, later, strict=True) if at]

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
        """A worker that is known to live; none if all are coming back."""
        last = {line.worker: line.pid for line in self.diary.lines() if line.worker != spare}
        dead = {one.pid for one in self.killed}
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
    """Batches drawn from something, and how long that took.

    Attributes:
        draw_one: draws a batch and returns its frames.
        frames: drawn in all.
        timed_frames: drawn while it was timed.
        seconds: for how long that was.
    """

    draw_one: Callable[[], int]
    frames: int = 0
    timed_frames: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Frames per second."""
        return self.timed_frames / self.seconds

    def draw_until(self, is_enough: Callable[[], bool]) -> None:
        """Draw until it is enough."""
        while not is_enough():
            self.frames += self.draw_one()

    def draw_for(self, seconds: float) -> None:
        """Draw for so long, timed."""
        began, frames = time.monotonic(), self.frames
        self.draw_until(lambda: time.monotonic() - began >= seconds)
        self.timed_frames += self.frames - frames
        self.seconds += time.monotonic() - began


def set_up(asked: argparse.Namespace) -> None:
    """One thread each and no logs; if it is asked for, Ray."""
    quiet_threads()
    logging.getLogger("swath").setLevel(logging.ERROR)
    os.environ["OMP_NUM_THREADS"] = "1"
    if "ray" in asked.backend:
        begin_ray()


def recovered(where: object, recoveries: list[float]) -> bool:
    """Print how soon killed workers were replaced; whether that was soon enough."""
    note, what = f"at most {max(recoveries, default=0):.2f} s", f"{where}: kill to the next life's first frame"
    return not recoveries or verdict(what, statistics.median(recoveries), ".2f s", most=MOST_RECOVERY_S, note=note)


@dataclass(frozen=True)
class Scene:
    """Where, in which order, for how long."""

    backend: str
    order: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.backend}, {self.order}"

    @contextmanager
    def drawn(self, restarts: Restarts, *, raising: bool) -> Iterator[tuple[Any, Drawn, Diary]]:
        """A collector that has given its first batch, and its workers' diary; batches are checked in the end."""
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
        """One whose workers write the diary."""
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
    """A kill every ten seconds, a hang, an env that raises; whether all is as it should be."""
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
            whole(scene, stats, wrong),
            recovered(scene, recoveries),
            verdict(f"{scene}: share of the undisturbed rate", share, ".0%", least=LEAST_SHARE, note=note),
        ]
    )


def hunt(scene: Scene) -> bool:
    """A kill every second, until restarts are used up; whether all is as it should be."""
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
    return whole(scene, stats, wrong if failed is None or failed.causes else [*wrong, "FleetFailed has no causes"])


def whole(scene: Scene, stats: dict[str, Any], wrong: list[str]) -> bool:
    """Print what happened, and whether nothing was wrong; `drawn` has raised where a frame was."""
    names = ("restarts", "late", "fragments_lost", "env_errors", "frames")
    note = "; ".join(wrong) or ", ".join(f"{name} {stats[name]:,}" for name in names)
    return claim(f"{scene}: every frame once, and counted", not wrong, note)


def main() -> int:
    """Every backend, every order."""
    arguments = parser(__doc__)
    arguments.add_argument("--backend", nargs="+", default=["process", "ray"], choices=("process", "ray"))
    arguments.add_argument("--order", nargs="+", default=["sync", "async"], choices=("sync", "async"))
    arguments.add_argument("--seconds", type=float, default=60.0)
    asked = arguments.parse_args()
    set_up(asked)
    passed = []
    for scene in (
        Scene(at, order, 10 if asked.quick else asked.seconds) for at in asked.backend for order in asked.order
    ):
        print(f"\n{scene}: a kill every ten seconds, a hang, an env that raises; then a kill every second", flush=True)
        passed += [disturb(scene), hunt(scene)]
    return ended(passed)


if __name__ == "__main__":
    sys.exit(main())
