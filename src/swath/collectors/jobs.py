"""How the workers of a collection are brought up, also in later lives: as they were asked for, with what changed since.

requests (as constructed) + seeds, hooks, … (as they are now) ──job(name)──▶ Job ──▶ RemoteWorker over there
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from swath.collectors.fragments import WorkerRecord
from swath.collectors.messages import Description
from swath.collectors.options import Hooks
from swath.collectors.remote import build_remote
from swath.collectors.replay import WriteRequest, client_of
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
        before: runs first in each worker.
        writing: how they write for themselves, if they do.
        buffer: what they write to; each life of a worker gets a client of its own.
        in_threads: they live in threads of this process.
        here: the only one lives in the thread of the user.
        hooks: called around fragments.
        first: the index of the first worker, as part of ids and seeds.
        seeding: where their seeds come from; `None` if nobody has said so.
        lives: the last life number that each worker has used; ids of a life are never used again.
        known: what is known of workers; one may begin further lives by itself.
        described: what workers are like, once they have said so; their next lives must be so, too.
        key: names the collector; no other one has it.
    """

    requests: dict[int, WorkerRequest]
    before: Callable[[], Any] | None = None
    writing: WriteRequest | None = None
    buffer: Any = None
    in_threads: bool = False
    here: bool = False
    hooks: Hooks = field(default_factory=Hooks)
    first: int = 0
    seeding: Seeding | None = None
    lives: dict[int, int] = field(default_factory=dict)
    known: Mapping[int, WorkerRecord] = field(default_factory=dict)
    described: dict[int, Description] = field(default_factory=dict)
    key: str = field(default_factory=lambda: uuid4().hex)

    def last_life(self, worker: int) -> int:
        """The last life number that the worker has used, as far as anybody knows; -1 for none."""
        known = self.known.get(worker)
        return max(self.lives.get(worker, -1), -1 if known is None else known.life)

    def seed_with(self, root: int, *, static: bool = False) -> None:
        """Say where the seeds of all workers come from, and of their next lives."""
        envs = max(one.num_envs for one in self.described.values())
        self.seeding = Seeding(root, static, envs, envs_only=self.in_threads)

    def job(self, name: Name) -> Job:
        """How to bring up this life of this worker.

        Raises:
            TypeError: its client of the replay buffer cannot be extended.
        """
        core = self.requests[name.worker]
        life = self.lives[name.worker] = max(name.life, self.last_life(name.worker) + 1)
        request = replace(
            core,
            worker=self.first + name.worker,
            life=life,
            seed=self.seeding,
            hooks=Hooks() if self.here else self.hooks,
            model=self.described.get(name.worker),
            writing=self._with_client(),
            built_by=self.key,
        )
        build = partial(build_remote, request)
        return Job(build, name, core.threads, self.before, core.resources, PUBLIC)

    def _with_client(self) -> WriteRequest | None:
        """How the next life writes: with the client that is there, or one of its own."""
        if (given := self.writing) is None:
            return None
        self.writing = replace(given, client=None)
        return given if given.client is not None else replace(given, client=client_of(self.buffer))


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
