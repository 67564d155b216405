"""What a delivered batch costs the driver, and how that grows with the number of workers.

    python benchmarks/driver.py [--backend process|ray] [--quick]

The workers are stand-ins on the real backend: they answer every request at once with the same small fragment, so that
what is measured is asking, waiting, copying and delivering. CPU time of the driver's process, all its threads, per
fragment of 4 × 16 frames, asynchronous. Ends with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np

from figures import ended, table, verdict
from policies import quiet_threads
from stand_ins import collection_of, fragment
from swath.collectors.service import CollectorService

ENVS, STEPS = 4, 16
SIZES = (1, 4, 16, 64)
MOST_MS = 0.6


def cost_ms(collection: CollectorService, draws: int) -> float:
    """CPU milliseconds of this process per batch: the median of ten stretches."""
    for _ in range(draws // 5):
        collection.draw()
    found = []
    for _ in range(10):
        began = time.process_time()
        for _ in range(draws // 10):
            collection.draw()
        found.append((time.process_time() - began) / (draws // 10) * 1e3)
    return statistics.median(found)


def main() -> int:
    """Measure every number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="process", choices=("process", "ray"))
    parser.add_argument("--quick", action="store_true", help="fewer draws: a look, not a measurement")
    options = parser.parse_args()
    quiet_threads()
    if options.backend == "ray":
        import cluster  # needs swath[ray]

        cluster.begin()
    made = fragment(ENVS, STEPS, np.zeros(4, dtype=np.float32))
    costs = {}
    for n_workers in SIZES:
        collection = collection_of(options.backend, n_workers, made)
        costs[n_workers] = cost_ms(collection, 500 if options.quick else 5000)
        collection.close(10.0)
    rows = {f"{n_workers} workers": [cost] for n_workers, cost in costs.items()}
    table(f"CPU time of the driver per fragment of {ENVS * STEPS} frames, {options.backend}", {"ms": ".3f"}, rows)
    few, many = SIZES[0], SIZES[-1]
    cheap = verdict(f"{options.backend}: {many} workers", costs[many], ".2f ms", most=MOST_MS)
    growth = verdict(f"{options.backend}: times that of {few}", costs[many] / costs[few], ".2f", most=many / few)
    return ended([cheap, growth])


if __name__ == "__main__":
    sys.exit(main())
