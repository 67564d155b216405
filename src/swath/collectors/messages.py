"""Messages between a collection and its workers.

create_env_fn, policy, options ─▶ WorkerRequest, one per worker, policies and envs pickled ─▶ the worker is built
Description                    ◀─ shapes of the worker's fragments and weights
FragmentRequest                ─▶ one fragment ─▶ Head (small) + body (arrays), or Error
                                             └─▶ Head alone, where the worker writes to a replay buffer itself
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from swath.collectors.options import Hooks, Trajectories, WorkerOptions
from swath.group.group import Request
from swath.keys import as_key
from swath.rollout.buffer import Layout
from swath.rollout.hosts.sources import Source
from swath.weights.snapshot import Manifest


@dataclass(frozen=True)
class Description:
    """The shapes of a worker's fragments and weights.

    Attributes:
        num_envs: B.
        n_steps: T.
        layout: names and extras of its fragments.
        manifest: manifest of the policy's weights.
        signature: shape behind `[*B, T]` and dtype of each entry of its fragments, in words, as far as they are fixed.
        env_device: where its envs run.
        policy_device: where its policy runs; `None` if it was not set and cannot be found out.
        plan: `"on"`, or what stands in the way of a plan; `""` for plain policies of envs that give arrays.
    """

    num_envs: int
    n_steps: int
    layout: Layout
    manifest: Manifest
    signature: Mapping[Any, str]
    env_device: torch.device | None = None
    policy_device: torch.device | None = None
    plan: str = ""

    @property
    def frames(self) -> int:
        """Return the frames of a fragment."""
        return self.num_envs * self.n_steps

    def rounded(self, frames: int) -> int:
        """Return this number of frames, rounded up to whole steps."""
        return -(-frames // self.num_envs) * self.num_envs

    def difference(self, other: Description) -> str:
        """Describe the first difference to another description; return "" if their fragments can be joined."""
        shapes = self.layout.batch_shape, other.layout.batch_shape
        if shapes[0] != shapes[1]:
            return f"envs of batch shape {list(shapes[1])}, not {list(shapes[0])}"
        for key in {**self.signature, **other.signature}:
            form, other_form = self.signature.get(key, "missing"), other.signature.get(key, "missing")
            if form != other_form:
                return f"entry {key!r} is {other_form}, not {form}"
        return ""


def signature_of(batch: Any, n_dims: int, path: tuple[Any, ...] = ()) -> dict[Any, str]:
    """Return shape and dtype of each entry below a path of a batch; by member where members of a group differ.

    Args:
        batch: a TensorDict.
        n_dims: number of leading dimensions that are left out of shapes.
        path: path of the batch in a larger batch.
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
        restarts: how often the env source was rebuilt.
        fragments_lost: fragments that ended with an exception, or that could not be written.
        frames: good frames that were collected.
        frames_discarded: good frames that will not be delivered.
        frames_written: good frames that the worker has written to a replay buffer itself.
    """

    env_errors: int = 0
    restarts: int = 0
    fragments_lost: int = 0
    frames: int = 0
    frames_discarded: int = 0
    frames_written: int = 0


@dataclass(frozen=True)
class FragmentRequest:
    """A request for one fragment.

    Attributes:
        frames: how many to make, rounded up to whole steps; 0 for as many as before.
        randomly: whether actions are random.
        number: grows with every request to any worker.
        stop_numbers: an int64 array `[W]` shared with the workers; a worker stops at its next step once its entry has
            reached the number. `None` if fragments cannot be ended early.
        entry: index of the worker in that array.
    """

    frames: int = 0
    randomly: bool = False
    number: int = 0
    stop_numbers: Any = None
    entry: int = 0


@dataclass
class Head:
    """Facts of a fragment, which arrive before its arrays are fetched.

    Attributes:
        life: the life of its worker in which it was made.
        version: the policy version that acted.
        frames: how many rows are transitions.
        steps: how many of its T steps were made.
        packed: the episodes that ended in it, as bytes.
        next_id: a number above every trajectory id that was used.
        number: number of the fragment in this life, from 1; fragments that were not delivered have numbers, too.
        since: `next_id` before it was made.
        tally: counts of this life, this fragment included.
        writes: how often the worker has called `extend` for it.
        frames_written: how many frames these calls have written.
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


def head_of(request: Request) -> Head:
    """Return the head of a fragment that has arrived."""
    head: Head = request.reply.head
    return head


@dataclass(frozen=True)
class WriteRequest:
    """How a worker writes to a replay buffer.

    Attributes:
        trajectories: how batches are made of episodes.
        keep_ids: whether trajectory ids are written.
        cut: leave out the steps of a fragment that were not made.
        client: the worker's client of the replay buffer.
    """

    trajectories: Trajectories
    keep_ids: bool = True
    cut: bool = False
    client: Any = None


@dataclass(frozen=True)
class Seeding:
    """The source of a worker's seeds.

    Attributes:
        root: the user's seed.
        static: every env gets `root` itself.
        stride: number of envs of the largest worker; `None` if all have as many as this one.
        envs_only: do not seed the process's generators: other threads draw from them, too.
    """

    root: int
    static: bool = False
    stride: int | None = None
    envs_only: bool = False

    @staticmethod
    def state_of(seeding: Seeding | None) -> dict[str, Any]:
        """Return the entries of a state dict: the root, and whether every env gets the root itself."""
        root, is_static = (None, False) if seeding is None else (seeding.root, seeding.static)
        return {"seed": root, "static_seed": is_static}


@dataclass(frozen=True)
class WorkerRequest:
    """Start-up data of a worker.

    Attributes:
        source: the envs.
        policy: the policy that acts in the envs; `None` where a factory builds it, or for random actions.
        options: options of the worker.
        frames: frames of one fragment.
        in_process: whether it lives in the process of the user, whose policy itself acts.
        lazy_seed: seed of the initial weights of lazy layers of the policy; `None` if it has none.
        draws_first: whether the first call of the policy in a TorchRL env draws from the process's generators, as in
            TorchRL's collector; their states are restored otherwise.
        worker: its index.
        life: which of its lives.
        seed: source of its seeds; `None` seeds nothing.
        interrupted: called after each step; true ends the fragment there.
        masked: fragments have a mask, since some may lack rows.
        make: function of this request that builds the object which answers requests; `None` for a `Worker`.
        threads: torch's threads in it.
        resources: that its place must have.
        hooks: functions of the user that are called in the worker.
        expected_description: description of its earlier lives, which it must have, too.
        writing: settings of a worker that writes to a replay buffer; `None` for other workers.
        built_by: key of the collector that starts it.
    """

    source: Source
    policy: Any
    options: WorkerOptions
    frames: int
    in_process: bool = False
    lazy_seed: int | None = None
    draws_first: bool = False
    worker: int = 0
    life: int = 0
    seed: Seeding | None = None
    interrupted: Callable[[], bool] | None = None
    masked: bool = False
    make: Callable[..., Any] | None = None
    threads: int = 1
    resources: Mapping[str, Any] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=Hooks)
    expected_description: Description | None = None
    writing: WriteRequest | None = None
    built_by: str = ""

    @property
    def copies_env(self) -> bool:
        """Return whether its envs are copies of an instance, whose random state they must not share."""
        return self.source.is_instance and (not self.in_process or (self.source.copies or 1) > 1)


@dataclass(frozen=True)
class Pickled:
    """A pickled value; calling it returns a copy, so that it may take the place of a callable.

    Attributes:
        data: bytes that cloudpickle wrote.
    """

    data: bytes

    def __call__(self) -> Any:
        """Return a copy of the value."""
        return pickle.loads(self.data)  # noqa: S301  it was pickled here


def unpickle(value: Any) -> Any:
    """Return a copy of a `Pickled` value; return any other value itself."""
    return value() if isinstance(value, Pickled) else value
