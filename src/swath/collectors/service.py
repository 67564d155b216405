"""The service behind all collectors: it starts workers, gathers their fragments, and delivers batches.

assemble ─▶ workers are started, described and compared; more can be added later
draw ─▶ gather (InOrder | AsReady) ─▶ open bodies ─▶ request the next fragments ─▶ one copy into a batch ─▶ deliver
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from swath.collectors.delivery import ENDED, Delivery, Joiner
from swath.collectors.gather import AsReady, Fragments, InOrder
from swath.collectors.jobs import WorkerJobs, whole_share
from swath.collectors.messages import Description, WorkerRequest, head_of
from swath.collectors.options import AnyOptions, Hooks
from swath.collectors.weights import WeightPublisher
from swath.errors import Closed, FleetFailed, PayloadLost, note_source, warn
from swath.group.group import Request, WorkerGroup
from swath.group.local import Access, LocalChannel, LocalFleet
from swath.owner import Owner
from swath.rollout.hosts.sources import claim, require_unused, used_by_others
from swath.weights.channel import Channel
from swath.workers.base import Handle
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.fleet_state import FIRST_LIFE

PRELOADED = ("swath.collectors.worker", "gymnasium", "tensordict")
"""Modules that every worker imports."""

CLOSE_ENVS_S = 2.0
"""How long workers have to close their envs when the collection cannot be built."""

POLLS_BEFORE_WARNING = 100


class CollectorService:
    """Draws batches from workers until the total is reached. Any thread may call; one draws at a time.

    Args:
        group: the workers, and the requests to them.
        jobs: options of the collector, how workers are started, and their descriptions.
        access: decides which thread may draw; knows whether the collection is open.

    Attributes:
        member: the one worker in this process; `None` where workers live elsewhere.
        weights: publishes and receives weights.
        owner: the process that built it.
        gather: decides which worker is asked next.
        delivery: turns batches into what the user gets.
    """

    def __init__(self, group: Fragments, jobs: WorkerJobs, access: Access) -> None:
        options = self.options = jobs.options
        self.group, self.jobs, self.access, self.owner = group, jobs, access, Owner()
        self.member: Any = group.fleet.member if isinstance(group.fleet, LocalFleet) else None
        self.weights = WeightPublisher(group, jobs, access, self.member)
        self.counters, self.buffer, described = group.counters, options.replay_buffer, jobs.described
        self.changing = threading.RLock()  # held while workers are added, which takes long
        if self.batch_frames != options.frames:
            warn(
                f"frames_per_batch={options.frames} is not shared evenly by workers and their envs; "
                f"batches have {self.batch_frames} frames"
            )
        threshold, trajectories = options.preemptive_threshold, options.trajectories
        min_replies = None if threshold is None else int(len(described) * threshold)
        self.gather = InOrder(group, options.ahead, min_replies) if options.in_order else AsReady(group, options.ahead)
        devices = [request.options.devices.storing for request in jobs.requests.values()]
        joins = not options.in_process and (options.in_order or trajectories.per_batch is not None)
        self._joiner = Joiner(described, devices, options.cat_dim, joins, reuses_arrays=options.in_process)
        hooks = jobs.hooks if options.in_process else Hooks(postproc=options.postproc)
        ending = self.counters, access.require_open, options.track_traj_ids, self.buffer
        self.delivery = Delivery(described[0].layout, trajectories, hooks, *ending)
        self._further_writes = self._polls_in_vain = 0
        self.begin_randomly()

    @property
    def batch_frames(self) -> int:
        """Return the frames of a batch."""
        shares = self.group.shares
        return sum(shares.values()) if self.options.in_order else shares[0]

    @property
    def completed(self) -> bool:
        """Return whether the run has reached its end."""
        total = self.group.total
        return total is not None and self.counters.frames >= total

    @property
    def closed(self) -> bool:
        """Return whether it steps no env any more: it was shut down, or the run has reached its end."""
        return self.access.closed or self.completed

    @property
    def open_group(self) -> Fragments:
        """Return the workers, to be called between two fragments.

        Raises:
            Closed: after shutdown.
        """
        self.access.require_open()
        return self.group

    @property
    def version(self) -> int:
        """Return the newest published version."""
        return self.group.channel.version

    def draw(self) -> Any:
        """Return the next batch; `None` where it was written to a buffer, `ENDED` when the run is over.

        Raises:
            Closed: after shutdown, or shut down meanwhile.
            RuntimeError: another thread is drawing.
            FleetFailed: too few workers are left.
            Exception: what user code raised, as its own type; draw again.
        """
        with self.access.drawing():
            self.access.require_open()
            if self.completed:
                self.drop_pending()
                return ENDED
            self.counters.start_clock()
            began = time.monotonic()
            try:
                with self.group.lock:  # a draw that Ctrl-C has broken off loses what it was delivering
                    self._end([request for request in self.group.pending if request.being_delivered], delivered=False)
                if self.weights.receivers:
                    self.weights.receive()
                self.group.begin_draw()
                return self._deliver_next()
            except FleetFailed:
                self.drop_pending()
                raise
            finally:
                self.counters.seconds_waiting += time.monotonic() - began

    def drop_pending(self, workers: Collection[int] | None = None, envs: list[int] | None = None) -> None:
        """Drop and count pending fragments and unfinished episodes, of all workers, of some, or of some envs."""
        with self.group.lock:
            if envs is None:
                self.gather.drop(workers)
            if self.delivery.whole_episodes is not None:
                self.delivery.whole_episodes.drop([None] if workers is None else workers, envs)

    @contextmanager
    def dropping(
        self, workers: Collection[int] | None = None, envs: list[int] | None = None
    ) -> Iterator[dict[int, Sequence[Any]]]:
        """Drop pending fragments, then make the calls that are put into this dict by worker, before later requests.

        The body of the `with` block runs between the two. At its end the calls are waited for.
        """
        self.access.require_between()
        calls: dict[int, Sequence[Any]] = {}
        with self.group.lock:
            self.drop_pending(workers, envs)
            yield calls
            tickets = self.group.send(calls)
        self.group.answers(tickets)

    def begin_randomly(self) -> None:
        """Make as many of the next batches random as the counters leave of the random beginning."""
        batches = -(-self.options.random_frames // self.batch_frames) - self.counters.frames // self.batch_frames
        self.group.set_random_batches(max(0, batches))

    def set_hooks(self, **changed: Any) -> None:
        """Set functions of the user that are called around fragments, where they are called."""
        group, jobs = self.open_group, self.jobs
        jobs.hooks = replace(jobs.hooks, **changed)
        if self.options.in_process:
            self.delivery.hooks = jobs.hooks
        else:
            group.call("set_hooks", jobs.hooks)

    def set_random(self, randomly: bool) -> None:
        """Make all batches random from now on, or none; drop pending fragments if that is a change."""
        if randomly != (self.group.random_batches > 0):
            self.drop_pending()
            self.group.set_random_batches(sys.maxsize if randomly else 0)

    def seed(self, root: int, *, static: bool = False) -> None:
        """Seed every worker and its next lives; begin fresh episodes, and drop pending fragments."""
        with self.dropping() as calls:
            self.jobs.seed_with(root, static=static)
            calls.update(self.group.to_all("seed_with", self.jobs.seeding))

    def move_to(self, index: int) -> None:
        """Take the index of a collection inside a larger one; begin fresh episodes, and drop pending fragments."""
        jobs = self.jobs
        with self.dropping() as calls:
            jobs.move_to(index)
            calls.update({worker: ("move_to", jobs.first + worker) for worker in jobs.described})

    def close(self, timeout: float, *, close_env: bool = True) -> None:
        """End the collection, its workers and their places.

        Pending fragments end at their workers' next step, where that is possible. A fork of the process that built it
        only stops drawing: it may have been forked from a thread that holds locks, and its parent owns all the rest.

        Args:
            timeout: how long workers have to close their envs, in seconds.
            close_env: whether envs are closed; an env that another collector steps by now stays open.

        Raises:
            WorkerLate: the step of a worker in this process did not return in time; it is closed when that does.
            Exception: what closing an env raised; further exceptions are in its notes.
        """
        self.access.halted = True
        if not self.owner.is_here:
            return
        self.group.end_all_early()
        self.group.fleet.wake()
        self.access.close(timeout, lambda: self._close(timeout, close_env=close_env))

    def _close(self, timeout: float, *, close_env: bool) -> None:
        errors: list[BaseException] = []
        try:
            has_other_user = self.options.in_process and used_by_others(self.jobs.requests[0].source.env, self)
            errors = self.group.fleet.close(timeout, ask=close_env and not has_other_user)
            if self.member is not None:
                self.member.host.release()
        finally:
            self.drop_pending()
            self.group.settle_dropped()
            self.group.end()
        for other in errors[1:]:
            errors[0].add_note(f"another worker raised, too: {other!r}")
        for error in errors[:1]:
            raise error

    def _deliver_next(self) -> Any:
        """Deliver the next batch; where workers write themselves, return once per batch, fragment or write."""
        while True:
            with self.group.lock:
                batch = None if self.delivery.whole_episodes is None else self.delivery.whole_episodes.next_batch()
            if batch is not None:
                return self.delivery.deliver([batch])
            if self._further_writes:
                self._further_writes -= 1
                self.counters.deliver(0)
                return None
            if self.delivery.hooks.before is not None:
                with note_source("pre_collect_hook"):
                    self.delivery.hooks.before()
            if (gathered := self._next_parts()) is None:
                return ENDED
            requests, parts = gathered
            try:
                if parts:
                    return self.delivery.deliver(parts)
            finally:
                self._end(requests)

    def _next_parts(self) -> tuple[list[Request], list[Any]] | None:
        """Wait for the next replies, and make the parts of a batch of them, in memory that the user will own.

        Returns:
            The requests, to be closed when the parts are delivered, and the parts: none if workers have written the
            fragments, or they are kept for whole episodes. `None` if no reply is expected.
        """
        group, gather, access = self.group, self.gather, self.access
        while True:
            membership, pauses = group.fleet.event_count, group.pause_count
            with group.lock:
                if (requests := gather.next_requests()) is not None:
                    try:
                        bodies = self._open(requests)
                        if any(request.closed for request in requests):
                            gather.put_back(requests)
                            continue
                        return requests, self._make_parts(requests, bodies)
                    except BaseException:
                        self._end(requests, delivered=False)
                        raise
                group.require_enough_workers()
                if (waiting := gather.request_missing()) is None:
                    return None
            group.wait(waiting, lambda: access.halted or group.pause_count != pauses, membership)  # noqa: B023
            if access.halted:
                raise Closed("this collector was shut down during a draw; build another one")

    def _open(self, requests: Sequence[Request]) -> list[Any]:
        """Return the arrays of fragments, views that are good until the requests are closed.

        Requests whose arrays were lost by their store are closed. There are no arrays if workers write themselves.
        """
        bodies = []
        for request in requests if self.jobs.writing is None else ():
            try:
                bodies.append(request.reply.open())
            except PayloadLost:
                self.group.note_lost_body(request)
        return bodies

    def _make_parts(self, requests: Sequence[Request], bodies: Sequence[Any]) -> list[Any]:
        """Request the next fragments, then join these into parts of a batch."""
        parts: list[Any] = []
        if self.jobs.writing is None:
            self.gather.request_ahead()
            parts = self._join(requests, bodies)
            for request in requests:
                request.reply.close()
        else:
            writes = sum(head_of(request).writes for request in requests)
            self._further_writes = 1 if self.delivery.trajectories.per_batch is None else writes
            self._end(requests, delivered=False)  # counts what was written, before a request may fail
            self.gather.request_ahead()
        self.gather.finish()
        if self.delivery.trajectories.per_batch is not None:
            self._warn_of_endless_episodes(requests)
        return parts

    def _warn_of_endless_episodes(self, requests: Sequence[Request]) -> None:
        """Warn once if no episode has ended in many fragments."""
        heads = [head_of(request) for request in requests]
        self._polls_in_vain = -sys.maxsize if any(head.packed for head in heads) else self._polls_in_vain + 1
        if self._polls_in_vain == POLLS_BEFORE_WARNING:
            warn(
                f"no episode has ended in {POLLS_BEFORE_WARNING} fragments of {sum(head.frames for head in heads)} "
                "frames; trajs_per_batch waits for whole episodes: set max_frames_per_traj to end them"
            )

    def _join(self, requests: Sequence[Request], bodies: Sequence[Any]) -> list[Any]:
        """Return one batch, or one part per request if these are written to a buffer; keep parts of whole episodes."""
        if self.delivery.whole_episodes is None and self.buffer is None:
            return [self._joiner.batch(requests, bodies)]
        parts = [self._joiner.part(request, body) for request, body in zip(requests, bodies, strict=True)]
        if self.delivery.whole_episodes is None:
            return parts
        triples = zip(requests, parts, strict=True)
        self.delivery.whole_episodes.add((request.worker, head_of(request), part) for request, part in triples)
        busy, statuses = self.group.open_by_worker(), self.group.fleet.statuses()
        given_up = [worker for worker, status in statuses.items() if status.phase == "gone" and not busy[worker]]
        self.delivery.whole_episodes.drop(given_up, complete=False)
        return []

    def _end(self, requests: Sequence[Request], *, delivered: bool = True) -> None:
        """Close requests that are delivered or kept for whole episodes; discard them if they will not be delivered."""
        with self.group.lock:
            for request in requests:
                (self.group.close if delivered else self.group.discard)(request)


def assemble(
    name: str, options: AnyOptions, requests: Sequence[WorkerRequest], publish: Callable[[], Any]
) -> CollectorService:
    """Start the workers, one in this process or a fleet; block until all have built env and policy.

    Args:
        name: name of the collector class.
        options: its own; those that it does not take are at their defaults.
        requests: what each worker is built from.
        publish: publishes the policy's weights.

    Raises:
        PlacementFailed: there is no room.
        ValueError: options that contradict each other, or workers whose shares are joined and that differ.
        Exception: what building env or policy raised; everything is closed again.
    """
    access, jobs = Access(name), WorkerJobs(options, requests)
    bare, cluster = options.init_fn is not None, {"init_config": options.ray_init_config, "workers": len(requests)}
    places = backend(options.backend or "direct", preload=PRELOADED, bare=bare, options=cluster)
    fleet: Fleet | LocalFleet
    channel: Channel
    if options.in_process:
        env = requests[0].source.env
        require_unused(env)
        member = jobs.job(FIRST_LIFE).build()
        claim(env, access)
        fleet, channel = LocalFleet(member, access), LocalChannel(member, access)
    else:
        fleet, channel = Fleet(places, jobs.job, len(requests), options.survival), Channel(places.share)
        fleet.start()
    try:
        jobs.described.update(describe(WorkerGroup(fleet, channel), jobs.requests))
        if options.in_order:
            require_equal(jobs.described)
            require_joinable(jobs.described, options.cat_dim)
        shares = {worker: description.frames for worker, description in sorted(jobs.described.items())}
        group = Fragments(fleet, channel, jobs, shares, publish, places.shared_counters(len(requests)))
        collection = CollectorService(group, jobs, access)
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
    """Return the description of each worker; workers that are not up yet get the first description."""
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


def add_workers(collection: CollectorService, requests: Sequence[WorkerRequest], *, own_weights: bool) -> None:
    """Add one worker per request; block until they are ready.

    Synchronous collections divide their batches again, from the next batch that is requested; in asynchronous ones the
    new workers are asked at once.

    Args:
        collection: the service.
        requests: what the workers are built from.
        own_weights: whether they keep the weights that they are built with until the next publication.

    Raises:
        ValueError: their entries or weights differ from the others', or shares are not whole.
        PlacementFailed: no room, or not ready in time.
        Exception: what building them raised. In all cases nothing is added.
    """
    jobs, group, options = collection.jobs, collection.group, collection.options
    fleet = group.fleet
    assert isinstance(fleet, Fleet)
    with collection.changing:
        new = dict(enumerate(requests, max(jobs.requests) + 1))
        share = whole_share(options.frames, len(jobs.requests) + len(new)) if options.in_order else None
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
