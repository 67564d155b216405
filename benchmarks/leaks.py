"""What is left behind: by fifty collectors that were built, drawn from and shut down, and by a driver that was killed.

    python benchmarks/leaks.py [--backend thread process ray] [--cycles 50]

Before and after the cycles are counted: processes below this one, actors and their resources on Ray, threads, file
descriptors, blocks of shared memory (memfd and /dev/shm), and the memory of this process, which may grow by 16 MB. Then
a driver of four workers is killed by SIGKILL, and all of them must have ended within ten seconds. Linux only. Ends with
1 if anything is left.
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from chaos_toys import COUNTING, ENVS, Diary, Source
from figures import claim, ended, verdict
from policies import lean_actor, quiet_threads
from swath import MultiAsyncCollector, MultiSyncCollector, RayCollector
from swath.testing import CountingEnvs

WORKERS, STEPS = 2, 500
WARM_UP, DRIVEN = 3, 4
PATIENCE_S = 10.0
MOST_MB = 16


def collector(backend: str, order: str, sources: Sequence[Callable[[], Any]]) -> Any:
    """One whose fragments are large enough for shared memory."""
    kind: Callable[..., Any] = {"sync": MultiSyncCollector, "async": MultiAsyncCollector}[order]
    kind = partial(kind, backend=backend)
    if backend == "ray":
        kind = partial(RayCollector, sync=order == "sync")
    frames = (len(sources) if order == "sync" else 1) * ENVS * STEPS
    return kind(sources, lean_actor(3, 3), frames_per_batch=frames, envs_per_worker=ENVS)


def cycle(backend: str, number: int) -> None:
    """Build, draw, publish, draw, shut down; every other one in the other order."""
    sources = [CountingEnvs(COUNTING, first=worker * ENVS) for worker in range(WORKERS)]
    with collector(backend, "sync" if number % 2 else "async", sources) as ours:
        ours.next()
        ours.update_policy_weights_()
        ours.next()


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Processes below this one, with their names."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                with suppress(FileNotFoundError, ProcessLookupError):
                    yield child, Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip()
                yield from descendants(child)


def counts(backend: str) -> dict[str, float]:
    """What there is. Ray's own processes come and go; semaphores of multiprocessing are other programs'."""
    names = [name for _, name in descendants(os.getpid())]
    found: dict[str, float] = {
        "processes": len(names),
        "threads": threading.active_count(),
        "file descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "blocks": sum("memfd:" in line for line in Path("/proc/self/maps").read_text().splitlines()),
        "/dev/shm": sum(not path.name.startswith("sem.mp-") for path in Path("/dev/shm").iterdir()),
    }
    if backend == "ray":
        import ray

        found["processes"] = sum(name.startswith("ray::Swath") for name in names)
        found["CPUs taken"] = ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0.0)
    return found


def memory_mb() -> float:
    """Of this process."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def settled(backend: str, most: Mapping[str, float]) -> dict[str, float]:
    """The counts, once they are no more than `most`, or after ten seconds."""
    until = time.monotonic() + PATIENCE_S
    while True:
        found = counts(backend)
        if all(found[name] <= limit for name, limit in most.items() if name in found) or time.monotonic() > until:
            return found
        time.sleep(0.1)


def cycles(backend: str, number: int) -> bool:
    """Whether nothing is left of so many."""
    for one in range(WARM_UP):
        cycle(backend, one)
    gc.collect()
    before, memory = settled(backend, {"processes": 0, "CPUs taken": 0}), memory_mb()
    for one in range(number):
        cycle(backend, one)
    gc.collect()
    after, grown = settled(backend, before), memory_mb() - memory
    words = ", ".join(f"{name} {before[name]:g} → {now:g}" for name, now in after.items())
    clean = all(now <= before[name] for name, now in after.items())
    what = f"{backend}, {number} cycles"
    small = verdict(f"{what}: memory more", grown, ".1f MB", most=MOST_MB, note=f"of {memory:.0f} MB")
    return claim(f"{what}: nothing is left", clean, words) and small


def drive(backend: str, home: str) -> None:
    """Be a driver that never ends."""
    begin(backend)
    with collector(backend, "sync", [Source(worker, Diary(Path(home))) for worker in range(DRIVEN)]) as ours:
        ours.next()
        print("collecting", flush=True)
        while True:
            ours.next()


def killed_driver(backend: str) -> bool:
    """Whether no worker outlives its driver by more than ten seconds."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, __file__, "--drive", backend, home]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as driver:
            assert driver.stdout is not None
            while (line := driver.stdout.readline()) != "collecting\n":
                assert line, f"the driver ended with {driver.wait()}"
            workers = [os.fdopen(os.pidfd_open(one.pid)) for one in Diary(Path(home)).lines()]
            driver.kill()
            began = time.monotonic()
            left = list(workers)
            while left and (rest := began + PATIENCE_S - time.monotonic()) > 0:
                over = select.select(left, [], [], rest)[0]
                left = [worker for worker in left if worker not in over]
            took = time.monotonic() - began
    note = f"{len(workers) - len(left)} of {len(workers)} in {took:.2f} s"
    return claim(f"{backend}, driver killed: its workers end", len(workers) == DRIVEN and not left, note)


def begin(backend: str) -> None:
    """Whatever the backend needs."""
    quiet_threads()
    os.environ["OMP_NUM_THREADS"] = "1"
    if backend == "ray":
        import ray

        warnings.filterwarnings("ignore", module="ray")
        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")


def main() -> int:
    """Every backend."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    places = ("thread", "process", "ray")
    parser.add_argument("--backend", nargs="+", default=places, choices=places)
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--drive", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive:
        drive(*asked.drive)
    good = [killed_driver(backend) for backend in asked.backend if backend != "thread"]
    for backend in asked.backend:
        begin(backend)
        good.append(cycles(backend, asked.cycles))
    return ended(good)


if __name__ == "__main__":
    sys.exit(main())
