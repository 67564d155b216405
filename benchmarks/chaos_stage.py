"""What runs with kills have in common: how they are set up, and how they say how soon the next lives are there."""

from __future__ import annotations

import logging
import os
import statistics
import warnings
from collections.abc import Collection, Sequence

from figures import verdict
from policies import quiet_threads


def set_up(backends: Collection[str], workers: int) -> None:
    """One thread each and no logs; if it is asked for, Ray on this machine with a CPU on paper for each worker."""
    quiet_threads()
    logging.getLogger("swath").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="ray")
    os.environ["OMP_NUM_THREADS"] = "1"
    if "ray" in backends:
        import ray

        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")


def say_recovery(scene: object, recoveries: Sequence[tuple[float, float]]) -> None:
    """Seconds from a kill to the next life's first frame, and of its CPU by then; nothing without kills."""
    if recoveries:
        times, cpu = zip(*recoveries, strict=True)
        note = f"at most {max(times):.2f} s; median {statistics.median(cpu):.2f} s of its CPU"
        verdict(f"{scene}: kill to the next life's first frame", statistics.median(times), ".2f s", note=note)
