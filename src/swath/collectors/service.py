"""The service behind all collectors: a group of workers, the jobs that start them, gathering and delivery.

draw ─▶ gather (InOrder | AsReady) ─▶ open bodies ─▶ request the next fragments ─▶ one copy into a batch ─▶ deliver
"""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from swath.collectors.delivery import ENDED, Delivery, Joiner, WholeEpisodes
from swath.collectors.gather import AsReady, Fragments, InOrder, WorkerRecord, head_of
from swath.collectors.messages import Description, Seeding, WorkerRequest, WriteRequest
from swath.collectors.options import AnyOptions, Hooks
from swath.collectors.remote import PUBLIC
from swath.collectors.worker import build_worker
from swath.errors import Closed, FleetFailed, PayloadLost, noted, warn
from swath.group.group import Request
from swath.group.local import Access, LocalFleet
from swath.owner import Owner
from swath.rollout.episodes.statistics import MAX_WORKERS
from swath.rollout.hosts.sources import used_by_others
from swath.workers.base import Job
from swath.workers.tickets import Name


@dataclass
class WorkerJobs:
    """Makes the jobs that start workers and their next lives.

    Attributes:
        requests: what each worker is built from, whatever its life.
        options: of the face.
        writing: how workers write to a replay buffer, if they do; each life of a worker gets its own client.
        hooks: called around fragments.
        records: what is known of workers, among it the last life number that each has used: no id is used twice.
        first: the index of the first worker, as part of ids and seeds.
        seeding: where their seeds come from; `None` if they were never seeded.
        described: descriptions of workers, once they are built; their next lives must have the same.
        key: a unique name of the collector.
    """

    requests: dict[int, WorkerRequest]
    options: AnyOptions
    writing: WriteRequest | None = None
    hooks: Hooks = field(default_factory=Hooks)
    records: Mapping[int, WorkerRecord] = field(default_factory=lambda: defaultdict(WorkerRecord))
    first: int = 0
    seeding: Seeding | None = None
    described: dict[int, Description] = field(default_factory=dict)
    key: str = field(default_factory=lambda: uuid4().hex)

    def seed_with(self, root: int, *, static: bool = False) -> None:
        """Set where the seeds of all workers and of their next lives come from."""
        envs = max(description.num_envs for description in self.described.values())
        self.seeding = Seeding(root, static, envs, envs_only=self.options.backend == "thread")

    def job(self, name: Name) -> Job:
        """Return the job that starts this life of this worker.

        Raises:
            TypeError: its client of the replay buffer cannot be extended.
        """
        core, record, writing = self.requests[name.worker], self.records[name.worker], self.writing
        record.life = max(name.life, record.life + 1)
        if writing is not None:  # the first client exists already: it was created to see whether the buffer has any
            self.writing = replace(writing, client=None)
            if writing.client is None:
                writing = replace(writing, client=create_client(self.options.replay_buffer))
        request = replace(
            core,
            worker=self.first + name.worker,
            life=record.life,
            seed=self.seeding,
            hooks=Hooks() if self.options.in_process else self.hooks,
            expected_description=self.described.get(name.worker),
            writing=writing,
            built_by=self.key,
        )
        build = partial(build_worker, request)
        return Job(build, name, core.threads, self.options.init_fn, core.resources, PUBLIC)

    def move_to(self, index: int) -> None:
        """Number the workers as in collection `index` of a larger one.

        Raises:
            ValueError: trajectory ids would stop being unique.
        """
        n = len(self.requests)
        if (index + 1) * n > MAX_WORKERS:
            raise ValueError(
                f"worker_idx={index} with {n} workers: there may be {MAX_WORKERS} workers in all, so that trajectory "
                "ids stay unique"
            )
        self.first = index * n


def make_jobs(options: AnyOptions, requests: Sequence[WorkerRequest]) -> WorkerJobs:
    """Return the jobs of a collection; workers elsewhere write to the replay buffer themselves if it has clients.

    Raises:
        ValueError: stale fragments cannot be left out if workers write them at once.
    """
    hooks, writing = options.hooks, None
    if not options.in_process and (client := create_client(options.replay_buffer)) is not None:
        if options.max_staleness is not None:
            raise ValueError(
                "max_staleness drops fragments that workers write to this replay buffer themselves; leave it out, or "
                "give a buffer without client()"
            )
        writing = WriteRequest(options.trajectories, options.track_traj_ids, options.cat_dim == -1, client)
    elif not options.in_process:
        hooks = replace(hooks, postproc=None)
    jobs = WorkerJobs(dict(enumerate(requests)), options, writing, hooks)
    jobs.move_to(options.index)
    return jobs


def create_client(buffer: Any) -> Any:
    """Create a client of a replay buffer; `None` if it has none, or if the buffer itself is its client.

    Raises:
        TypeError: the client cannot be extended.
    """
    client = buffer.client() if callable(getattr(buffer, "client", None)) else None
    if client is buffer or client is None:
        return None
    if not callable(getattr(client, "extend", None)):
        raise TypeError(f"client() of the replay buffer gave {type(client).__name__} without extend()")
    return client


POLLS_BEFORE_WARNING = 100


class CollectorService:
    """Draws batches from workers until the total is reached. Any thread may call; one draws at a time.

    Args:
        options: of the face.
        group: the workers, and the requests to them.
        jobs: how workers are started, and their descriptions.
        access: decides which thread may draw; knows whether the collection is open.

    Attributes:
        member: the one worker in this process; `None` where workers live elsewhere.
        owner: the process that built it.
        gather: decides which worker is asked next.
        delivery: turns batches into what the user gets.
        whole_episodes: puts episodes together, if batches are made of whole ones.
    """

    def __init__(self, options: AnyOptions, group: Fragments, jobs: WorkerJobs, access: Access) -> None:
        self.options, self.group, self.jobs, self.access = options, group, jobs, access
        self.owner = Owner()
        self.member: Any = group.fleet.member if isinstance(group.fleet, LocalFleet) else None
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
        self.whole_episodes: WholeEpisodes | None = None
        if trajectories.per_batch is not None and jobs.writing is None:
            self.whole_episodes = WholeEpisodes(trajectories, self.counters, writing=self.buffer is not None)
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
            if self.whole_episodes is not None:
                self.whole_episodes.drop([None] if workers is None else workers, envs)

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
        """Become collection `index` of a larger one; begin fresh episodes, and drop pending fragments."""
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
            close_env: whether they do; an env that another collector steps by now stays open.

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
        raised: list[BaseException] = []
        try:
            stepped = self.options.in_process and used_by_others(self.jobs.requests[0].source.env, self)
            raised = self.group.fleet.close(timeout, ask=close_env and not stepped)
        finally:
            self.drop_pending()
            self.group.settle_dropped()
            self.group.end()
        for other in raised[1:]:
            raised[0].add_note(f"another worker raised, too: {other!r}")
        for error in raised[:1]:
            raise error

    def _deliver_next(self) -> Any:
        """Deliver the next batch; where workers write themselves, return once per batch, fragment or write."""
        while True:
            with self.group.lock:
                batch = None if self.whole_episodes is None else self.whole_episodes.take_batch()
            if batch is not None:
                return self.delivery.deliver([batch])
            if self._further_writes:
                self._further_writes -= 1
                self.counters.deliver(0)
                return None
            if self.delivery.hooks.before is not None:
                with noted("pre_collect_hook"):
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
            membership, pauses = group.membership_version, group.pause_count
            with group.lock:
                if (requests := gather.take()) is not None:
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
        if self.whole_episodes is None and self.buffer is None:
            return [self._joiner.batch(requests, bodies)]
        parts = [self._joiner.part(request, body) for request, body in zip(requests, bodies, strict=True)]
        if self.whole_episodes is None:
            return parts
        triples = zip(requests, parts, strict=True)
        self.whole_episodes.add((request.worker, head_of(request), part) for request, part in triples)
        busy, statuses = self.group.open_by_worker(), self.group.fleet.statuses()
        given_up = [worker for worker, standing in statuses.items() if standing.phase == "gone" and not busy[worker]]
        self.whole_episodes.drop(given_up, complete=False)
        return []

    def _end(self, requests: Sequence[Request], *, delivered: bool = True) -> None:
        """Close requests that are delivered or kept for whole episodes; discard them if they will not be delivered."""
        with self.group.lock:
            for request in requests:
                (self.group.close if delivered else self.group.discard)(request)
