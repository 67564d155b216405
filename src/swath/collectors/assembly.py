"""From a request to a collection: workers are brought up, described, compared, seeded; more are added later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from swath.collectors.delivery import Delivery
from swath.collectors.fragments import Fragments, nothing
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
from swath.group.gather import AsReady, InOrder
from swath.group.group import Call, WorkerGroup
from swath.group.local import Gate, LocalChannel, LocalFleet
from swath.rollout.episodes.statistics import MOST_WORKERS
from swath.rollout.hosts.sources import claim, require_free
from swath.weights.channel import Channel
from swath.workers.base import Backend, Handle, Watched
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.fleet_state import FIRST

PRELOADED = ("swath.collectors.remote", "gymnasium", "tensordict")
"""What every worker imports in any case."""

GOODBYE_S = 2.0
"""How long workers have to close their envs when what they were built for fails."""


def assemble(request: CollectorRequest, republish: Callable[[], Any]) -> CollectorService:
    """Bring up what was asked for: one worker in this process, or a fleet."""
    return _assemble_here(request) if request.backend == "direct" else _assemble_fleet(request, republish)


def _assemble_here(request: CollectorRequest) -> CollectorService:
    """A collection with one worker in this process.

    Raises:
        Exception: whatever is wrong with env or policy, after everything that was built is closed.
    """
    (core,) = request.workers
    require_free(core.source.env)
    gate, asked = Gate(request.name), core.stopped
    core = replace(core, stopped=(lambda: gate.halted) if asked is never else lambda: gate.halted or asked())
    jobs = WorkerJobs({0: core}, here=True, first=first_worker(request.options.index, 1))
    member: RemoteWorker = jobs.job(FIRST).build()
    claim(core.source.env, gate)
    group = WorkerGroup(LocalFleet(member, gate), LocalChannel(member, gate))
    jobs.described[0] = member.describe()
    collection = _collection(request, jobs, group, gate, None, nothing)
    if request.options.seed is not None:
        try:
            seed_all(collection, request.options.seed)
        except BaseException:
            collection.close(GOODBYE_S, close_env=not core.source.is_instance)
            raise
    return collection


def _assemble_fleet(request: CollectorRequest, republish: Callable[[], Any]) -> CollectorService:
    """Bring everything up; blocks until every worker has built env and policy.

    Raises:
        PlacementFailed: there is no room.
        ValueError: workers whose shares are joined differ.
        Exception: what building env or policy raised; everything is closed again.
    """
    jobs = _jobs(request)
    bare = jobs.before is not None
    places = backend(request.backend, preload=PRELOADED, bare=bare, options=request.backend_options)
    fleet = Fleet(places, jobs.job, len(request.workers), request.survival)
    group = WorkerGroup(fleet, Channel(places.share))
    try:
        late = fleet.bring_up()
        jobs.described.update(_all_described(fleet, len(request.workers)))
        if request.order.sync:
            require_equal(jobs.described)
            require_joinable(jobs.described, request.order.cat_dim)
        bell = _bell(places, len(request.workers), needed=request.order.preemptive_threshold is not None)
        collection = _collection(request, jobs, group, Gate(request.name), bell, republish)
        if request.order.sync:
            group.send({worker: Call("conform", (collection.jobs.described[worker],)) for worker in late})
        if request.options.seed is not None:
            seed_all(collection, request.options.seed)
    except BaseException:
        group.fleet.close(GOODBYE_S)
        raise
    return collection


def seed_all(collection: CollectorService, root: int, *, static: bool = False) -> None:
    """Seed every worker and its next lives; fresh episodes begin, what is in flight is dropped."""
    with collection.forgetting():
        collection.jobs.seed_with(root, static=static)
        tickets = collection.group.send(collection.group.to_all("seed_with", collection.jobs.seeding))
    collection.group.answers(tickets)


def move_fleet(collection: CollectorService, index: int) -> None:
    """Be collection `index` of a larger one; fresh episodes begin, what is in flight is dropped."""
    jobs = collection.jobs
    with collection.forgetting():
        jobs.first = first_worker(index, len(jobs.described))
        calls = {}
        for worker in jobs.described:
            jobs.lives[worker] = jobs.last_life(worker) + 1
            calls[worker] = Call("move_to", (jobs.first + worker,))
        tickets = collection.group.send(calls)
    collection.group.answers(tickets)


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
    """How the workers are brought up; they write to the replay buffer for themselves if it offers that.

    Raises:
        ValueError: what is too old cannot be left out of what is written at once.
    """
    policies, options = dict[int, Any](), request.options
    requests = {worker: frozen_request(core, policies) for worker, core in enumerate(request.workers)}
    client, writing, hooks = first_client(options.replay_buffer), None, replace(options.hooks, postproc=None)
    if client is not None:
        if request.order.max_staleness is not None:
            raise ValueError(
                "max_staleness drops fragments that workers write to this replay buffer themselves; leave it out, or "
                "give a buffer without client()"
            )
        cut = request.order.cat_dim == -1
        writing, hooks = WriteRequest(client, options.trajectories, options.track_traj_ids, cut=cut), options.hooks
    return WorkerJobs(
        requests,
        request.init_fn,
        writing,
        options.replay_buffer,
        [] if client is None else [client],
        request.backend == "thread",
        hooks=hooks,
        first=first_worker(options.index, len(requests)),
    )


def _collection(
    request: CollectorRequest,
    jobs: WorkerJobs,
    group: WorkerGroup,
    gate: Gate,
    bell: Watched | None,
    republish: Callable[[], Any],
) -> CollectorService:
    described, order, options = jobs.described, request.order, request.options
    frames = {worker: one.frames for worker, one in described.items()}
    batch_frames = sum(frames.values()) if order.sync else described[0].frames
    trajectories = options.trajectories
    if batch_frames != options.frames:
        warn(
            f"frames_per_batch={options.frames} is not shared evenly by workers and their envs; "
            f"batches have {batch_frames} frames"
        )
    fragments = group.tracker = Fragments(
        group, frames, options.end, jobs.replaces, request.automatic, republish, bell, max_staleness=order.max_staleness
    )
    jobs.known = fragments.workers
    enough = order.enough(len(frames))
    service = CollectorService(
        group=group,
        jobs=jobs,
        fragments=fragments,
        gather=InOrder(group, fragments, order.ahead, enough) if order.sync else AsReady(group, fragments, order.ahead),
        joiner=Joiner(
            described,
            [worker.options.devices.storing for worker in request.workers],
            dim=order.cat_dim,
            several=not jobs.here and (order.sync or trajectories.per_batch is not None),
            own=jobs.here,
        ),
        delivery=Delivery(
            described[0].layout,
            trajectories,
            options.hooks if jobs.here else Hooks(postproc=options.postproc),
            fragments.counters,
            gate.require_open,
            options.track_traj_ids,
            options.replay_buffer,
        ),
        batch_frames=batch_frames,
        gate=gate,
        random_frames=options.random_frames,
    )
    service.begin_randomly()
    return service


def _all_described(fleet: Fleet, n: int) -> dict[int, Description]:
    """What all workers are like; those who join later as the first that is up."""
    said = described_by(fleet, fleet.up.values())
    model = next(iter(said.values()))
    return {worker: said.get(worker, model) for worker in range(n)}


def _bell(places: Backend, n: int, *, needed: bool) -> Watched | None:
    """Numbers that workers watch.

    Raises:
        TypeError: they are needed, and workers elsewhere cannot see them.
    """
    try:
        return places.watched(n)
    except TypeError:
        if needed:
            raise
        return None


def described_by(fleet: Fleet, handles: Iterable[Handle]) -> dict[int, Description]:
    """What these workers say they are like."""
    tickets = {handle.name.worker: fleet.call(handle, "describe") for handle in handles}
    fleet.answers(list(tickets.values()))
    return {worker: ticket.value for worker, ticket in sorted(tickets.items())}


def require_equal(described: Mapping[int, Description]) -> None:
    """Workers whose shares are joined must yield the same keys, shapes and dtypes.

    Raises:
        ValueError: they do not; the message names the first difference.
    """
    (first, model), *others = described.items()
    for worker, one in others:
        difference = model.difference(one)
        if difference:
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
            if jobs.seeding is not None:
                collection.group.send({worker: Call("seed_with", (jobs.seeding,)) for worker in new})
            frames = {worker: one.frames for worker, one in jobs.described.items()}
            if share is not None:
                frames = {worker: one.rounded(share) for worker, one in jobs.described.items()}
                collection.batch_frames = sum(frames.values())
            collection.fragments.frames = frames  # requests that are out stay as they are


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
