"""From a request to a collection: workers are brought up, described, compared, seeded; more are added later."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from swath.collectors.delivery import Delivery
from swath.collectors.fragments import Fragments
from swath.collectors.gather import AsReady, InOrder
from swath.collectors.jobs import WorkerJobs, frozen_request
from swath.collectors.joining import Joiner
from swath.collectors.messages import Description
from swath.collectors.options import Hooks
from swath.collectors.remote import RemoteWorker
from swath.collectors.replay import WriteRequest, first_client
from swath.collectors.request import CollectorRequest
from swath.collectors.service import CollectorService
from swath.collectors.worker_request import WorkerRequest, never
from swath.errors import warn
from swath.group.local import Gate, LocalChannel, LocalFleet
from swath.rollout.episodes.statistics import MOST_WORKERS
from swath.rollout.hosts.sources import claim, require_free
from swath.weights.channel import Channel
from swath.workers.base import Handle
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.fleet_state import FIRST

PRELOADED = ("swath.collectors.remote", "gymnasium", "tensordict")
"""What every worker imports in any case."""

GOODBYE_S = 2.0
"""How long workers have to close their envs when what they were built for fails."""


def assemble(request: CollectorRequest, republish: Callable[[], Any]) -> CollectorService:
    """Bring up what was asked for, one worker in this process or a fleet; blocks until all have built env and policy.

    Raises:
        PlacementFailed: there is no room.
        ValueError: workers whose shares are joined differ.
        Exception: what building env or policy raised; everything is closed again.
    """
    gate, jobs, late = Gate(request.name), _jobs(request), tuple[int, ...]()
    fleet: Fleet | LocalFleet
    channel: Channel
    if jobs.here:
        core, asked = request.workers[0], request.workers[0].stopped
        require_free(core.source.env)
        stopped = (lambda: gate.halted) if asked is never else lambda: gate.halted or asked()
        jobs.requests[0] = replace(core, stopped=stopped)
        member: RemoteWorker = jobs.job(FIRST).build()
        claim(core.source.env, gate)
        fleet, channel = LocalFleet(member, gate), LocalChannel(member, gate)
    else:
        bare = jobs.before is not None
        places = backend(request.backend, preload=PRELOADED, bare=bare, options=request.backend_options)
        fleet, channel = Fleet(places, jobs.job, len(request.workers), request.options.survival), Channel(places.share)
    try:
        group = Fragments(fleet, channel, request.options.end)
        group.automatic, group.publish, jobs.known = request.automatic, republish, group.workers
        group.max_staleness = request.options.max_staleness
        if isinstance(fleet, Fleet):
            late = fleet.bring_up()
            with suppress(TypeError):  # workers elsewhere cannot see memory of this process
                group.bell = places.watched(len(request.workers))
        said = group.call("describe") or {0: group.call_first("describe")}
        model = next(iter(said.values()))  # those who join later are as the first that is up
        jobs.described.update({worker: said.get(worker, model) for worker in jobs.requests})
        if request.sync:
            require_equal(jobs.described)
            require_joinable(jobs.described, request.cat_dim)
        collection = _collection(request, jobs, group, gate)
        if request.sync:
            group.send({worker: ("conform", jobs.described[worker]) for worker in late})
        if request.options.seed is not None:
            seed_all(collection, request.options.seed)
    except BaseException:
        theirs = jobs.here and request.workers[0].source.is_instance
        gate.close(GOODBYE_S, lambda: fleet.close(GOODBYE_S, ask=not theirs))
        raise
    return collection


def seed_all(collection: CollectorService, root: int, *, static: bool = False) -> None:
    """Seed every worker and its next lives; fresh episodes begin, what is in flight is dropped."""
    with collection.forgetting() as calls:
        collection.jobs.seed_with(root, static=static)
        calls.update(collection.group.to_all("seed_with", collection.jobs.seeding))


def move_fleet(collection: CollectorService, index: int) -> None:
    """Be collection `index` of a larger one; fresh episodes begin, what is in flight is dropped."""
    jobs = collection.jobs
    with collection.forgetting() as calls:
        jobs.first = first_worker(index, len(jobs.described))
        for worker in jobs.described:
            jobs.lives[worker] = jobs.last_life(worker) + 1
            calls[worker] = "move_to", jobs.first + worker


def first_worker(index: int, n: int) -> int:
    """The index of the first worker of collection `index`, each having `n`.

    Raises:
        ValueError: trajectory ids would stop being unique.
    """
    if (index + 1) * n > MOST_WORKERS:
        raise ValueError(
            f"worker_idx={index} with {n} workers: there may be {MOST_WORKERS} workers in all, so that trajectory ids "
            "stay unique"
        )
    return index * n


def _jobs(request: CollectorRequest) -> WorkerJobs:
    """How the workers are brought up; elsewhere they write to the replay buffer for themselves if it offers that.

    Raises:
        ValueError: what is too old cannot be left out of what is written at once.
    """
    here, options, hooks, policies = (
        request.backend == "direct",
        request.options,
        request.options.hooks,
        dict[int, Any](),
    )
    requests = {number: one if here else frozen_request(one, policies) for number, one in enumerate(request.workers)}
    client, writing = None if here else first_client(options.replay_buffer), None
    if client is not None:
        if request.options.max_staleness is not None:
            raise ValueError(
                "max_staleness drops fragments that workers write to this replay buffer themselves; leave it out, or "
                "give a buffer without client()"
            )
        cut = request.cat_dim == -1
        writing = WriteRequest(client, options.trajectories, options.track_traj_ids, cut=cut)
    elif not here:
        hooks = replace(hooks, postproc=None)
    return WorkerJobs(
        requests,
        options.init_fn,
        writing,
        options.replay_buffer,
        [] if client is None else [client],
        in_threads=request.backend == "thread",
        here=here,
        hooks=hooks,
        first=first_worker(options.index, len(requests)),
    )


def _collection(request: CollectorRequest, jobs: WorkerJobs, group: Fragments, gate: Gate) -> CollectorService:
    described, options = jobs.described, request.options
    group.frames = {worker: one.frames for worker, one in described.items()}
    batch_frames = sum(group.frames.values()) if request.sync else described[0].frames
    if batch_frames != options.frames:
        warn(
            f"frames_per_batch={options.frames} is not shared evenly by workers and their envs; "
            f"batches have {batch_frames} frames"
        )
    stores = [worker.options.devices.storing for worker in request.workers]
    several = not jobs.here and (request.sync or options.trajectories.per_batch is not None)
    hooks = jobs.hooks if jobs.here else Hooks(postproc=options.postproc)
    ending = group.counters, gate.require_open, options.track_traj_ids, options.replay_buffer
    service = CollectorService(
        group,
        jobs,
        InOrder(group, request.ahead, request.enough) if request.sync else AsReady(group, request.ahead),
        Joiner(described, stores, dim=request.cat_dim, several=several, own=jobs.here),
        Delivery(described[0].layout, options.trajectories, hooks, *ending),
        batch_frames,
        gate,
        options.random_frames,
    )
    service.begin_randomly()
    return service


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
    jobs, fleet, channel = collection.jobs, collection.group.fleet, collection.group.channel
    assert isinstance(fleet, Fleet)
    with collection.changing:
        first = max(jobs.requests) + 1
        total = first + len(requests)
        share = None if share_of is None else share_of(total)
        new = dict(enumerate(requests, first))
        said: dict[int, Description] = {}

        def accept(handles: Sequence[Handle]) -> None:
            """They must give the same entries and take the same weights as the others."""
            tickets = {handle.name.worker: fleet.call(handle, "describe") for handle in handles}
            fleet.answers(list(tickets.values()))
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
            channel.keeps_own(worker)
        jobs.described.update(said)
        with collection.group.lock:
            if jobs.seeding is not None:
                collection.group.send(dict.fromkeys(new, ("seed_with", jobs.seeding)))
            known = jobs.described.items()  # requests that are out stay as they are
            collection.group.frames = {worker: one.rounded(share or one.frames) for worker, one in known}
            if share is not None:
                collection.batch_frames = sum(collection.group.frames.values())
