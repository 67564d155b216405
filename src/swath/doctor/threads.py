"""Whether there are more threads than CPUs for them."""

from __future__ import annotations

from collections.abc import Iterator

from swath.doctor.finding import Finding, Level
from swath.doctor.machine import Threads
from swath.doctor.subject import Subject


def check_threads(subject: Subject, threads: Threads) -> Iterator[Finding]:
    """Threads of torch in this process, and workers beside each other."""
    if threads.torch > threads.cpus:
        yield Finding(
            Level.WARNING,
            "torch's threads",
            f"{threads.torch} in this process",
            f"no more than the {_cpus(threads)} that it may use",
            f"set OMP_NUM_THREADS={threads.cpus} before Python starts, or call torch.set_num_threads({threads.cpus}): "
            "threads that wait for each other spin; small networks are fastest with one",
        )
    if subject.workers > threads.cpus and subject.backend != "ray":
        yield Finding(
            Level.WARNING,
            "workers",
            f"{subject.workers} on this machine",
            f"no more than the {_cpus(threads)} that this process may use",
            f"use {threads.cpus}, with more envs each; or Ray, to have the CPUs of several machines",
        )


def _cpus(threads: Threads) -> str:
    return f"{threads.cpus} CPU{'s' if threads.cpus > 1 else ''}"
