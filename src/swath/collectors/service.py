"""The service behind all collectors: a group of workers, how they are brought up, a way to gather, a way to deliver.

draw ─▶ gather (InOrder | AsReady) ─▶ bodies opened ─▶ the next are asked for ─▶ one copy into a batch ─▶ delivered
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
from swath.collectors.messages import Description, Head, Seeding, WorkerRequest, WriteRequest
from swath.collectors.options import AnyOptions, Hooks
from swath.collectors.remote import PUBLIC, build_remote
from swath.errors import FleetFailed, PayloadLost, noted, warn
from swath.group.group import Request
from swath.group.local import Access, LocalFleet
from swath.owner import Owner
from swath.rollout.episodes.statistics import MAX_WORKERS
from swath.rollout.hosts.sources import used_by_others
from swath.workers.base import Job
from swath.workers.tickets import Name


@dataclass
class WorkerJobs:
    """Makes the jobs by which workers, and their next lives, are brought up.

    Attributes:
        requests: what each worker is made of, whatever its life.
        options: of the face.
        writing: how they write for themselves, if they do; each life of a worker gets a client of its own.
        hooks: called around fragments.
        records: what is known of workers, among it the last life number that each has used: no id is given twice.
        first: the index of the first worker, as part of ids and seeds.
        seeding: where their seeds come from; `None` if nobody has said so.
        described: what workers are like, once they have said so; their next lives must be so, too.
        key: names the collector; no other one has it.
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
        """Say where the seeds of all workers come from, and of their next lives."""
        envs = max(one.num_envs for one in self.described.values())
        self.seeding = Seeding(root, static, envs, envs_only=self.options.backend == "thread")

    def job(self, name: Name) -> Job:
        """How to bring up this life of this worker.

        Raises:
            TypeError: its client of the replay buffer cannot be extended.
        """
        core, record, writing = self.requests[name.worker], self.records[name.worker], self.writing
        record.life = max(name.life, record.life + 1)
        if writing is not None:  # the first client is there, since the buffer was asked whether it has some
            self.writing = replace(writing, client=None)
            if writing.client is None:
                writing = replace(writing, client=client_of(self.options.replay_buffer))
        request = replace(
            core,
            worker=self.first + name.worker,
            life=record.life,
            seed=self.seeding,
            hooks=Hooks() if self.options.here else self.hooks,
            model=self.described.get(name.worker),
            writing=writing,
            built_by=self.key,
        )
        build = partial(build_remote, request)
        return Job(build, name, core.threads, self.options.init_fn, core.resources, PUBLIC)

    def move_to(self, index: int) -> None:
        """Be workers of collection `index` of a larger one.

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


def jobs_of(options: AnyOptions, requests: Sequence[WorkerRequest]) -> WorkerJobs:
    """How the workers are brought up; elsewhere they write to the replay buffer for themselves if it offers that.

    Raises:
        ValueError: what is too old cannot be left out of what is written at once.
    """
    hooks, writing = options.hooks, None
    if not options.here and (client := client_of(options.replay_buffer)) is not None:
        if options.max_staleness is not None:
            raise ValueError(
                "max_staleness drops fragments that workers write to this replay buffer themselves; leave it out, or "
                "give a buffer without client()"
            )
        writing = WriteRequest(options.trajectories, options.track_traj_ids, options.cat_dim == -1, client)
    elif not options.here:
        hooks = replace(hooks, postproc=None)
    jobs = WorkerJobs(dict(enumerate(requests)), options, writing, hooks)
    jobs.move_to(options.index)
    return jobs


def client_of(buffer: Any) -> Any:
    """A client of a replay buffer; `None` if it has none, or is its own, which only its own process can write to.

    Raises:
        TypeError: it cannot be extended.
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
        group: the workers, what they are to be asked for, and what is known of them.
        jobs: how they are brought up, and what they are like.
        access: who may draw; whether it is open.

    Attributes:
        member: the one worker in this process; `None` where workers live elsewhere.
        owner: the process that built it.
        batch_frames: frames of a batch.
        gather: decides who is asked next.
        delivery: what happens to batches on their way out.
    """

    def __init__(self, options: AnyOptions, group: Fragments, jobs: WorkerJobs, access: Access) -> None:
        self.options, self.group, self.jobs, self.access = options, group, jobs, access
        self.owner = Owner()
        self.member: Any = group.fleet.member if isinstance(group.fleet, LocalFleet) else None
        self.counters, self.buffer, described = group.counters, options.replay_buffer, jobs.described
        self.changing = threading.RLock()  # held by who adds workers, which takes long
        group.frames = {worker: one.frames for worker, one in described.items()}
        self.batch_frames = sum(group.frames.values()) if options.in_order else described[0].frames
        if self.batch_frames != options.frames:
            warn(
                f"frames_per_batch={options.frames} is not shared evenly by workers and their envs; "
                f"batches have {self.batch_frames} frames"
            )
        part, wanted = options.preemptive_threshold, options.trajectories
        enough = None if part is None else int(len(described) * part)
        self.gather = InOrder(group, options.ahead, enough) if options.in_order else AsReady(group, options.ahead)
        stores = [request.options.devices.storing for request in jobs.requests.values()]
        several = not options.here and (options.in_order or wanted.per_batch is not None)
        self._joiner = Joiner(described, stores, dim=options.cat_dim, several=several, own=options.here)
        hooks = jobs.hooks if options.here else Hooks(postproc=options.postproc)
        ending = self.counters, access.require_open, options.track_traj_ids, self.buffer
        self.delivery = Delivery(described[0].layout, wanted, hooks, *ending)
        whole = wanted.per_batch is not None and jobs.writing is None
        self.whole = WholeEpisodes(wanted, self.counters, writing=self.buffer is not None) if whole else None
        self._further_writes = self._polls_in_vain = 0
        self.begin_randomly()

    @property
    def completed(self) -> bool:
        """Whether the run has reached its end."""
        total = self.group.total
        return total is not None and self.counters.frames >= total

    @property
    def closed(self) -> bool:
        """Whether it steps no env any more: it was shut down, or the run has reached its end."""
        return self.access.closed or self.completed

    @property
    def open_group(self) -> Fragments:
        """The workers, to be called between two fragments.

        Raises:
            Closed: after shutdown.
        """
        self.access.require_open()
        return self.group

    @property
    def version(self) -> int:
        """The newest version that was published."""
        return self.group.channel.version

    def draw(self) -> Any:
        """The next batch; `None` where it was written to a buffer, `ENDED` when the run is over.

        Raises:
            Closed: after shutdown, or shut down meanwhile.
            RuntimeError: another thread is drawing.
            FleetFailed: too few workers are left.
            Exception: what user code raised, as its own type; draw again.
        """
        with self.access.drawing():
            self.access.require_open()
            if self.completed:
                self.forget()
                return ENDED
            self.counters.start_clock()
            began = time.monotonic()
            try:
                with self.group.lock:  # what a draw that Ctrl-C has broken off had in hand is lost
                    self._done([request for request in self.group.out if request.taken], good=False)
                self.group.at_draw()
                return self._deliver()
            except FleetFailed:
                self.forget()
                raise
            finally:
                self.counters.seconds_waiting += time.monotonic() - began

    def forget(self, workers: Collection[int] | None = None, envs: list[int] | None = None) -> None:
        """What is in flight or half-built of all workers, or of these, or of some envs, is dropped and counted."""
        with self.group.lock:
            if envs is None:
                self.gather.forget(workers)
            if self.whole is not None:
                self.whole.drop([None] if workers is None else workers, envs)

    @contextmanager
    def forgetting(
        self, workers: Collection[int] | None = None, envs: list[int] | None = None
    ) -> Iterator[dict[int, Sequence[Any]]]:
        """Drop, then make the calls that are put into this dict by worker, before whatever is asked for later.

        What is done within comes at that moment, too. At the end the calls are waited for.
        """
        self.access.require_between()
        calls: dict[int, Sequence[Any]] = {}
        with self.group.lock:
            self.forget(workers, envs)
            yield calls
            tickets = self.group.send(calls)
        self.group.answers(tickets)

    def begin_randomly(self) -> None:
        """Let so many batches be random as are left of the random beginning."""
        batches = -(-self.options.random_frames // self.batch_frames) - self.counters.frames // self.batch_frames
        self.group.random_batches = max(0, batches)

    def set_hooks(self, **changed: Any) -> None:
        """Set functions of the user that are called around fragments, where they are called."""
        group, jobs = self.open_group, self.jobs
        jobs.hooks = replace(jobs.hooks, **changed)
        if self.options.here:
            self.delivery.hooks = jobs.hooks
        else:
            group.call("set_hooks", jobs.hooks)

    def be_random(self, randomly: bool) -> None:
        """Let batches be random from now on, or no more; what is in flight is dropped if it is not so."""
        if randomly != (self.group.random_batches > 0):
            self.forget()
            self.group.random_batches = sys.maxsize if randomly else 0

    def seed(self, root: int, *, static: bool = False) -> None:
        """Seed every worker and its next lives; fresh episodes begin, what is in flight is dropped."""
        with self.forgetting() as calls:
            self.jobs.seed_with(root, static=static)
            calls.update(self.group.to_all("seed_with", self.jobs.seeding))

    def move_to(self, index: int) -> None:
        """Be collection `index` of a larger one; fresh episodes begin, what is in flight is dropped."""
        jobs = self.jobs
        with self.forgetting() as calls:
            jobs.move_to(index)
            calls.update({worker: ("move_to", jobs.first + worker) for worker in jobs.described})

    def close(self, timeout: float, *, close_env: bool = True) -> None:
        """End the collection, its workers and their places.

        Fragments in flight end at their workers' next step, where that is possible. A fork of the process that built it
        only draws no more: it may have been forked from a thread that holds locks, and all else is its parent's.

        Args:
            timeout: how long workers have to close their envs, in seconds.
            close_env: whether they do; an env that another collector steps by now stays open.

        Raises:
            WorkerLate: the step of a worker in this process did not return in time; it is closed when that does.
            Exception: what closing an env raised; more of them are in its notes.
        """
        self.access.halted = True
        if not self.owner.is_here:
            return
        self.group.end_all()
        self.group.fleet.wake()
        self.access.close(timeout, lambda: self._close(timeout, close_env=close_env))

    def _close(self, timeout: float, *, close_env: bool) -> None:
        raised: list[BaseException] = []
        try:
            stepped = self.options.here and used_by_others(self.jobs.requests[0].source.env, self)
            raised = self.group.fleet.close(timeout, ask=close_env and not stepped)
        finally:
            self.forget()
            self.group.sweep()
            self.group.end()
            self.group.bell = None
        for other in raised[1:]:
            raised[0].add_note(f"another worker raised, too: {other!r}")
        for error in raised[:1]:
            raise error

    def _deliver(self) -> Any:
        """What the next shares give; where workers write for themselves, one draw per batch, fragment or write."""
        while True:
            with self.group.lock:
                batch = None if self.whole is None else self.whole.take()
            if batch is not None:
                return self.delivery.deliver([batch])
            if self._further_writes:
                self._further_writes -= 1
                self.counters.deliver(0)
                return None
            if self.delivery.hooks.before is not None:
                with noted("pre_collect_hook"):
                    self.delivery.hooks.before()
            taken = self.gather.next(lambda: self.access.halted, self._made)
            if taken is None:
                return ENDED
            shares, made = taken
            try:
                if made:
                    return self.delivery.deliver(made)
            finally:
                self._done(shares)

    def _made(self, shares: list[Request]) -> tuple[list[Request], list[Any]] | None:
        """What is made of these shares, in memory of the user's own; their workers are asked for more before that.

        No parts where they were written, or are kept for whole episodes; `None` if some are lost. Under the lock.
        """
        try:
            if self.jobs.writing is not None:
                parts = self._note_written(shares)
            else:
                bodies = [self._opened(share) for share in shares]
                if any(share.closed for share in shares):
                    return None
                self.gather.ask_ahead()
                parts = self._parts(shares, bodies)
                for share in shares:
                    share.reply.close()
            self.gather.done()
            if self.delivery.trajectories.per_batch is not None:
                self._note_poll([head_of(share) for share in shares])
        except BaseException:
            self._done(shares, good=False)
            raise
        return shares, parts

    def _note_written(self, shares: Sequence[Request]) -> list[Any]:
        """Count what was written, also if nobody can be asked any more."""
        whole = self.delivery.trajectories.per_batch is not None
        self._further_writes = sum(head_of(share).writes for share in shares) if whole else 1
        self._done(shares, good=False)
        self.gather.ask_ahead()
        return []

    def _note_poll(self, heads: Sequence[Head]) -> None:
        """Warn once if no episode has ended in many of them."""
        self._polls_in_vain = -sys.maxsize if any(head.packed for head in heads) else self._polls_in_vain + 1
        if self._polls_in_vain == POLLS_BEFORE_WARNING:
            warn(
                f"no episode has ended in {POLLS_BEFORE_WARNING} fragments of {sum(head.frames for head in heads)} "
                "frames; trajs_per_batch waits for whole episodes: set max_frames_per_traj to end them"
            )

    def _opened(self, share: Request) -> Any:
        """The arrays of a fragment, views that are good until it is closed; `None` if its store has lost them."""
        try:
            return share.reply.open()
        except PayloadLost:
            self.group.fragments_lost += 1
            self.group.close(share)
            return None

    def _parts(self, shares: Sequence[Request], bodies: Sequence[Any]) -> list[Any]:
        """One batch; of each share one, where these are written to a buffer; none, where they wait for more."""
        if self.whole is None and self.buffer is None:
            return [self._joiner.batch(shares, bodies)]
        parts = [self._joiner.part(share, body) for share, body in zip(shares, bodies, strict=True)]
        if self.whole is None:
            return parts
        self.whole.add((share.worker, head_of(share), part) for share, part in zip(shares, parts, strict=True))
        busy, standings = self.group.out_by_worker(), self.group.fleet.statuses()
        gone = [worker for worker, one in standings.items() if one.phase == "gone" and not busy[worker]]
        self.whole.drop(gone, complete=False)
        return []

    def _done(self, shares: Sequence[Request], *, good: bool = True) -> None:
        """They are delivered, or kept for whole episodes; if they are not `good`, nobody will get them."""
        with self.group.lock:
            for share in shares:
                (self.group.close if good else self.group.discard)(share)
