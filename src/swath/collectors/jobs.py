"""How the workers of a collection, and their next lives, are brought up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from swath.collectors.delivery import WriteRequest
from swath.collectors.fragments import WorkerRecord
from swath.collectors.messages import Description
from swath.collectors.options import AnyOptions, Hooks
from swath.collectors.remote import build_remote
from swath.collectors.responding import PUBLIC
from swath.collectors.worker_request import Seeding, WorkerRequest
from swath.rollout.episodes.statistics import MOST_WORKERS
from swath.workers.base import Job
from swath.workers.tickets import Name


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
