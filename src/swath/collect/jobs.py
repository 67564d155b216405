"""How the workers of a collection are brought up, also in later lives: as they were asked for, with what changed since.

Plan (as constructed) + Standing (seeds, hooks: as they are now) ──job(name)──▶ Job ──▶ RemoteWorker over there
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import uuid4

from swath.collect.books import WorkerRecord
from swath.collect.description import Description
from swath.collect.making.assembly import WorkerRequest
from swath.collect.making.frozen import Frozen
from swath.collect.remote import Maker, RemoteRequest, RemoteWorker, build_remote
from swath.collect.worker import Seeding
from swath.collect.writing import Writers
from swath.options import Hooks
from swath.rollout.policies.random import RandomPolicy
from swath.workers.base import Job
from swath.workers.tickets import Name


@dataclass(frozen=True)
class Template:
    """What one worker is made of, whatever its life.

    Attributes:
        request: its core.
        resources: what it asks of its place.
        masked: fragments have a mask, since some may lack rows.
        make: makes it.
        threads: torch's threads in it.
    """

    request: WorkerRequest
    resources: Mapping[str, Any] = field(default_factory=dict)
    masked: bool = False
    make: Maker = RemoteWorker
    threads: int = 1

    @property
    def core(self) -> WorkerRequest:
        """What the worker builds; to replace it when its env fails is its fleet's business."""
        faults = self.request.faults
        if faults.on_env_error != "restart":
            return self.request
        return replace(self.request, faults=replace(faults, on_env_error="raise"))

    def frozen(self, policies: dict[int, Frozen]) -> Template:
        """The same with policy and env instances as they are now, each frozen once."""
        request = self.request
        policy, env = request.policy.policy, request.source.env
        if policy is not None and not isinstance(policy, RandomPolicy | Frozen):
            held = policies.setdefault(id(policy), _frozen_policy(policy))
            request = replace(request, policy=replace(request.policy, policy=held))
        if request.source.is_instance:
            held = Frozen.of(env, "an env", "a callable that builds it")
            request = replace(request, source=replace(request.source, env=held), twin=True)
        return replace(self, request=request)


def _frozen_policy(policy: Any) -> Frozen:
    return Frozen.of(policy, "policy", "policy_factory, which builds it in the worker,")


@dataclass
class Standing:
    """What is true of all workers now, and of their next lives.

    Attributes:
        seeding: by worker, once they are seeded.
        hooks: called around fragments.
        lives: the last life number that each worker has used; ids of a life are never used again.
        known: what is known of workers; one may begin further lives by itself.
        described: what workers are like, once they have said so; their next lives must be so, too.
        first: the index of the first worker, as part of ids and seeds.
    """

    seeding: dict[int, Seeding] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=Hooks)
    lives: dict[int, int] = field(default_factory=dict)
    known: Mapping[int, WorkerRecord] = field(default_factory=dict)
    described: dict[int, Description] = field(default_factory=dict)
    first: int = 0

    def last_life(self, worker: int) -> int:
        """The last life number that the worker has used, as far as anybody knows; -1 for none."""
        known = self.known.get(worker)
        return max(self.lives.get(worker, -1), -1 if known is None else known.life)


@dataclass
class WorkerJobs:
    """Makes jobs.

    Attributes:
        templates: by worker.
        standing: what changes while they live.
        before: runs first in each worker.
        public: methods that can be called on workers by others.
        writers: with what they write for themselves, if they do.
        in_threads: they live in threads of this process.
        here: the only one lives in the thread of the user.
        key: names the collector; no other one has it.
    """

    templates: dict[int, Template]
    standing: Standing
    before: Callable[[], Any] | None = None
    public: Sequence[str] = ()
    writers: Writers | None = None
    in_threads: bool = False
    here: bool = False
    key: str = field(default_factory=lambda: uuid4().hex)

    def replaces(self, worker: int) -> bool:
        """Whether this worker is replaced when its env raises."""
        return not self.here and self.templates[worker].request.faults.on_env_error == "restart"

    def job(self, name: Name) -> Job:
        """How to bring up this life of this worker."""
        template, standing = self.templates[name.worker], self.standing
        life = standing.lives[name.worker] = max(name.life, standing.last_life(name.worker) + 1)
        core, seed = template.request if self.here else template.core, standing.seeding.get(name.worker)
        worker = replace(core, worker=standing.first + name.worker, life=life, seed=seed)
        model = standing.described.get(name.worker)
        writing = None if self.writers is None else self.writers.request(worker.devices.storing)
        request = RemoteRequest(worker, standing.hooks, template.masked, model, writing, self.key, self.here)
        return Job(
            partial(build_remote, request, template.make),
            name,
            threads=template.threads,
            before=self.before,
            resources=template.resources,
            public=tuple(self.public),
        )
