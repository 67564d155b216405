"""Start-up of workers: from the arguments of a collector to the jobs that build workers and their next lives.

create_env_fn, policy, options ─▶ WorkerRequest per worker, policies and envs pickled ─▶ WorkerJobs ─▶ Job per life
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import torch
from torch import nn

from swath.collectors.messages import Description, Pickled, Seeding, WorkerRequest, WriteRequest, unpickle
from swath.collectors.options import LISTED_BY_WORKER, WORKER_DEFAULTS, AnyOptions, Hooks, WorkerOptions
from swath.collectors.remote import PUBLIC, Responder
from swath.collectors.worker import Worker
from swath.options import count
from swath.pickles import pickle_value
from swath.rollout.episodes.statistics import MAX_WORKERS
from swath.rollout.hosts.parallel import env_processes
from swath.rollout.hosts.sources import Source
from swath.rollout.infos import info_reader
from swath.rollout.policies.binding import is_called_by_torchrl
from swath.rollout.policies.calling import move_to_device, referred_modules
from swath.rollout.random_policy import RandomPolicy
from swath.seeds import LARGEST
from swath.weights.channel import Life
from swath.weights.snapshot import POLICY, require_initialized, uninitialized
from swath.workers.base import Job
from swath.workers.tickets import Name


def sources_of(create_env_fn: Any, n_workers: int | None, name: str) -> list[Any]:
    """Return one env source per worker.

    Args:
        create_env_fn: a source, or a list of one per worker.
        n_workers: how many workers; `None` for the length of the list.
        name: name of that number, for messages.

    Raises:
        ValueError: no list and no number, an empty list, or a number that is not the length of the list.
    """
    if n_workers is not None:
        count(name, n_workers)
    if isinstance(create_env_fn, list | tuple):
        if not create_env_fn:
            raise ValueError("create_env_fn is an empty list; give one env source per worker")
        if n_workers not in (None, len(create_env_fn)):
            raise ValueError(
                f"{name}={n_workers} does not match the list of {len(create_env_fn)} env sources; leave it out"
            )
        return list(create_env_fn)
    if n_workers is None:
        raise ValueError(f"create_env_fn is one env source: say with {name}= how many workers get it, or give a list")
    return [create_env_fn] * n_workers


def expand(name: str, value: Any, n_workers: int) -> list[Any]:
    """Return one value per worker: the entries of a list, or the same value for all.

    Raises:
        ValueError: a list of another length.
    """
    if not isinstance(value, list | tuple):
        return [value] * n_workers
    if len(value) != n_workers:
        raise ValueError(
            f"{name} has {len(value)} entries for {n_workers} workers. "
            f"If `{name}` is provided as a sequence, it should contain exactly one value per worker."
        )
    return list(value)


def whole_share(frames_per_batch: int, n_workers: int) -> int:
    """Return the frames of one worker in a synchronous batch.

    Raises:
        ValueError: not a whole number.
    """
    if frames_per_batch % n_workers:
        raise ValueError(
            f"frames_per_batch={frames_per_batch} cannot be shared by {n_workers} workers; "
            f"use a multiple of {n_workers}"
        )
    return frames_per_batch // n_workers


def options_per_worker(options: Mapping[str, Any], n_workers: int) -> list[dict[str, Any]]:
    """Return the options of each worker; lists have one entry per worker.

    Raises:
        ValueError: a list of another length.
    """
    columns = {name: expand(name, options[name], n_workers) for name in LISTED_BY_WORKER}
    return [{**options, **{name: column[worker] for name, column in columns.items()}} for worker in range(n_workers)]


def worker_requests(
    options: AnyOptions,
    envs: Sequence[Any],
    policy: Any,
    shares: Sequence[Any],
    settings: Sequence[Mapping[str, Any]] | None = None,
    **common: Any,
) -> list[WorkerRequest]:
    """Return the start-up data of each worker; policies and env instances are pickled for workers elsewhere.

    Args:
        options: options of the collection.
        envs: the source of each.
        policy: policy of all workers; left out where a factory builds it and this is only the source of weights.
        shares: frames of one fragment of each.
        settings: options of each worker, if they differ from the collection's; other names are left out.
        **common: further fields of all workers.

    Raises:
        TypeError: no policy, or one that cannot be pickled; or both a policy and a factory.
        ValueError: an env instance cannot be rebuilt, or a function refers to a module with lazy layers, which each
            worker would initialise differently.
    """
    if not (policy is None or isinstance(policy, RandomPolicy) or callable(policy)):
        raise TypeError(
            f"policy is of type {type(policy).__name__}; it must be None, a callable, an nn.Module or a TensorDict "
            "module"
        )
    in_process, done, requests = options.in_process, dict[int, Pickled](), []
    lazy_seed = None if in_process else _draw_lazy_seed(policy, options.backend)
    only_source = isinstance(options.weight_sync_schemes, Mapping) and POLICY in options.weight_sync_schemes
    buffered, unseeded = options.replay_buffer is not None, in_process and options.seed is None
    draws_first = unseeded and is_called_by_torchrl(policy, buffered=buffered)
    settings = options_per_worker(vars(options), len(envs)) if settings is None else settings
    for env, setting, share in zip(envs, settings, shares, strict=True):
        values = {name: setting[name] for name in WORKER_DEFAULTS if name in setting}
        if options.trajectories.per_batch is not None:  # episodes are put together by their ids
            values["track_traj_ids"] = True
        worker_options = WorkerOptions(**values)
        has_factory, actor = worker_options.policy_factory is not None, policy
        if has_factory and policy is not None:
            if not only_source:
                raise TypeError("policy and policy_factory are both given; give one or the other")
            actor = None
        source = _source_of(env, worker_options, options.init_fn)
        if source.is_instance and worker_options.on_env_error == "restart":
            raise ValueError("on_env_error='restart' rebuilds the env: pass an id or a callable, not an instance")
        if not in_process:
            if source.is_instance:
                source = replace(source, env=_pickled_once(done, env, "an env", "a callable that builds it"))
            if not (actor is None or isinstance(actor, RandomPolicy | Pickled)):
                actor = _pickled_once(done, actor, "policy", "policy_factory, which builds it in the worker,")
        frames = count("frames_per_batch", share)
        request = WorkerRequest(source, actor, worker_options, frames, in_process, lazy_seed, draws_first, **common)
        requests.append(request)
    return requests


def _source_of(env: Any, options: WorkerOptions, init_fn: Callable[[], Any] | None) -> Source:
    """Return the source of a worker's envs."""
    reads = partial(info_reader, options.info_keys) if options.info_keys else None
    processes = env_processes(options.env_processes, options.step_timeout_s, init_fn, reads)
    keep_float64, copies = options.keep_float64, options.envs_per_worker
    return Source(env, options.env_kwargs, copies, keep_float64=keep_float64, processes=processes)


def _draw_lazy_seed(policy: Any, backend: str | None) -> int | None:
    """Draw a seed for lazy layers that a worker in another process initialises, from this process's generators.

    Raises:
        ValueError: a function refers to a module with lazy layers.
    """
    for module in referred_modules(policy).values():
        require_initialized(module)
    is_lazy = isinstance(policy, nn.Module) and bool(uninitialized(policy))
    return int(torch.randint(LARGEST, ())) if is_lazy and backend in ("process", "ray") else None


def _pickled_once(done: dict[int, Pickled], value: Any, name: str, instead: str) -> Pickled:
    """Pickle a value once, however many workers get it; weights of a module on another device travel by the CPU.

    Args:
        done: what was pickled before, by id.
        value: an env or a policy.
        name: name of the value, in messages.
        instead: what to pass if it cannot be pickled.

    Raises:
        TypeError: it cannot be pickled.
    """
    if id(value) not in done:
        try:
            done[id(value)] = Pickled(pickle_value(move_to_device(value, torch.device("cpu"))))
        except TypeError as error:
            raise TypeError(f"{name} {type(value).__name__} cannot be pickled ({error}); pass {instead}") from error
    return done[id(value)]


@dataclass
class WorkerRecord:
    """Counts of one worker, over all its lives.

    Attributes:
        frames: number of frames that it collected.
        fragments: number of fragments that it made, also before its state was saved and loaded.
        next_id: a number above every trajectory id that it has used.
        version: version of the weights that made its last fragment.
        lag: how many versions behind the newest for this worker its last fragment was when it arrived.
        life: the last life number that it has used; it may begin further lives by itself.
        last_request: the life and version of the last request, and the number of requests in a row with both.
    """

    frames: int = 0
    fragments: int = 0
    next_id: int = 0
    version: int = 0
    lag: int = 0
    life: int = -1
    last_request: tuple[tuple[Life, int] | None, int] = (None, 0)


class WorkerJobs:
    """Makes the jobs that start workers and their next lives.

    Workers elsewhere write to the replay buffer themselves if it has clients; each life of a worker gets its own.

    Args:
        options: options of the collection.
        requests: what each worker is built from, whatever its life.

    Attributes:
        requests: what each worker is built from, by index; workers may be added.
        options: options of the collection.
        writing: how workers write to the replay buffer; `None` if this process does, or there is none.
        hooks: called around fragments.
        records: what is known of workers, among it the last life number that each has used: no id is used twice.
        first: the index of the first worker, as part of ids and seeds.
        seeding: where their seeds come from; `None` if they were never seeded.
        described: descriptions of workers, once they are built; their next lives must have the same.
        key: a unique name of the collector.

    Raises:
        ValueError: stale fragments cannot be left out if workers write them at once.
    """

    def __init__(self, options: AnyOptions, requests: Sequence[WorkerRequest]) -> None:
        self.requests, self.options, self.hooks = dict(enumerate(requests)), options, options.hooks
        self.key = uuid4().hex
        self.records, self.described = defaultdict[int, WorkerRecord](WorkerRecord), dict[int, Description]()
        self.seeding: Seeding | None = None
        self.writing: WriteRequest | None = None
        # created to see whether the buffer has any
        client = self._unused_client = None if options.in_process else create_client(options.replay_buffer)
        if client is not None:
            if options.max_staleness is not None:
                raise ValueError(
                    "max_staleness drops fragments that workers write to this replay buffer themselves; leave it out, "
                    "or give a buffer without client()"
                )
            self.writing = WriteRequest(options.trajectories, options.track_traj_ids, options.cat_dim == -1)
        elif not options.in_process:
            self.hooks = replace(self.hooks, postproc=None)
        self.move_to(options.index)

    def seed_with(self, root: int | None, *, static: bool = False) -> None:
        """Set the source of the seeds of all workers and of their next lives; without a root nothing is seeded."""
        envs = max(description.num_envs for description in self.described.values())
        self.seeding = None if root is None else Seeding(root, static, envs, envs_only=self.options.backend == "thread")

    def job(self, name: Name) -> Job:
        """Return the job that starts this life of this worker.

        Raises:
            TypeError: its client of the replay buffer cannot be extended.
        """
        core, record, writing = self.requests[name.worker], self.records[name.worker], self.writing
        record.life = max(name.life, record.life + 1)
        if writing is not None:
            client, self._unused_client = self._unused_client or create_client(self.options.replay_buffer), None
            writing = replace(writing, client=client)
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
        return Job(partial(build_worker, request), name, core.threads, self.options.init_fn, core.resources, PUBLIC)

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


def build_worker(request: WorkerRequest) -> Responder:
    """Build a worker from its start-up data. Jobs name this function.

    Raises:
        ValueError: it differs from its earlier lives.
    """
    source = replace(request.source, env=unpickle(request.source.env))
    worker = (request.make or Worker)(replace(request, source=source, policy=unpickle(request.policy)))
    expected = request.expected_description
    difference = "" if expected is None else expected.difference(worker.describe())
    if difference:
        worker.close()
        raise ValueError(f"worker {request.worker} was rebuilt and differs from its earlier life: {difference}")
    return worker
