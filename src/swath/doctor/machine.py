"""Facts about this machine, as values: checks are given them, and tests give others."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import torch

from swath.doctor.ray_facts import RayFacts, ray_here

SHM = Path("/dev/shm")  # noqa: S108  the system's own name
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class SharedMemory:
    """The file system in which processes share memory.

    Attributes:
        path: where it is.
        free: bytes that are free in it.
        memory: bytes of memory of this machine.
    """

    path: Path
    free: int
    memory: int


@dataclass(frozen=True)
class Threads:
    """Threads, and what they run on.

    Attributes:
        cpus: how many CPUs this process may use.
        torch: threads of a torch operation in this process.
    """

    cpus: int
    torch: int


@dataclass(frozen=True)
class Machine:
    """What is known of this machine.

    Attributes:
        threads: and CPUs.
        shared: where processes share memory; `None` where there is no such file system.
        ray: what is known of Ray and its cluster.
        versions: installed packages that Swath can work with, by name.
        required: what Swath asks of packages, such as `"torch>=2.5"`.
    """

    threads: Threads
    shared: SharedMemory | None
    ray: RayFacts
    versions: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    @classmethod
    def here(cls) -> Machine:
        """Look; asks a running Ray cluster, which takes some seconds."""
        required = tuple(requires("swath") or ())
        return cls(
            Threads(cpus_allowed(), torch.get_num_threads()),
            shared_memory(),
            ray_here(),
            _installed(required),
            required,
        )


def shared_memory(path: Path = SHM, usage: Callable[[Path], Any] = shutil.disk_usage) -> SharedMemory | None:
    """What is free at the path."""
    if not path.is_dir():
        return None
    return SharedMemory(path, usage(path).free, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def cpus_allowed(cgroup: Path = CGROUP) -> int:
    """How many CPUs this process may use: those it may run on, or what a container's quota comes to."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return cpus if quota is None else max(1, min(cpus, round(quota)))


def _quota(cgroup: Path) -> float | None:
    """CPUs that a control group may use, of either version."""
    one = cgroup / "cpu.max"
    two = [cgroup / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period")]
    if one.exists():
        words = one.read_text(encoding="ascii").split()
    elif all(file.exists() for file in two):
        words = [file.read_text(encoding="ascii").strip() for file in two]
    else:
        return None
    return None if words[0] in ("max", "-1") else int(words[0]) / int(words[1])


def _installed(required: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in {name_of(one) for one in required}:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def name_of(requirement: str) -> str:
    """The package of a requirement such as `"ray>=2.40; extra == 'ray'"`."""
    return requirement.partition(";")[0].partition("[")[0].partition(">")[0].partition("=")[0].strip()
