"""More workers for a collection that is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swath.collectors.assembly import described_by, require_equal
from swath.collectors.description import Description
from swath.collectors.service import CollectorService
from swath.collectors.worker_request import Seeding, WorkerRequest
from swath.group.group import Call
from swath.workers.base import Handle
from swath.workers.fleet import Fleet


def add_workers(
    collection: CollectorService,
    requests: Sequence[WorkerRequest],
    share_of: Callable[[int], int] | None,
    *,
    own_weights: bool,
) -> None:
    """Add one worker per request; blocks until they are ready.

    Synchronous collections divide their batches anew, from the next batch that is asked for; in asynchronous ones the
    new workers are asked at once.

    Args:
        collection: the service.
        requests: what the workers are made of.
        share_of: frames of one worker when there are so many; `None` in asynchronous collections.
        own_weights: whether they keep the weights that they are built with until the next publication.

    Raises:
        ValueError: their entries or weights are others, or shares are not whole.
        PlacementFailed: no room, or not ready in time.
        Exception: what building them raised. In all cases nothing is added.
    """
    jobs = collection.jobs
    fleet, channel = collection.group.fleet, collection.group.channel
    assert isinstance(fleet, Fleet)
    with collection.changing:
        first = max(jobs.requests) + 1
        total = first + len(requests)
        share = None if share_of is None else share_of(total)
        new = dict(enumerate(requests, first))
        said: dict[int, Description] = {}

        def accept(handles: Sequence[Handle]) -> None:
            said.update(described_by(fleet, handles))
            _require_alike(jobs.described, said)

        jobs.requests.update(new)
        try:
            fleet.add(len(new), accept)
        except BaseException:
            for worker in new:
                del jobs.requests[worker]
            raise
        for worker in new if own_weights else ():
            channel.keeps_own(worker)
        jobs.described.update(said)
        with collection.group.lock:
            _seed(collection, sorted(new))
            frames = {worker: one.frames for worker, one in jobs.described.items()}
            if share is not None:
                frames = {worker: one.rounded(share) for worker, one in jobs.described.items()}
                collection.batch_frames = sum(frames.values())
            collection.plan.frames = frames  # requests that are out stay as they are


def _seed(collection: CollectorService, workers: Sequence[int]) -> None:
    """New workers go on with the seeds of those that are there."""
    seeding, described = collection.jobs.seeding, collection.jobs.described
    if not seeding:
        return
    model = next(iter(seeding.values()))
    for worker in workers:
        first = sum(described[other].all_envs for other in described if other < worker)
        seeding[worker] = Seeding(model.root, model.static, first, model.envs_only)
        collection.group.send({worker: Call("seed_with", (seeding[worker],))})


def _require_alike(there: dict[int, Description], new: dict[int, Description]) -> None:
    """New workers must give the same entries and take the same weights.

    Raises:
        ValueError: they do not.
    """
    worker, model = next(iter(there.items()))
    require_equal({worker: model, **new})
    for other, one in new.items():
        difference = model.manifest.difference(one.manifest)
        if difference:
            raise ValueError(f"worker {other} would take other weights than worker {worker}: {difference}")
