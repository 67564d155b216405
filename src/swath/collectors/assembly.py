"""From options to a collection: workers are started, described and compared; more can be added later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from swath.collectors.gather import Fragments
from swath.collectors.messages import Description, WorkerRequest
from swath.collectors.options import AnyOptions
from swath.collectors.service import CollectorService, make_jobs
from swath.group.group import WorkerGroup
from swath.group.local import Access, LocalChannel, LocalFleet
from swath.rollout.hosts.sources import claim, require_unused
from swath.weights.channel import Channel
from swath.workers.base import Handle, Shared
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.fleet_state import FIRST_LIFE

PRELOADED = ("swath.collectors.worker", "gymnasium", "tensordict")
"""Modules that every worker imports."""

CLOSE_ENVS_S = 2.0
"""How long workers have to close their envs when the collection cannot be built."""


def assemble(
    name: str,
    options: AnyOptions,
    requests: Sequence[WorkerRequest],
    publish: Callable[[], Any],
    receive: Callable[[], Any],
) -> CollectorService:
    """Start the workers, one in this process or a fleet; block until all have built env and policy.

    Args:
        name: of the face.
        options: its own; those that it does not take are at their defaults.
        requests: what each worker is built from.
        publish: publishes the policy's weights.
        receive: takes weights from registered receivers.

    Raises:
        PlacementFailed: there is no room.
        ValueError: options that contradict each other, or workers whose shares are joined and that differ.
        Exception: what building env or policy raised; everything is closed again.
    """
    access, jobs = Access(name), make_jobs(options, requests)
    cluster = {"init_config": options.ray_init_config, "workers": len(requests)} if options.backend == "ray" else {}
    bare = options.init_fn is not None
    places = backend(options.backend or "direct", preload=PRELOADED, bare=bare, options=cluster)
    fleet: Fleet | LocalFleet
    channel: Channel
    if options.in_process:
        env = requests[0].source.env
        require_unused(env)
        member: Any = jobs.job(FIRST_LIFE).build()
        claim(env, access)
        fleet, channel = LocalFleet(member, access), LocalChannel(member, access)
    else:
        fleet, channel = Fleet(places, jobs.job, len(requests), options.survival), Channel(places.share)
    try:
        if isinstance(fleet, Fleet):
            fleet.start()
        jobs.described.update(describe(WorkerGroup(fleet, channel), jobs.requests))
        if options.in_order:
            require_equal(jobs.described)
            require_joinable(jobs.described, options.cat_dim)
        stop_numbers: Shared | None = None
        with suppress(TypeError):  # workers elsewhere cannot see memory of this process
            stop_numbers = places.shared_counters(len(requests))
        group = Fragments(
            fleet,
            channel,
            {worker: description.frames for worker, description in sorted(jobs.described.items())},
            total=options.end,
            max_staleness=options.max_staleness,
            automatic=options.automatic,
            publish=publish,
            receive=receive,
            records=jobs.records,
            stop_numbers=stop_numbers,
            writing=jobs.writing is not None,
        )
        collection = CollectorService(options, group, jobs, access)
        if options.in_process:
            claim(requests[0].source.env, collection)
        if options.seed is not None:
            collection.seed(options.seed)
    except BaseException:
        keeps_env = options.in_process and requests[0].source.is_instance
        access.close(CLOSE_ENVS_S, lambda: fleet.close(CLOSE_ENVS_S, ask=not keeps_env))
        raise
    return collection


def describe(group: WorkerGroup, workers: Iterable[int]) -> dict[int, Description]:
    """Return the description of each worker; workers that are not up yet will be as the first that is."""
    answers = group.call("describe") or {0: group.call_first("describe")}
    first = next(iter(answers.values()))
    return {worker: answers.get(worker, first) for worker in workers}


def require_equal(described: Mapping[int, Description]) -> None:
    """Check that workers whose shares are joined yield the same keys, shapes and dtypes.

    Raises:
        ValueError: they do not; the message names the first difference.
    """
    (first, expected), *others = described.items()
    for worker, description in others:
        if difference := expected.difference(description):
            raise ValueError(
                f"worker {worker} cannot be joined with worker {first}: {difference}; "
                "give all workers envs and policies of the same kind"
            )


def require_joinable(described: Mapping[int, Description], cat_dim: int | None) -> None:
    """Check that shares can be joined.

    Raises:
        ValueError: they are of different lengths, or lack the dimension along which they are joined.
    """
    shape = described[0].layout.batch_shape
    if cat_dim is not None and not -len(shape) - 1 <= cat_dim <= len(shape):
        raise ValueError(f"cat_results={cat_dim}: shares have the dimensions {[*shape, 'T']} only")
    lengths = {worker: description.n_steps for worker, description in described.items()}
    if cat_dim != -1 and len(set(lengths.values())) > 1:
        raise ValueError(
            f"the workers' shares are of different lengths (steps by worker: {lengths}): they can only be joined with "
            "cat_results=-1, or give all workers the same number of frames"
        )


def add_workers(
    collection: CollectorService,
    requests: Sequence[WorkerRequest],
    share_of: Callable[[int], int] | None,
    *,
    own_weights: bool,
) -> None:
    """Add one worker per request; block until they are ready.

    Synchronous collections divide their batches again, from the next batch that is requested; in asynchronous ones the
    new workers are asked at once.

    Args:
        collection: the service.
        requests: what the workers are built from.
        share_of: returns the frames of one worker for a number of workers; `None` in asynchronous collections.
        own_weights: whether they keep the weights that they are built with until the next publication.

    Raises:
        ValueError: their entries or weights differ from the others', or shares are not whole.
        PlacementFailed: no room, or not ready in time.
        Exception: what building them raised. In all cases nothing is added.
    """
    jobs, group = collection.jobs, collection.group
    fleet = group.fleet
    assert isinstance(fleet, Fleet)
    with collection.changing:
        new = dict(enumerate(requests, max(jobs.requests) + 1))
        share = None if share_of is None else share_of(len(jobs.requests) + len(new))
        descriptions: dict[int, Description] = {}

        def accept(handles: Sequence[Handle]) -> None:
            """Check that new workers give the same entries and take the same weights as the others."""
            tickets = {handle.name.worker: fleet.call(handle, "describe") for handle in handles}
            fleet.wait_for_all(list(tickets.values()))
            descriptions.update({worker: ticket.value for worker, ticket in tickets.items()})
            first, expected = next(iter(jobs.described.items()))
            require_equal({first: expected, **descriptions})
            for worker, description in descriptions.items():
                if difference := expected.manifest.difference(description.manifest):
                    raise ValueError(f"worker {worker} would take other weights than worker {first}: {difference}")

        jobs.requests.update(new)
        try:
            fleet.add(len(new), accept)
        except BaseException:
            for worker in new:
                del jobs.requests[worker]
            raise
        for worker in new if own_weights else ():
            group.channel.keep_built_weights(worker)
        jobs.described.update(descriptions)
        with group.lock:
            if jobs.seeding is not None:
                group.send(dict.fromkeys(new, ("seed_with", jobs.seeding)))
            described = sorted(jobs.described.items())
            shares = {worker: description.rounded(share or description.frames) for worker, description in described}
            group.set_shares(shares)
