"""A `Collector` as a contender in a process of its own: `collector_alone.py ENVS STEPS`; collectors.py runs two."""

from __future__ import annotations

import sys

from policies import lean_actor, quiet_threads
from rounds import serve, timed
from swath import Collector


def main(envs: int, steps: int) -> None:
    """Serve rates for CartPole-v1."""
    quiet_threads()
    with Collector("CartPole-v1", lean_actor(), envs_per_worker=envs, frames_per_batch=envs * steps) as collector:
        serve(timed(lambda: collector.next().numel()))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
