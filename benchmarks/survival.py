"""One of two workers is killed while a library collects: what comes after that.

    python benchmarks/survival.py [--quick]      # needs swath[ray]; the peers' environments are made at first use

CartPole-v1, two workers of eight envs, 128 steps each a batch, waited for; each library with the policy of its users
and its defaults. One after another: it collects, SIGKILL for one of its workers, and it goes on, or does not. All are
on one Ray cluster on this machine. Ends with 1 if a batch of ours is not whole, or none comes any more.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray

import cluster
from figures import claim, course, ended, table, verdict
from peers import RLLIB, TORCHRL, python_of
from survival_told import Seen, Told

ENVS, STEPS = 8, 128
PROMISED = 2 * ENVS * STEPS
UP_WITHIN_S = 180.0
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Contender:
    """Who collects.

    Attributes:
        python: the interpreter of its environment.
        script: beside this one.
        where: its workers live, where its script has a choice.
        ours: it has to go on.
    """

    python: Path
    script: str
    where: tuple[str, ...] = ()
    ours: bool = False


def contenders() -> dict[str, Contender]:
    """Ours, and the peers' that do the same."""
    own, torchrl, rllib = Path(sys.executable), python_of(TORCHRL), python_of(RLLIB)
    return {
        "RayCollector": Contender(own, "survival_ours.py", ("ray",), ours=True),
        "MultiSyncCollector": Contender(own, "survival_ours.py", ("processes",), ours=True),
        "TorchRL's RayCollector": Contender(torchrl, "peer_torchrl_survival.py", ("ray",)),
        "TorchRL's MultiSyncCollector": Contender(torchrl, "peer_torchrl_survival.py", ("processes",)),
        "RLlib's EnvRunnerGroup": Contender(rllib, "peer_rllib_survival.py"),
    }


@contextmanager
def collecting(one: Contender, address: str, folder: str) -> Iterator[tuple[Told, int]]:
    """Let it collect; what it tells, and its process."""
    command = [one.python, HERE / one.script, *one.where, str(ENVS), str(STEPS), address, folder]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    told = Told()
    assert child.stdout is not None
    listener = threading.Thread(target=told.listen, args=(child.stdout,), daemon=True)
    listener.start()
    try:
        yield told, child.pid
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def wait_for_batches(told: Told, name: str) -> None:
    """The first three: everything is up and warm.

    Raises:
        RuntimeError: it ended, or took too long.
    """
    until = time.monotonic() + UP_WITHIN_S
    while len(told.batches) < 3:
        if told.raised or time.monotonic() > until:
            raise RuntimeError(f"{name} does not collect: {told.raised or f'nothing in {UP_WITHIN_S:g} s'}")
        time.sleep(0.1)


def kill_one(folder: str, driver: int) -> None:
    """A worker that lives: of those that made envs, the one with the highest process id."""
    makers = {int(file.name) for file in Path(folder).iterdir()} - {driver}
    os.kill(max(pid for pid in makers if Path(f"/proc/{pid}").exists()), signal.SIGKILL)


def watch(name: str, one: Contender, address: str, before: float, after: float) -> Seen:
    """Collect for so long, kill, collect for so long."""
    with tempfile.TemporaryDirectory() as folder, collecting(one, address, folder) as (told, driver):
        wait_for_batches(told, name)
        begin = time.monotonic()
        time.sleep(before)
        kill_one(folder, driver)
        killed = time.monotonic()
        time.sleep(after)
        return Seen(told, PROMISED, begin, killed, killed + after)


def main() -> int:
    """Watch them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short runs: a look, not a measurement")
    before, after = (2.0, 6.0) if parser.parse_args().quick else (5.0, 10.0)
    every = contenders()
    address = cluster.begin()
    seen = {name: watch(name, one, address, before, after) for name, one in every.items()}
    ray.shutdown()
    say(seen)
    ours = {name: one for name, one in seen.items() if every[name].ours}
    return ended([claim(f"{name}: goes on, every batch whole", one.goes_on) for name, one in ours.items()])


def say(seen: dict[str, Seen]) -> None:
    """A table, curves, and how long each let its user wait."""
    columns = {"frames/s before": ",.0f", "frames/s in the end": ",.0f", "least batch": ".0%"}
    table("One of two workers is killed", columns, {name: one.row() for name, one in seen.items()})
    course("One of two workers is killed at 0 s", "frames/s", {name: one.curve() for name, one in seen.items()})
    for name, one in seen.items():
        silent = "" if one.rate_in_the_end else "until it was ended"
        note = f"then it raised {one.told.raised}" if one.told.raised else silent
        verdict(f"{name}: longest time without a batch", one.longest_wait, ".2f s", note=note)


if __name__ == "__main__":
    sys.exit(main())
