"""From options to a collection: workers are brought up, described, compared, seeded; more are added later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from swath.collectors.delivery import WriteRequest
from swath.collectors.fragments import Fragments, WorkerRecord
from swath.collectors.messages import Description
from swath.collectors.options import AnyOptions, Hooks
from swath.collectors.remote import build_remote
from swath.collectors.responding import PUBLIC
from swath.collectors.service import CollectorService
from swath.collectors.worker_request import Seeding, WorkerRequest
from swath.group.local import Gate, LocalChannel, LocalFleet
from swath.rollout.episodes.statistics import MOST_WORKERS
from swath.rollout.hosts.sources import claim, require_free
from swath.weights.channel import Channel
from swath.workers.base import Handle, Job
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.fleet_state import FIRST
from swath.workers.tickets import Name

PRELOADED = ("swath.collectors.remote", "gymnasium", "tensordict")
"""What every worker imports in any case."""

GOODBYE_S = 2.0
"""How long workers have to close their envs when what they were built for fails."""


@dataclass
class WorkerJobs:
    """Makes jobs.

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
        if (index + 1) * n > MOST_WORKERS:
            raise ValueError(
                f"worker_idx={index} with {n} workers: there may be {MOST_WORKERS} workers in all, so that trajectory "
                "ids stay unique"
            )
        self.first = index * n


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
    gate, jobs = Gate(name), _jobs(options, requests)
    cluster = {"init_config": options.ray_init_config, "workers": len(requests)} if options.backend == "ray" else {}
    bare = options.init_fn is not None
    places = backend(options.backend or "direct", preload=PRELOADED, bare=bare, options=cluster)
    fleet: Fleet | LocalFleet
    channel: Channel
    if options.here:
        env = requests[0].source.env
        require_free(env)
        member: Any = jobs.job(FIRST).build()
        claim(env, gate)
        fleet, channel = LocalFleet(member, gate), LocalChannel(member, gate)
    else:
        fleet, channel = Fleet(places, jobs.job, len(requests), options.survival), Channel(places.share)
    try:
        group = Fragments(fleet, channel, options.end, options.max_staleness)
        group.automatic, group.publish, group.workers = options.automatic, publish, jobs.records
        group.writing = jobs.writing is not None
        if isinstance(fleet, Fleet):
            fleet.bring_up()
        with suppress(TypeError):  # workers elsewhere cannot see memory of this process
            group.bell = places.watched(len(requests))
        said = group.call("describe") or {0: group.call_first("describe")}
        model = next(iter(said.values()))  # those who join later are as the first that is up
        jobs.described.update({worker: said.get(worker, model) for worker in jobs.requests})
        if options.in_order:
            require_equal(jobs.described)
            require_joinable(jobs.described, options.cat_dim)
        collection = CollectorService(options, group, jobs, gate)
        if options.seed is not None:
            collection.seed(options.seed)
    except BaseException:
        theirs = options.here and requests[0].source.is_instance
        gate.close(GOODBYE_S, lambda: fleet.close(GOODBYE_S, ask=not theirs))
        raise
    return collection


def _jobs(options: AnyOptions, requests: Sequence[WorkerRequest]) -> WorkerJobs:
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
            group.channel.keeps_own(worker)
        jobs.described.update(said)
        with group.lock:
            if jobs.seeding is not None:
                group.send(dict.fromkeys(new, ("seed_with", jobs.seeding)))
            known = jobs.described.items()  # requests that are out stay as they are
            group.frames = {worker: one.rounded(share or one.frames) for worker, one in known}
            if share is not None:
                collection.batch_frames = sum(group.frames.values())
