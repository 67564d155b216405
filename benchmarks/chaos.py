"""Workers are killed, hang and raise while a collector is drawn from: every batch must be whole all the same.

    python benchmarks/chaos.py [--backend process ray] [--order sync async] [--seconds 60] [--seed 0]

Four workers with four counting envs each, whose observations say which env, episode and step they are of; a step takes
60 µs of CPU, a fragment is 64 steps. First, for a minute: SIGKILL for a random worker every ten seconds, one worker
that hangs once (it is late after three seconds) and one env that raises every 1,000 steps. A collector that nobody
disturbs takes turns with it, five seconds after every ten. Then one SIGKILL every second, with the default `Restarts`,
until these are used up or half a minute is over. Ends with 1 if a frame is missing, twice there or mixed with another,
if losses are not counted, or if less than 70 % of the undisturbed rate is left.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from chaos_check import Ledger
from chaos_stage import say_recovery, set_up
from chaos_toys import ENVS, Diary, Killer, Source
from figures import claim, ended, verdict
from policies import lean_actor
from swath import MultiAsyncCollector, MultiSyncCollector, RayCollector, Restarts
from swath.errors import FleetFailed
from swath.testing import Fault

WORKERS, STEPS = 4, 64
HANGING, RAISING = 1, 2
KILL_EVERY_S, KILL_AT_S, HANG_AT_S, LATE_S = 10.0, 2.0, 4.0, 3.0
LEAST = 0.7
MANY = Restarts(max_per_worker=100, backoff_s=0.1)
"""More than are needed: the run is to last, whoever is hit."""


@dataclass
class Drawn:
    """A collector, and what was drawn from it.

    Attributes:
        ours: the collector.
        ledger: of its batches.
        frames: drawn while it was timed.
        seconds: for how long that was.
    """

    ours: Any
    ledger: Ledger
    frames: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Frames per second."""
        return self.frames / self.seconds

    def draw(self, is_enough: Callable[[], bool]) -> None:
        """Draw until it is enough."""
        while not is_enough():
            self.ledger.add(self.ours.next())

    def draw_for(self, seconds: float) -> None:
        """Draw for so long, timed."""
        began, frames = time.monotonic(), self.ledger.frames
        self.draw(lambda: time.monotonic() - began >= seconds)
        self.frames += self.ledger.frames - frames
        self.seconds += time.monotonic() - began


@dataclass(frozen=True)
class Scene:
    """Where, in which order, how."""

    backend: str
    order: str
    seconds: float
    seed: int

    def __str__(self) -> str:
        return f"{self.backend}, {self.order}"

    @contextmanager
    def drawn(self, restarts: Restarts, *, raising: bool = False) -> Iterator[tuple[Drawn, Diary]]:
        """A collector that has given its first batch, and its workers' diary."""
        with ExitStack() as stack:
            diary = Diary(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            drawn = Drawn(stack.enter_context(self.collector(diary, restarts, raising)), Ledger(self.order))
            drawn.draw(lambda: len(diary.lines()) == WORKERS)
            yield drawn, diary

    def collector(self, diary: Diary, restarts: Restarts, raising: bool) -> Any:
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
    with scene.drawn(MANY, raising=True) as (drawn, diary), scene.drawn(MANY) as (quiet, _):
        killer = Killer(diary, scene.seed)
        for turn in range(max(1, round(scene.seconds / KILL_EVERY_S))):
            with killer.at_work(KILL_AT_S, inf, spare=HANGING if turn == 0 else None):
                drawn.draw_for(HANG_AT_S)
                if turn == 0:
                    diary.ask_to_hang(HANGING)
                drawn.draw_for(KILL_EVERY_S - HANG_AT_S)
            quiet.draw_for(KILL_EVERY_S / 2)
        drawn.draw(lambda: len(killer.recoveries) == len(killer.killed))
        stats, recoveries = drawn.ours.stats(), killer.recoveries
    drawn.ledger.check()
    quiet.ledger.check()
    say(scene, stats, drawn, recoveries)
    share = drawn.rate / quiet.rate
    note = f"{drawn.rate:,.0f} of {quiet.rate:,.0f} frames/s"
    fast = verdict(f"{scene}: share of the undisturbed rate", share, ".0%", least=LEAST, note=note)
    return right(scene, miscounted(stats, drawn, len(killer.killed))) and fast


def hunt(scene: Scene) -> bool:
    """A kill every second, until restarts are used up; whether all is as it should be."""
    failed: FleetFailed | None = None
    with scene.drawn(Restarts(), raising=True) as (drawn, diary):
        killer = Killer(diary, scene.seed)
        with killer.at_work(1.0, 1.0):
            try:
                drawn.draw_for(scene.seconds / 2)
            except FleetFailed as error:
                failed = error
        stats, recoveries = drawn.ours.stats(), killer.recoveries
    drawn.ledger.check()
    say(scene, stats, drawn, recoveries)
    print(f"  {len(killer.killed)} kills; {f'FleetFailed: {failed}' if failed else 'the time was over'}")
    wrong = [] if stats["frames"] == drawn.ledger.frames else ["frames that were delivered are not counted"]
    return right(scene, wrong if failed is None or failed.causes else [*wrong, "FleetFailed has no causes"])


def miscounted(stats: dict[str, Any], drawn: Drawn, kills: int) -> list[str]:
    """What `stats()` should say otherwise."""
    deaths = kills + stats["late"]
    exact = {"restarts": deaths, "frames": drawn.ledger.frames, "workers_lost": 0, "late": 1}
    wrong = [f"{name} is {stats[name]}, not {wanted}" for name, wanted in exact.items() if stats[name] != wanted]
    wrong += [f"{name} is 0" for name in ("env_errors", "fragments_lost") if not stats[name]]
    return wrong if stats["fragments_lost"] <= deaths else [*wrong, f"more fragments are lost than the {deaths} deaths"]


def say(scene: Scene, stats: dict[str, Any], drawn: Drawn, recoveries: list[tuple[float, float]]) -> None:
    """What has happened."""
    print(
        f"  {stats['restarts']} restarts, {stats['late']} late, {stats['fragments_lost']} fragments lost, "
        f"{stats['env_errors']} env errors; {drawn.ledger.frames:,} frames are there, whole and once"
    )
    say_recovery(scene, recoveries)


def right(scene: Scene, wrong: list[str]) -> bool:
    """Print whether nothing was wrong."""
    return claim(f"{scene}: every frame once, and counted", not wrong, "; ".join(wrong))


def chaos(scene: Scene) -> bool:
    """Both runs; whether all is as it should be."""
    good = []
    for run, what in ((disturb, "a kill every ten seconds, a hang, an env that raises"), (hunt, "a kill every second")):
        print(f"\n{scene}: {what}", flush=True)
        good.append(run(scene))
    return all(good)


def main() -> int:
    """Every backend, every order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", default=["process", "ray"], choices=("process", "ray"))
    parser.add_argument("--order", nargs="+", default=["sync", "async"], choices=("sync", "async"))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    set_up(asked.backend, 2 * WORKERS)
    scenes = [Scene(place, order, asked.seconds, asked.seed) for place in asked.backend for order in asked.order]
    return ended([chaos(scene) for scene in scenes])


if __name__ == "__main__":
    sys.exit(main())
