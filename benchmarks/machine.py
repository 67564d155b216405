"""On what is measured: hardware and versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("swath", "torch", "tensordict", "numpy", "gymnasium", "ray", "torchrl", "stable-baselines3")


def lines() -> list[str]:
    """A line each for the processor, the memory, the system and the versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return [
        f"{len(os.sched_getaffinity(0))} cores, {_processor()}, {memory:.0f} GiB of memory; one thread per process",
        system,
        ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name))),
    ]


def busy() -> str:
    """How many processes wanted to run of late, which is 0 where nothing else is done."""
    return f"load before it {os.getloadavg()[0]:.1f}"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
