"""What crosses between a collection and its workers: what they are made of, what they are like, asked and answer.

create_env_fn, policy, options ─▶ WorkerRequest, one per worker, policies and envs as bytes ─▶ built over there
Description                    ◀─ what a worker is like
FragmentRequest                ─▶ one fragment ─▶ Head (small) + body (arrays), or Broken
                                             └─▶ Head alone, where the worker writes to a replay buffer itself
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase
from torch import nn

from swath.collectors.options import AnyOptions, EveryWorker, Hooks, LocalWorker, Trajectories, limit
from swath.keys import as_key
from swath.options import OnEnvError, count, one_of
from swath.pickles import pickled
from swath.rollout.buffer import Layout
from swath.rollout.episodes.statistics import EpisodeArray, episodes_from_bytes
from swath.rollout.hosts.sources import Source
from swath.rollout.policies.binding import is_called_by_torchrl
from swath.rollout.policies.calling import ExplorationType, as_device, as_exploration, referred_modules
from swath.rollout.random_policy import RandomPolicy
from swath.seeds import LARGEST
from swath.weights.snapshot import POLICY, Manifest, require_initialized, uninitialized
from swath.workers.outcome import deserialize_error, serialize_error


@dataclass(frozen=True)
class Description:
    """What a worker is like, as its collection must know it.

    Attributes:
        num_envs: B.
        n_steps: T.
        layout: names and extras of its fragments.
        manifest: of the policy's weights.
        signature: shape behind `[*B, T]` and dtype of each entry of its fragments, in words, as far as they are fixed.
        env_device: where its envs run.
        policy_device: where its policy runs; `None` if nobody said.
    """

    num_envs: int
    n_steps: int
    layout: Layout
    manifest: Manifest
    signature: Mapping[Any, str]
    env_device: torch.device | None = None
    policy_device: torch.device | None = None

    @property
    def frames(self) -> int:
        """Frames of a fragment."""
        return self.num_envs * self.n_steps

    def rounded(self, frames: int) -> int:
        """Frames of a fragment if so many are asked for: whole steps."""
        return -(-frames // self.num_envs) * self.num_envs

    def difference(self, other: Description) -> str:
        """What the other has in another way, in words; empty if its fragments can take the place of these."""
        shapes = self.layout.batch_shape, other.layout.batch_shape
        if shapes[0] != shapes[1]:
            return f"envs of batch shape {list(shapes[1])}, not {list(shapes[0])}"
        for key in {**self.signature, **other.signature}:
            mine, theirs = (one.signature.get(key, "missing") for one in (self, other))
            if mine != theirs:
                return f"entry {key!r} is {theirs}, not {mine}"
        return ""


def signature_of(batch: Any, n_dims: int, path: tuple[Any, ...] = ()) -> dict[Any, str]:
    """Shape and dtype of each entry of a batch with so many leading dimensions, below a path.

    Where members of a group have entries of their own, by member.
    """
    signature, entries = dict[Any, str](), batch.items()
    if isinstance(batch, LazyStackedTensorDict) and batch.stack_dim >= n_dims:
        entries = enumerate(batch.tensordicts)
    for key, value in entries:
        if isinstance(value, TensorDictBase):
            signature |= signature_of(value, n_dims, (*path, key))
        elif isinstance(value, torch.Tensor):
            signature[as_key((*path, key))] = f"{list(value.shape[n_dims:])} of {value.dtype}"
    return signature


@dataclass
class Tally:
    """Counts of one life of a worker; they only grow.

    Attributes:
        env_errors: exceptions of envs.
        restarts: how often the env source was built anew.
        fragments_lost: fragments broken by an exception, or that could not be written.
        frames: good frames that were collected.
        frames_discarded: those of them that nobody will get.
        frames_written: those of them that the worker has written itself to a replay buffer.
    """

    env_errors: int = 0
    restarts: int = 0
    fragments_lost: int = 0
    frames: int = 0
    frames_discarded: int = 0
    frames_written: int = 0

    @property
    def frames_left(self) -> int:
        """Those that were sent, or, of a worker that writes itself, wait to be written."""
        return self.frames - self.frames_discarded - self.frames_written


@dataclass(frozen=True)
class FragmentRequest:
    """A request for one fragment.

    Attributes:
        frames: how many to make, rounded up to whole steps; 0 for as many as before.
        randomly: with random actions.
        number: grows with every request to any worker.
        bell: an int64 array `[W]` shared with the workers; a worker stops at its next step once its entry has reached
            the number. `None` if nobody stops it.
        entry: of the worker in that array.
    """

    frames: int = 0
    randomly: bool = False
    number: int = 0
    bell: Any = None
    entry: int = 0


@dataclass
class Head:
    """What is known of a fragment before its arrays are fetched.

    Attributes:
        life: in which life of its worker it was made.
        version: the policy version that acted.
        frames: how many rows are transitions.
        steps: how many of its T steps were made.
        packed: the episodes that ended in it, as bytes.
        next_id: above every trajectory id given.
        number: of the fragment in this life, from 1; those that were not delivered have numbers, too.
        since: `next_id` before it was made.
        tally: counts of this life, this fragment included.
        writes: how often the worker has called `extend` with what it made of it.
        frames_written: how many frames it has written then.
    """

    life: int
    version: int
    frames: int
    steps: int
    packed: bytes
    next_id: int
    number: int = 0
    since: int = 0
    tally: Tally = field(default_factory=Tally)
    writes: int = 0
    frames_written: int = 0

    @property
    def episodes(self) -> EpisodeArray:
        """The episodes that ended in it."""
        return episodes_from_bytes(self.packed)


@dataclass(frozen=True)
class Broken:
    """There is no fragment: the env, the policy or a hook raised. Crosses borders as `serialize_error` writes it.

    Attributes:
        error: the exception.
        tally: counts of this life.
        unfit: whether the worker cannot go on, and has to be replaced.
    """

    error: BaseException
    tally: Tally
    unfit: bool = False

    def __reduce__(self) -> Any:
        """With the remote traceback in a note of the exception."""
        return _broken, (serialize_error(self.error), self.tally, self.unfit)


def _broken(error: bytes, tally: Tally, unfit: bool) -> Broken:
    return Broken(deserialize_error(error), tally, unfit)


@dataclass(frozen=True)
class Devices:
    """The devices as resolved from a collector's arguments.

    Attributes:
        env: where the env runs; `None` leaves it where it is.
        policy: where the policy runs; `None` leaves it where it is.
        storing: where batches live; `None` sets no device on them.
        common: the device given for all.
    """

    env: torch.device | None = None
    policy: torch.device | None = None
    storing: torch.device | None = None
    common: torch.device | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(EveryWorker, LocalWorker):
    """What can be set for every worker alone: single values, checked."""

    def __post_init__(self) -> None:
        one_of("on_env_error", self.on_env_error, OnEnvError)
        if self.policy_factory is not None and not callable(self.policy_factory):
            kind = type(self.policy_factory).__name__
            raise TypeError(f"policy_factory is of type {kind}; it must be a callable that builds the policy")
        _ = self.devices, self.exploration, self.max_frames, self.env_kwargs

    @property
    def devices(self) -> Devices:
        """Where things are; `device` is not for envs, unless they can go there."""
        names = ("device", "env_device", "policy_device", "storing_device")
        common, env, policy, storing = (as_device(name, getattr(self, name)) for name in names)
        policy = policy or common
        return Devices(env, policy, storing or common or (env if env == policy else None), common)

    @property
    def exploration(self) -> ExplorationType:
        """How the policy picks actions."""
        return as_exploration(self.exploration_type)

    @property
    def max_frames(self) -> int | None:
        """Most steps of an episode; `None` for no limit."""
        return limit("max_frames_per_traj", self.max_frames_per_traj)

    @property
    def env_kwargs(self) -> Mapping[str, Any]:
        """Keywords for the env source; `TypeError` for anything but a dict with names as keys."""
        kwargs = self.create_env_kwargs or {}
        if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
            raise TypeError(f"create_env_kwargs is {kwargs!r}; it must be a dict of keywords for the env source")
        return kwargs


SETTINGS = tuple(one.name for one in fields(WorkerOptions))
BY_WORKER = ("policy_factory", "create_env_kwargs", "device", "storing_device", "env_device", "policy_device")
"""Settings of which a list has one entry per worker."""


@dataclass(frozen=True)
class WriteRequest:
    """How a worker writes.

    Attributes:
        trajectories: how batches are made of episodes.
        keep_ids: whether trajectory ids are written.
        cut: leave out the steps of a fragment that were not made.
        client: its own, of the replay buffer.
    """

    trajectories: Trajectories
    keep_ids: bool = True
    cut: bool = False
    client: Any = None


@dataclass(frozen=True)
class Seeding:
    """Where the seeds of a worker come from.

    Attributes:
        root: the user's seed.
        static: every env gets `root` itself.
        stride: envs of the worker that has most; `None` if others have as many as this one.
        envs_only: the process's generators are left alone: other threads draw from them, too.
    """

    root: int
    static: bool = False
    stride: int | None = None
    envs_only: bool = False


@dataclass(frozen=True)
class WorkerRequest:
    """All that a worker is made of.

    Attributes:
        source: the envs.
        policy: who acts in them; `None` where a factory builds it, or for random actions.
        options: what users have set for it.
        frames: asked of it at a time.
        here: it lives in the process of the user, whose own policy acts.
        draws: seed of what lazy layers of the policy begin with; `None` where there are none.
        draws_first: whether the first call of the policy in a TorchRL env draws from the process's generators, as in
            TorchRL's collector; they are put back else.
        worker: its index.
        life: which of its lives.
        seed: root of its seeds; `None` seeds nothing.
        stopped: asked after each step; true ends the fragment there.
        masked: fragments have a mask, since some may lack rows.
        make: makes what answers for it, where that is another thing than a worker; it is called with the request.
        threads: torch's threads in it.
        resources: what it asks of its place.
        hooks: functions of the user that are called in the worker.
        model: what its earlier lives were like, and it must be like, too.
        writing: with what it writes for itself, if it does.
        built_by: key of the collector that asks it.
    """

    source: Source
    policy: Any
    options: WorkerOptions
    frames: int
    here: bool = False
    draws: int | None = None
    draws_first: bool = False
    worker: int = 0
    life: int = 0
    seed: Seeding | None = None
    stopped: Callable[[], bool] | None = None
    masked: bool = False
    make: Callable[..., Any] | None = None
    threads: int = 1
    resources: Mapping[str, Any] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=Hooks)
    model: Description | None = None
    writing: WriteRequest | None = None
    built_by: str = ""

    @property
    def copies_env(self) -> bool:
        """Whether its envs are copies of an instance, whose random state they must not share."""
        return self.source.is_instance and (not self.here or (self.source.copies or 1) > 1)


def sources_of(create_env_fn: Any, n_workers: int | None, name: str) -> list[Any]:
    """One env source per worker.

    Args:
        create_env_fn: a source, or a list of one per worker.
        n_workers: how many workers; `None` for the length of the list.
        name: of that number, for messages.

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


def spread(name: str, value: Any, n_workers: int) -> list[Any]:
    """One value per worker: of a list its entries, of anything else the same for all.

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


def rows_of(options: Mapping[str, Any], n_workers: int) -> list[dict[str, Any]]:
    """By worker, the options; lists have one entry per worker.

    Raises:
        ValueError: a list of another length.
    """
    columns = {name: spread(name, options[name], n_workers) for name in BY_WORKER}
    return [{**options, **{name: column[worker] for name, column in columns.items()}} for worker in range(n_workers)]


def worker_requests(
    options: AnyOptions,
    envs: Sequence[Any],
    policy: Any,
    rows: Sequence[Mapping[str, Any]],
    shares: Sequence[Any],
    **of_all: Any,
) -> list[WorkerRequest]:
    """What each worker is made of; policies and env instances as they are now, unless it lives here.

    Args:
        options: of the collection.
        envs: the source of each.
        policy: of all of them; left out where a factory builds it and this is only the source of weights.
        rows: what each is set to, among other options.
        shares: frames asked of each at a time.
        **of_all: further fields of all of them.

    Raises:
        TypeError: no policy, or one that cannot travel; or both a policy and a factory.
        ValueError: an env instance cannot be built anew, or a function refers to a module with lazy layers, of which
            each worker would initialise its own.
    """
    if not (policy is None or isinstance(policy, RandomPolicy) or callable(policy)):
        raise TypeError(
            f"policy is of type {type(policy).__name__}; it must be None, a callable, an nn.Module or a TensorDict "
            "module"
        )
    frozen, made, draws = _Frozen(), [], None if options.here else _draws_for(policy, options.backend)
    only_source = isinstance(options.weight_sync_schemes, Mapping) and POLICY in options.weight_sync_schemes
    buffered, unseeded = options.replay_buffer is not None, options.here and options.seed is None
    draws_first = unseeded and is_called_by_torchrl(policy, buffered=buffered)
    for env, row, share in zip(envs, rows, shares, strict=True):
        settings = {name: row[name] for name in SETTINGS if name in row}
        if options.trajectories.per_batch is not None:  # episodes are put together by their ids
            settings["track_traj_ids"] = True
        one = WorkerOptions(**settings)
        acts = None if only_source and one.policy_factory is not None else policy
        if acts is not None and one.policy_factory is not None:
            raise TypeError("policy and policy_factory are both given; give one or the other")
        source = Source(env, one.env_kwargs, one.envs_per_worker, keep_float64=one.keep_float64)
        if source.is_instance and one.on_env_error == "restart":
            raise ValueError("on_env_error='restart' builds the env anew: pass an id or a callable, not an instance")
        if not options.here:
            if source.is_instance:
                source = replace(source, env=frozen.of(env, "an env", "a callable that builds it"))
            if not (acts is None or isinstance(acts, RandomPolicy | Frozen)):
                acts = frozen.of(acts, "policy", "policy_factory, which builds it in the worker,")
        frames = count("frames_per_batch", share)
        made.append(WorkerRequest(source, acts, one, frames, options.here, draws, draws_first, **of_all))
    return made


def _draws_for(policy: Any, backend: str | None) -> int | None:
    """Draw a seed for lazy layers that a worker in another process initialises, so that they follow from seeds here.

    Raises:
        ValueError: a function refers to a module with such layers.
    """
    for module in referred_modules(policy).values():
        require_initialized(module)
    is_lazy = isinstance(policy, nn.Module) and bool(uninitialized(policy))
    return int(torch.randint(LARGEST, ())) if is_lazy and backend in ("process", "ray") else None


@dataclass(frozen=True)
class Frozen:
    """A value as bytes; called, it gives a copy, so that it may stand where a callable is wanted.

    Attributes:
        data: what cloudpickle made of it.
    """

    data: bytes

    def __call__(self) -> Any:
        """A copy of it."""
        return pickle.loads(self.data)  # noqa: S301  it was made here


def unfrozen(value: Any) -> Any:
    """A copy of what was frozen; anything else as it is."""
    return value() if isinstance(value, Frozen) else value


class _Frozen(dict[int, Frozen]):
    """Values as bytes, each made once, however many workers get it."""

    def of(self, value: Any, what: str, instead: str) -> Frozen:
        """The value as it is now; weights of a module on another device travel by the CPU.

        Args:
            value: what is frozen.
            what: its name in messages.
            instead: what to pass if it cannot be pickled.

        Raises:
            TypeError: it cannot be pickled.
        """
        if id(value) not in self:
            try:
                self[id(value)] = Frozen(pickled(_on_cpu(value)))
            except TypeError as error:
                raise TypeError(f"{what} {type(value).__name__} cannot be pickled ({error}); pass {instead}") from error
        return self[id(value)]


def _on_cpu(value: Any) -> Any:
    if not isinstance(value, nn.Module):
        return value
    tensors = [tensor for tensor in value.state_dict().values() if isinstance(tensor, torch.Tensor)]
    return value if all(tensor.device.type == "cpu" for tensor in tensors) else copy.deepcopy(value).to("cpu")
