"""What lives in a place: a worker core that answers the requests of a collection.

    collect(update, ask) ─▶ weights, if newer ─▶ hook ─▶ fragment ─▶ hook ─▶ Parcel(Head, arrays) | Broken
    control(update, method, …) ─▶ weights, if newer ─▶ one of the methods below

Runs in the worker, in one thread, between two fragments or while it makes one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from swath.collect.asks import Ask, Broken, Head
from swath.collect.counters import EpisodeMeter
from swath.collect.making.assembly import WorkerRequest, build_worker
from swath.collect.making.frozen import thawed
from swath.collect.notes import noted
from swath.collect.paths import call_at, call_each, follow
from swath.collect.saving import load_worker, save_worker
from swath.collect.worker import Seeding
from swath.options import Hooks
from swath.rollout.fragment import Fragment, Layout
from swath.rollout.hosts.base import first_of
from swath.rollout.tensordicts import TensorDictRows
from swath.seeds import derive
from swath.weights.channel import Update
from swath.weights.manifest import Manifest
from swath.weights.snapshot import apply, take
from swath.workers.outcome import frozen
from swath.workers.packing import Parcel

POLICY = "policy"
PUBLIC = (
    "next",
    "update_policy_weights_",
    "receive_weights",
    "cascade_execute",
    "get_distant_attr",
    "map_fn",
    "set_seed",
    "state_dict",
    "load_state_dict",
    "stats",
    "shutdown",
)
"""What others may call on a worker by its handle."""


@dataclass(frozen=True)
class Description:
    """What a worker is like, as its collection must know it.

    Attributes:
        num_envs: B.
        n_steps: T.
        layout: names and extras of its fragments.
        manifest: of the policy's weights.
        signature: shape behind `[*B, T]` and dtype of each entry of its fragments, as far as they are fixed.
        env_device: where its envs run.
        policy_device: where its policy runs; `None` if nobody said.
    """

    num_envs: int
    n_steps: int
    layout: Layout
    manifest: Manifest
    signature: Mapping[Any, tuple[tuple[int, ...], torch.dtype]]
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
        for key in [*self.signature, *other.signature]:
            mine, theirs = self.signature.get(key), other.signature.get(key)
            if mine != theirs:
                return f"entry {key!r} is {_said(theirs)}, not {_said(mine)}"
        return ""


def _said(entry: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "missing" if entry is None else f"{list(entry[0])} of {entry[1]}"


@dataclass(frozen=True)
class RemoteRequest:
    """All that a worker elsewhere is made of.

    Attributes:
        worker: the core.
        hooks: functions of the user that are called in the worker.
        cut_last: mark the last transition of each env in a fragment as truncated.
        masked: fragments have a mask, since some may lack rows.
        model: what its earlier lives were like, and it must be like, too.
    """

    worker: WorkerRequest
    hooks: Hooks = field(default_factory=Hooks)
    cut_last: bool = False
    masked: bool = False
    model: Description | None = None


class RemoteWorker:
    """One worker of a fleet.

    Args:
        request: what it is made of.

    Attributes:
        pre_collect_hook: called before each fragment.
        post_collect_hook: called with each fragment, as a batch `[*B, T]`.
    """

    def __init__(self, request: RemoteRequest) -> None:
        built = build_worker(replace(request.worker, stopped=self._stopped))
        self._worker, self._acting = built.worker, built.acting
        self._layout = replace(built.layout, masked=built.layout.masked or request.masked)
        self._cut_last = request.cut_last
        self._meter = EpisodeMeter(self._worker.host.spec.num_envs)
        self._ask = Ask()
        self._bell: Any = None
        self._own_versions = 0
        self._frames = 0
        self._unfit: Exception | None = None
        self.pre_collect_hook, self.post_collect_hook = request.hooks.before, request.hooks.after

    # ---- requests of the collection

    def describe(self) -> Description:
        """What it is like."""
        host, acting = self._worker.host, self._acting
        return Description(
            host.spec.num_envs,
            self._worker.place.n_steps,
            self._layout,
            Manifest.of(acting.policy),
            _signature(self._zero_batch(), len(self._layout.batch_shape) + 1),
            getattr(first_of(host.env), "device", None),
            acting.device,
        )

    def collect(self, update: Update | None, ask: Ask) -> Parcel | Broken:
        """Make one fragment."""
        if self._cannot_take(update):
            return self._refusal()
        tally = self._worker.tally
        env_errors = tally.env_errors
        try:
            return self._fragment(ask)
        except Exception as error:  # noqa: BLE001  travels, and is raised over there
            return Broken(frozen(error, one_note=True), replace(tally), tally.env_errors > env_errors)

    def control(
        self, update: Update | None, method: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a method of this worker between two fragments; `Broken` is the answer of a worker that is unfit."""
        if self._cannot_take(update):
            return self._refusal()
        return getattr(self, method)(*args, **(kwargs or {}))

    def close(self) -> None:
        """Close the envs."""
        self._worker.close()

    # ---- what can be asked between two fragments

    @property
    def env(self) -> Any:
        """The live env, vector env, or list of envs."""
        return self._worker.host.env

    @property
    def policy(self) -> Any:
        """The policy that acts here."""
        return self._acting.policy

    @property
    def worker_idx(self) -> int:
        """Its index."""
        return self._worker.place.worker

    def life(self) -> int:
        """Which of its lives it is in."""
        return self._worker.life

    def conform(self, model: Description) -> None:
        """Be unfit unless it is like others."""
        difference = model.difference(self.describe())
        if difference:
            self._unfit = ValueError(f"its fragments cannot be joined with those of others: {difference}")

    def touch(self) -> int:
        """The version of its weights."""
        return self._worker.version

    def reset(self, index: Any = None) -> None:
        """Begin fresh episodes in all envs, or in these."""
        self._worker.begin_episodes(index)

    def seed_with(self, seeding: Seeding) -> None:
        """Seed everything and begin fresh episodes."""
        self._worker.set_seed(seeding)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed this worker alone; see the collector's `set_seed`."""
        self._worker.set_seed(Seeding(seed, static_seed))
        return seed if static_seed else derive(seed, "next")

    def state_dict(self) -> OrderedDict[str, Any]:
        """Weights, transforms, version, seed and life."""
        return save_worker(self._worker, self._acting, self._frames)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore what `state_dict` saved, in a new life."""
        load_worker(self._worker, self._acting, state_dict, strict=strict)

    def manifest_of(self, model_id: str) -> Manifest:
        """What the weights of a model must look like.

        Raises:
            AttributeError: a path that leads nowhere.
        """
        return Manifest.of(self.get_model(model_id))

    def get_model(self, model_id: str) -> Any:
        """The model of an id: the policy, or what a path leads to."""
        return self._acting.policy if model_id == POLICY else follow(self, model_id)

    def update_policy_weights_(
        self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None, policy_weights: Any = None
    ) -> None:
        """Set weights on this worker directly; its fragments carry a negative version from then on.

        Raises:
            ValueError: none or several are given.
            KeyError, ValueError, TypeError: they do not fit.
        """
        given = [value for value in (policy_or_weights, weights, policy, policy_weights) if value is not None]
        if len(given) != 1:
            raise ValueError(f"{len(given)} sources of weights are given; pass one")
        snapshot = take(given[0], Manifest.of(self._acting.policy))
        if snapshot is not None:
            apply(snapshot, self._acting.policy)
        self._own_versions += 1
        self._worker.version = -self._own_versions

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """As `update_policy_weights_`; without weights nothing happens."""
        if any(value is not None for value in (policy_or_weights, weights, policy)):
            self.update_policy_weights_(policy_or_weights, weights=weights, policy=policy)

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow a path from this worker and call what is found, or return it."""
        return call_at(self, attr_path, args, kwargs)

    def get_distant_attr(self, path: str) -> Any:
        """What a path from this worker leads to."""
        return follow(self, path)

    def getattr_env(self, name: str) -> Any:
        """An attribute of the first env."""
        return follow(first_of(self._worker.host.env), name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the policy."""
        return follow(self._acting.policy, name)

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method once per entry; see the collector's `map_fn`."""
        return call_each(follow(self, method_name), list_of_args, list_of_kwargs)

    def shutdown(self) -> None:
        """Close the envs."""
        self.close()

    def set_share(self, frames: int) -> int:
        """Make fragments of so many frames, rounded up to whole steps; how many they are."""
        num_envs = self._worker.host.spec.num_envs
        n_steps = -(-frames // num_envs)
        if n_steps != self._worker.place.n_steps:
            self._worker.make_steps(n_steps)
        return n_steps * num_envs

    def set_hook(self, which: str, hook: Any) -> None:
        """Set one of the two hooks."""
        setattr(self, which, hook)

    def next(self) -> Any:
        """A batch for whoever holds this worker's handle; the collection does not see it."""
        return self._cut(self._collect(Ask())).to_tensordict(self._layout)

    def stats(self) -> dict[str, Any]:
        """What it has done."""
        tally = self._worker.tally
        return {
            "frames": self._frames,
            "life": self._worker.life,
            "policy_version": self._worker.version,
            "env_errors": tally.env_errors,
            "fragments_lost": tally.fragments_lost,
            "frames_discarded": tally.frames_discarded,
        }

    # ---- within

    def _fragment(self, ask: Ask) -> Parcel:
        if self.pre_collect_hook is not None:
            with noted(f"pre_collect_hook in {self._worker.who}"):
                self.pre_collect_hook()
        if ask.frames is not None:
            self.set_share(ask.frames)
        fragment = self._collect(ask)
        worker = self._worker
        episodes = self._meter.add(fragment)
        self._frames += fragment.frames
        body = self._body(self._cut(fragment))
        head = Head(
            worker.place.worker,
            worker.life,
            worker.version,
            fragment.frames,
            worker.place.n_steps if fragment.steps is None else fragment.steps,
            replace(worker.tally),
            episodes,
            worker.next_id,
        )
        return Parcel(head, body)

    def _collect(self, ask: Ask) -> Fragment:
        self._ask, self._bell = ask, None if ask.bell is None else ask.bell.open()
        return self._worker.collect(randomly=ask.randomly)

    def _cut(self, fragment: Fragment) -> Fragment:
        if self._cut_last:
            fragment.rows.cut_last()
        return fragment

    def _body(self, fragment: Fragment) -> Any:
        """The fragment's arrays, or its batch where entries may be anything or a hook sees them."""
        if self.post_collect_hook is None and not isinstance(fragment.rows, TensorDictRows):
            return fragment
        batch = fragment.to_tensordict(self._layout)
        if self.post_collect_hook is not None:
            try:
                with noted(f"post_collect_hook in {self._worker.who}"):
                    self.post_collect_hook(batch)
            except BaseException:
                self._worker.lose(fragment)
                raise
        return batch

    def _cannot_take(self, update: Update | None) -> bool:
        """Bring the models to the versions of an update; true if they are not what they should be."""
        if update is not None and self._unfit is None:
            try:
                update.apply(self.get_model)
                self._worker.version = update.version
            except Exception as error:  # noqa: BLE001  it travels with the refusal
                self._unfit = error
        return self._unfit is not None

    def _refusal(self) -> Broken:
        assert self._unfit is not None
        return Broken(frozen(self._unfit), replace(self._worker.tally), unfit=True)

    def _stopped(self) -> bool:
        return self._bell is not None and self._bell[self._ask.entry] >= self._ask.number

    def _zero_batch(self) -> Any:
        rows = self._worker.blank_rows()
        ids = torch.zeros(rows.terminated.shape, dtype=torch.int64).numpy()
        return Fragment(rows, ids, ids.copy(), 0).to_tensordict(self._layout)


def _signature(batch: Any, n_dims: int) -> dict[Any, tuple[tuple[int, ...], torch.dtype]]:
    return {
        key: (tuple(value.shape[n_dims:]), value.dtype)
        for key, value in batch.items(include_nested=True, leaves_only=True)
        if isinstance(value, torch.Tensor)
    }


def build_remote(request: RemoteRequest) -> RemoteWorker:
    """The worker; the function that jobs name. What travelled frozen thaws here.

    Raises:
        ValueError: it is not like its earlier lives.
    """
    worker = request.worker
    source = replace(worker.source, env=thawed(worker.source.env))
    policy = replace(worker.policy, policy=thawed(worker.policy.policy))
    built = RemoteWorker(replace(request, worker=replace(worker, source=source, policy=policy)))
    difference = "" if request.model is None else request.model.difference(built.describe())
    if difference:
        built.close()
        raise ValueError(f"worker {worker.worker} was built anew and is not what it was: {difference}")
    return built
