"""From a fleet request to a collection with many workers: brought up, described, compared, seeded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from swath.collect.counters import Counters
from swath.collect.crew import Crew, Standing, Template
from swath.collect.desk import Desk
from swath.collect.fleet_collection import FleetCollection, Making
from swath.collect.gather import AllOf, FirstOf, Pace
from swath.collect.joining import batch_of, stacked, without_missing
from swath.collect.remote import PUBLIC, Description
from swath.collect.shaping import Shaper
from swath.collect.worker import Seeding
from swath.collectors.fleet_request import FleetRequest
from swath.options import Hooks
from swath.rollout.fragment import Layout
from swath.weights.channel import Channel
from swath.weights.due import Due
from swath.workers.base import Backend, Handle
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.tickets import Ticket

PRELOADED = ("swath.collect.remote", "gymnasium", "tensordict")
"""What every worker imports in any case."""


@dataclass
class Assembled:
    """A collection with many workers, and what its face knows of them.

    Attributes:
        collection: the service.
        crew: makes their jobs.
        described: what they are like, by worker.
        shares_generators: whether workers draw from this process's random generators, all at once.
    """

    collection: FleetCollection
    crew: Crew
    described: dict[int, Description]
    shares_generators: bool = False

    @property
    def fleet(self) -> Fleet:
        """The workers."""
        return self.collection.desk.fleet


def assemble_fleet(request: FleetRequest, republish: Callable[[], Any]) -> Assembled:
    """Bring everything up; blocks until every worker has built env and policy.

    Raises:
        PlacementFailed: there is no room.
        ValueError: workers whose shares are joined differ.
        Exception: what building env or policy raised; everything is closed again.
    """
    crew = _crew(request)
    places = backend(request.places.backend, preload=PRELOADED)
    fleet = Fleet(places, crew.job, len(request.workers), request.survival)
    try:
        fleet.bring_up()
        assembled = _collection(request, crew, fleet, places, republish)
        if request.seed is not None:
            seed_all(assembled, request.seed, static=False)
    except BaseException:
        fleet.close(0.0)
        raise
    return assembled


def seed_all(assembled: Assembled, seed: int, *, static: bool) -> None:
    """Seed every worker and its next lives; fresh episodes begin, what is in flight is dropped."""
    collection, first = assembled.collection, 0
    with collection.forgetting():
        seeding = assembled.crew.standing.seeding
        for worker, description in sorted(assembled.described.items()):
            seeding[worker] = Seeding(seed, static, first, assembled.shares_generators)
            first += description.num_envs
        tickets: dict[int, Ticket] = {}
        for worker, one in seeding.items():
            tickets |= collection.send("seed_with", (one,), {}, [worker])
    collection.answers(tickets)


def _crew(request: FleetRequest) -> Crew:
    policies: dict[int, Any] = {}
    templates = {}
    for worker, core in enumerate(request.workers):
        template = Template(core, core.episodes.set_truncated, request.places.resources_of(worker))
        templates[worker] = template.frozen(policies)
    hooks = Hooks(before=request.hooks.before, after=request.hooks.after)
    return Crew(templates, Standing(hooks=hooks), request.places.threads, request.places.init_fn, PUBLIC)


def _collection(
    request: FleetRequest, crew: Crew, fleet: Fleet, places: Backend, republish: Callable[[], Any]
) -> Assembled:
    described = described_by(fleet, fleet.up.values())
    first = next(iter(described.values()))
    if request.order.sync:
        require_equal(described)
    counters = Counters()
    frames = {worker: described.get(worker, first).frames for worker in range(len(request.workers))}
    replace_failing = request.workers[0].faults.on_env_error == "restart"
    enough = request.order.enough(len(frames))
    bell = None if enough is None else places.watched(len(frames))
    desk = Desk(fleet, Channel(places.share), frames, request.budget, counters, replace_failing, bell)
    batch_frames = sum(frames.values()) if request.order.sync else first.frames
    order = request.order
    pace = Pace(order.ahead, order.max_staleness, request.budget.random_batches(batch_frames))
    shaper = Shaper(
        layout=masked(first.layout, request),
        trajectories=request.trajectories,
        hooks=Hooks(postproc=request.hooks.postproc),
        device=_storing(request),
        keep_ids=request.entries.track_ids,
    )
    request.budget.warn_if_rounded(batch_frames, stacklevel=5)
    collection = FleetCollection(
        desk=desk,
        gather=AllOf(desk, pace, list(frames), enough) if order.sync else FirstOf(desk, pace),
        pace=pace,
        making=_making(request, first),
        shaper=shaper,
        due=Due(request.automatic),
        republish=republish,
        batch_frames=batch_frames,
        buffer=request.buffer,
        name=request.name,
        counters=counters,
    )
    return Assembled(collection, crew, described, request.places.backend == "thread")


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
        for key in [*model.signature, *one.signature]:
            mine, theirs = model.signature.get(key), one.signature.get(key)
            if mine != theirs:
                raise ValueError(
                    f"workers {first} and {worker} cannot be joined: entry {key!r} is {_said(mine)} in one and "
                    f"{_said(theirs)} in the other; give all workers envs and policies of the same kind"
                )


def _said(entry: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "missing" if entry is None else f"{list(entry[0])} of {entry[1]}"


def _making(request: FleetRequest, first: Description) -> Making:
    layout, dim = masked(first.layout, request), request.order.cat_dim

    def parts(bodies: Sequence[Any]) -> list[Any]:
        return [batch_of(body, layout) for body in bodies]

    def joined(bodies: Sequence[Any]) -> Any:
        if dim is None:
            return stacked(bodies, layout)
        shares = parts(bodies)
        return torch.cat([without_missing(share) for share in shares] if dim == -1 else shares, dim)

    return Making((lambda bodies: batch_of(bodies[0], layout)) if not request.order.sync else joined, parts)


def masked(layout: Layout, request: FleetRequest) -> Layout:
    """The layout of batches: with a mask in all of them where some may lack rows."""
    return replace(layout, masked=layout.masked or request.order.preemptive_threshold is not None)


def _storing(request: FleetRequest) -> torch.device | None:
    device: torch.device | None = request.storing
    return device
