"""From a fleet request to a collection with many workers: brought up, described, compared, seeded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from swath.collect.books import FragmentBooks, head_of
from swath.collect.counters import Counters
from swath.collect.description import Description
from swath.collect.fleet_collection import FleetCollection, Making
from swath.collect.jobs import Standing, Template, WorkerJobs
from swath.collect.joining import Homes, batch_of, stacked
from swath.collect.plan import FragmentPlan, Renewal
from swath.collect.remote import PUBLIC
from swath.collect.shaping import Shaper
from swath.collect.worker import Seeding
from swath.collect.writing import Writers, first_client
from swath.collectors.fleet_request import FleetRequest
from swath.group.gather import AsReady, InOrder
from swath.group.group import Call, WorkerGroup
from swath.group.request import Request
from swath.options import Hooks
from swath.rollout.episodes.ids import MOST_WORKERS
from swath.weights.due import Due
from swath.workers.base import Backend, Handle, Watched
from swath.workers.create import backend
from swath.workers.fleet import Fleet

PRELOADED = ("swath.collect.remote", "gymnasium", "tensordict")
"""What every worker imports in any case."""

GOODBYE_S = 2.0
"""How long workers have to close their envs when what they were built for fails."""


@dataclass
class Assembled:
    """A collection with many workers, and what its face knows of them.

    Attributes:
        collection: the service.
        jobs: makes their jobs.
        described: what they are like, by worker.
    """

    collection: FleetCollection
    jobs: WorkerJobs
    described: dict[int, Description]

    @property
    def fleet(self) -> Fleet:
        """The workers."""
        return self.collection.group.fleet


def assemble_fleet(request: FleetRequest, republish: Callable[[], Any]) -> Assembled:
    """Bring everything up; blocks until every worker has built env and policy.

    Raises:
        PlacementFailed: there is no room.
        ValueError: workers whose shares are joined differ.
        Exception: what building env or policy raised; everything is closed again.
    """
    jobs = _jobs(request)
    bare = jobs.before is not None
    places = backend(request.places.backend, preload=PRELOADED, bare=bare, options=request.places.options)
    group = WorkerGroup(places, jobs.job, len(request.workers), request.survival)
    try:
        late = group.fleet.bring_up()
        assembled = _collection(request, jobs, group, places, republish)
        if request.order.sync:
            group.send({worker: Call("conform", (assembled.described[worker],)) for worker in late})
        if request.seed is not None:
            seed_all(assembled, Seeding(request.seed))
    except BaseException:
        group.fleet.close(GOODBYE_S)
        raise
    return assembled


def seed_all(assembled: Assembled, seeding: Seeding) -> None:
    """Seed every worker and its next lives; fresh episodes begin, what is in flight is dropped."""
    collection = assembled.collection
    with collection.forgetting():
        spread_seed(assembled, seeding)
        seeding_of = assembled.jobs.standing.seeding
        tickets = collection.group.send({worker: Call("seed_with", (one,)) for worker, one in seeding_of.items()})
    collection.group.answers(tickets)


def spread_seed(assembled: Assembled, seeding: Seeding) -> None:
    """Say where the seeds of all workers come from, and of their next lives; envs are numbered through."""
    described, standing = assembled.described, assembled.jobs.standing
    first = seeding.first_env
    if first is None:
        first = standing.first // len(described) * sum(one.all_envs for one in described.values())
    envs_only = seeding.envs_only or assembled.jobs.in_threads  # these draw from one generator, all at once
    for worker, one in sorted(described.items()):
        standing.seeding[worker] = Seeding(seeding.root, seeding.static, first, envs_only)
        first += one.all_envs


def move_fleet(assembled: Assembled, index: int) -> None:
    """Be collection `index` of a larger one; fresh episodes begin, what is in flight is dropped."""
    collection, standing = assembled.collection, assembled.jobs.standing
    with collection.forgetting():
        standing.first = first_worker(index, len(assembled.described))
        known = next(iter(standing.seeding.values()), None)
        if known is not None:
            spread_seed(assembled, Seeding(known.root, known.static))
        calls = {}
        for worker in assembled.described:
            standing.lives[worker] = standing.last_life(worker) + 1
            calls[worker] = Call("move_to", (standing.first + worker, standing.seeding.get(worker)))
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


def _jobs(request: FleetRequest) -> WorkerJobs:
    policies: dict[int, Any] = {}
    templates = {}
    for worker, core in enumerate(request.workers):
        template = Template(
            core,
            request.places.resources_of(worker),
            masked=request.order.preemptive_threshold is not None,
            make=request.makers[worker if len(request.makers) > 1 else 0],
            threads=request.places.threads_of(worker),
        )
        templates[worker] = template.frozen(policies)
    writers = _writers(request)
    hooks = replace(request.hooks, postproc=None if writers is None else request.hooks.postproc)
    standing = Standing(hooks=hooks, first=first_worker(request.index, len(templates)))
    return WorkerJobs(templates, standing, request.places.init_fn, PUBLIC, writers, request.places.backend == "thread")


def _writers(request: FleetRequest) -> Writers | None:
    """With what workers write to the replay buffer for themselves, if it offers that.

    Raises:
        ValueError: what is too old cannot be left out of what is written at once.
    """
    client = first_client(request.buffer)
    if client is None:
        return None
    if request.order.max_staleness is not None:
        raise ValueError(
            "max_staleness drops fragments that workers write to this replay buffer themselves; leave it out, or give "
            "a buffer without client()"
        )
    cut = request.order.cat_dim == -1
    return Writers(request.buffer, request.trajectories, request.entries.track_ids, cut, [client])


def _collection(
    request: FleetRequest, jobs: WorkerJobs, group: WorkerGroup, places: Backend, republish: Callable[[], Any]
) -> Assembled:
    described = jobs.standing.described
    described.update(_all_described(group.fleet, len(request.workers)))
    first = described[0]
    if request.order.sync:
        require_equal(described)
        require_joinable(described, request.order.cat_dim)
    counters = Counters()
    frames = {worker: one.frames for worker, one in described.items()}
    enough = request.order.enough(len(frames))
    bell = _bell(places, len(frames), needed=enough is not None)
    order, budget, renewal = request.order, request.budget, Renewal(Due(request.automatic), republish)
    batch_frames = sum(frames.values()) if order.sync else first.frames
    books = group.books = FragmentBooks(group, counters, jobs.replaces)
    jobs.standing.known = books.workers
    random_batches = budget.random_batches(batch_frames)
    plan = FragmentPlan(group, books, frames, budget, renewal, bell, random_batches, order.max_staleness)
    shaper = Shaper(
        layout=first.layout,
        trajectories=request.trajectories,
        hooks=Hooks(postproc=request.hooks.postproc),
        keep_ids=request.entries.track_ids,
    )
    budget.warn_if_rounded(batch_frames)
    collection = FleetCollection(
        group=group,
        plan=plan,
        gather=InOrder(group, plan, order.ahead, enough) if order.sync else AsReady(group, plan, order.ahead),
        making=_making(request, described),
        shaper=shaper,
        budget=budget,
        batch_frames=batch_frames,
        buffer=request.buffer,
        written_there=jobs.writers is not None,
        name=request.name,
        counters=counters,
    )
    return Assembled(collection, jobs, described)


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


def _making(request: FleetRequest, described: Mapping[int, Description]) -> Making:
    dim, sync = request.order.cat_dim, request.order.sync
    several = sync or request.trajectories.per_batch is not None
    homes = Homes([worker.devices.storing for worker in request.workers], joined=several)

    def parts(shares: Sequence[Request], bodies: Sequence[Any]) -> list[Any]:
        made = [
            homes.place(batch_of(body, described[share.worker].layout), share.worker)
            for share, body in zip(shares, bodies, strict=True)
        ]
        return made if dim != -1 else [_cut(share, part) for share, part in zip(shares, made, strict=True)]

    def joined(shares: Sequence[Request], bodies: Sequence[Any]) -> Any:
        if dim is None:
            return homes.place(stacked(bodies, described[shares[0].worker].layout), 0)
        return torch.cat(parts(shares, bodies), dim)

    return Making(joined if sync else lambda shares, bodies: parts(shares, bodies)[0], parts)


def _cut(share: Request, part: Any) -> Any:
    """Without the steps that were not made."""
    return part[..., : head_of(share).steps]
