"""TorchRL's envs and policies with workers in processes and on Ray: the data of a collector here."""

from functools import cache, partial
from math import prod

import pytest
from torchrl_differences import require_equal
from torchrl_table import table

import ray_cluster
from swath import Collector, ExplorationType, MultiSyncCollector

N_BATCHES = 2
NAMES = ("parallel", "nested keys", "heterogeneous, batched", "growing", "non-tensor, batched", "LSTM, batched")
"""Cases with special transport; the other cases run in this process only."""

CASES = [case for case in table() if case.name in NAMES]
ON_RAY = [case for case in CASES if case.name in ("heterogeneous, batched", "growing")]
IDS = ("collector", "traj_ids")


def frames_of(case):
    return case.steps * prod(case.env().batch_size)


def options_for(frames, **options):
    return {"total_frames": N_BATCHES * frames, "exploration_type": ExplorationType.DETERMINISTIC, **options}


@cache
def made_here(case):
    """Return the rows of a collector of one env with a worker's ids."""
    frames = frames_of(case)
    with Collector(case.env, case.policy(), frames_per_batch=frames, **options_for(frames)) as collector:
        return [batch.clone() for batch in collector]


def made_by(worker, case):
    batches = [batch.clone() for batch in made_here(case)]
    for batch in batches:
        batch[IDS] += worker << 47
    return batches


@pytest.mark.usefixtures("fork_server")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_process_gives_what_a_collector_here_gives(case):
    compare(case, MultiSyncCollector)


@pytest.mark.parametrize("case", ON_RAY, ids=lambda case: case.name)
def test_each_worker_on_ray_gives_what_a_collector_here_gives(case):
    compare(case, partial(ray_cluster.collector, sync=True))


def compare(case, many):
    n_workers = 1 if case.name == "parallel" else 2  # each has processes of its own, which import TorchRL
    frames = n_workers * frames_of(case)
    sources = [case.env] * n_workers
    with many(sources, case.policy(), frames_per_batch=frames, **options_for(frames)) as collector:
        batches = list(collector)
    for worker in range(n_workers):
        require_equal([batch[worker] for batch in batches], made_by(worker, case))
