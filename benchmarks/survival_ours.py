"""Our collectors with two workers: `survival_ours.py ray|processes ENVS STEPS ADDRESS FOLDER`."""

from __future__ import annotations

import logging
import sys
from functools import partial

import ray

from policies import lean_actor, quiet_threads
from survival_stage import make_env, tell
from swath import MultiSyncCollector, RayCollector

WORKERS = 2


def main(where: str, envs: int, steps: int, address: str, folder: str) -> None:
    """Tell what comes; a frame is one of CartPole-v1."""
    quiet_threads()
    logging.getLogger("swath").setLevel(logging.ERROR)
    if where == "ray":
        ray.init(address=address, log_to_driver=False, runtime_env={"env_vars": {"OMP_NUM_THREADS": "1"}})
    kind = {"ray": RayCollector, "processes": MultiSyncCollector}[where]
    make = [partial(make_env, folder)] * WORKERS
    with kind(make, lean_actor(), frames_per_batch=WORKERS * envs * steps, envs_per_worker=envs) as collector:
        tell(lambda: collector.next().numel())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6])
