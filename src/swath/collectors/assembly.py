"""From options to a collection: workers are brought up, described, compared; more are added later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from swath.collectors.gather import Fragments
from swath.collectors.messages import Description, WorkerRequest
from swath.collectors.options import AnyOptions
from swath.collectors.service import CollectorService, jobs_of
from swath.group.local import Access, LocalChannel, LocalFleet
from swath.rollout.hosts.sources import claim, require_unused
from swath.weights.channel import Channel
from swath.workers.base import Handle
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.fleet_state import FIRST_LIFE

PRELOADED = ("swath.collectors.remote", "gymnasium", "tensordict")
"""What every worker imports in any case."""

GOODBYE_S = 2.0
"""How long workers have to close their envs when what they were built for fails."""


def assemble(
    name: str, options: AnyOptions, requests: Sequence[WorkerRequest], publish: Callable[[], Any]
) -> CollectorService:
    """Bring up what was asked for, one worker in this process or a fleet; blocks until all have built env and policy.

    Args:
        name: of the face.
        options: its own; those that it does not take are at their defaults.
        requests: what each worker is made of.
        publish: publishes the policy's weights.

    Raises:
        PlacementFailed: there is no room.
        ValueError: options that contradict each other, or workers whose shares are joined and that differ.
        Exception: what building env or policy raised; everything is closed again.
    """
    access, jobs = Access(name), jobs_of(options, requests)
    cluster = {"init_config": options.ray_init_config, "workers": len(requests)} if options.backend == "ray" else {}
    bare = options.init_fn is not None
    places = backend(options.backend or "direct", preload=PRELOADED, bare=bare, options=cluster)
    fleet: Fleet | LocalFleet
    channel: Channel
    if options.here:
        env = requests[0].source.env
        require_unused(env)
        member: Any = jobs.job(FIRST_LIFE).build()
        claim(env, access)
        fleet, channel = LocalFleet(member, access), LocalChannel(member, access)
    else:
        fleet, channel = Fleet(places, jobs.job, len(requests), options.survival), Channel(places.share)
    try:
        group = Fragments(fleet, channel, options.end, options.max_staleness)
        group.automatic, group.publish, group.workers = options.automatic, publish, jobs.records
        group.writing = jobs.writing is not None
        if isinstance(fleet, Fleet):
            fleet.start()
        with suppress(TypeError):  # workers elsewhere cannot see memory of this process
            group.bell = places.shared_counters(len(requests))
        said = group.call("describe") or {0: group.call_first("describe")}
        model = next(iter(said.values()))  # those who join later are as the first that is up
        jobs.described.update({worker: said.get(worker, model) for worker in jobs.requests})
        if options.in_order:
            require_equal(jobs.described)
            require_joinable(jobs.described, options.cat_dim)
        collection = CollectorService(options, group, jobs, access)
        if options.here:
            claim(requests[0].source.env, collection)
        if options.seed is not None:
            collection.seed(options.seed)
    except BaseException:
        theirs = options.here and requests[0].source.is_instance
        access.close(GOODBYE_S, lambda: fleet.close(GOODBYE_S, ask=not theirs))
        raise
    return collection


def require_equal(described: Mapping[int, Description]) -> None:
    """Workers whose shares are joined must yield the same keys, shapes and dtypes.

    Raises:
        ValueError: they do not; the message names the first difference.
    """
    (first, model), *others = described.items()
    for worker, one in others:
        if difference := model.difference(one):
            raise ValueError(
                f"worker {worker} cannot be joined with worker {first}: {difference}; "
                "give all workers envs and policies of the same kind"
            )


def require_joinable(described: Mapping[int, Description], cat_dim: int | None) -> None:
    """Shares must fit side by side.

    Raises:
        ValueError: they are of different lengths, or there is no such dimension.
    """
    shape = described[0].layout.batch_shape
    if cat_dim is not None and not -len(shape) - 1 <= cat_dim <= len(shape):
        raise ValueError(f"cat_results={cat_dim}: shares have the dimensions {[*shape, 'T']}; there is no such one")
    lengths = {worker: one.n_steps for worker, one in described.items()}
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
    jobs, group = collection.jobs, collection.group
    fleet = group.fleet
    assert isinstance(fleet, Fleet)
    with collection.changing:
        new = dict(enumerate(requests, max(jobs.requests) + 1))
        share = None if share_of is None else share_of(len(jobs.requests) + len(new))
        said: dict[int, Description] = {}

        def accept(handles: Sequence[Handle]) -> None:
            """They must give the same entries and take the same weights as the others."""
            tickets = {handle.name.worker: fleet.call(handle, "describe") for handle in handles}
            fleet.wait_for_all(list(tickets.values()))
            said.update({worker: ticket.value for worker, ticket in tickets.items()})
            known, model = next(iter(jobs.described.items()))
            require_equal({known: model, **said})
            for worker, one in said.items():
                if difference := model.manifest.difference(one.manifest):
                    raise ValueError(f"worker {worker} would take other weights than worker {known}: {difference}")

        jobs.requests.update(new)
        try:
            fleet.add(len(new), accept)
        except BaseException:
            for worker in new:
                del jobs.requests[worker]
            raise
        for worker in new if own_weights else ():
            group.channel.keeps_own(worker)
        jobs.described.update(said)
        with group.lock:
            if jobs.seeding is not None:
                group.send(dict.fromkeys(new, ("seed_with", jobs.seeding)))
            known = jobs.described.items()  # requests that are out stay as they are
            group.frames = {worker: one.rounded(share or one.frames) for worker, one in known}
            if share is not None:
                collection.batch_frames = sum(group.frames.values())
