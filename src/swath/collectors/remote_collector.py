"""What lives in a place where a worker is a whole collector: it is drawn from, and answers as a worker core does.

collect(…) ─▶ collector.next() ─▶ Parcel(Head, batch)
control(…) ─▶ one of the methods here
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensordict import TensorDictBase

from swath.collect.answers import Followed
from swath.collect.asks import Ask, Head
from swath.collect.counters import Episodes
from swath.collect.description import Description
from swath.collect.remote import RemoteRequest
from swath.collect.remote_weights import RemoteWeights
from swath.collect.responding import Responder
from swath.collect.shaping import valid_frames
from swath.collect.worker import Seeding, Tally
from swath.collect.writing import ReplayWriter
from swath.collectors.collector import Collector
from swath.collectors.inside import Inside, ManyInside, OneInside
from swath.keys import VERSION
from swath.options import Hooks
from swath.weights.manifest import Manifest
from swath.weights.snapshot import Snapshot
from swath.workers.packing import Parcel

FAREWELL_S = 24 * 3600.0
"""Whoever asks for the farewell ends this place, and all that lives in it, when it takes too long."""


@dataclass(frozen=True)
class MakeCollector:
    """Makes what answers for a collector of a class; travels to where it lives.

    Attributes:
        kind: the class.
        keywords: of its constructor, beyond env, policy, frames, hooks and index.
    """

    kind: type[Any]
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, request: RemoteRequest) -> RemoteCollector:
        """The collector's answers, once it is built."""
        return RemoteCollector(request, self)


class RemoteCollector(Followed, RemoteWeights, Responder):
    """A collector as one worker of a fleet.

    Args:
        request: what it is made of.
        made: of which class, and how.
    """

    def __init__(self, request: RemoteRequest, made: MakeCollector) -> None:
        super().__init__()
        self._collector = _built(request, made)
        one = isinstance(self._collector, Collector)
        self._inside: Inside = OneInside(self._collector) if one else ManyInside(self._collector)
        self._built_by = request.built_by
        self._episodes: Episodes = ()
        self._lost = Tally()
        self._inside.tell(self._heard)
        self._inside.tell_of_gaps(self._lacks)
        if request.writing is not None:
            hooks = Hooks(postproc=request.hooks.postproc)  # the others are called in the collector
            self._writer = ReplayWriter(request.writing, self.describe().layout, hooks)
        try:
            self._inside.begin(request.worker)
        except BaseException:
            self.close()
            raise

    @property
    def worker_idx(self) -> int:
        """Index of this worker."""
        index: int = self._collector.worker_idx
        return index

    @property
    def _root(self) -> Any:
        return self._collector

    def describe(self) -> Description:
        """What its batches and weights are like."""
        return self._inside.describe()

    def close(self) -> None:
        """Shut the collector down."""
        self._collector.shutdown(timeout=FAREWELL_S)

    def next(self) -> Any:
        """A batch for whoever holds this worker's handle; the collection does not see it."""
        batch = self._drawn()
        self._gap = self._inside.next_ids
        return batch

    def touch(self) -> int:
        """The version of its weights."""
        return self._inside.version

    def life(self) -> int:
        """The last life number that was used in it."""
        return self._inside.life

    def reset(self) -> None:
        """Begin fresh episodes in all envs."""
        self._collector.reset()

    def seed_with(self, seeding: Seeding) -> None:
        """Seed everything and begin fresh episodes."""
        self._inside.seed(seeding)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed this worker alone; see the collector's `set_seed`."""
        final: int = self._collector.set_seed(seed, static_seed)
        return final

    def set_hooks(self, hooks: Hooks) -> None:
        """Set the functions that are called around fragments."""
        self._collector.pre_collect_hook, self._collector.post_collect_hook = hooks.before, hooks.after

    def set_share(self, frames: int) -> int:
        """Make batches of so many frames, rounded up to whole steps; how many they are."""
        return self._inside.share_out(frames)

    def move_to(self, index: int, seeding: Seeding | None) -> int:
        """Be another worker, with fresh episodes; the life in which it goes on."""
        self._collector.worker_idx = index
        if seeding is not None:
            self._inside.seed(seeding)
        return self._inside.life

    def state_dict(self) -> OrderedDict[str, Any]:
        """Weights, transforms, version, seed and life; of a collector of several what each of them saves, too."""
        return self._inside.state()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore what `state_dict` saved, in a new life."""
        self._collector.load_state_dict(state_dict, strict=strict)

    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None) -> None:
        """As `load_state_dict` without weights, which come by the channel; with these seeds, from this seed."""
        self._inside.restore(saved, seeding)

    def stats(self) -> dict[str, Any]:
        """What its collector says of itself."""
        facts: dict[str, Any] = self._collector.stats()
        return facts

    def getattr_env(self, name: str) -> Any:
        """An attribute of the first env."""
        return self._collector.getattr_env(name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the policy."""
        return self._collector.getattr_policy(name)

    def get_model(self, model_id: str) -> Any:
        """The model of an id; of a collector of several a copy of it."""
        return self._collector.get_model(model_id)

    def manifest_of(self, model_id: str) -> Manifest:
        """What the weights of a model must look like."""
        return self._inside.manifest_of(model_id)

    def _make(self, ask: Ask) -> Parcel:
        self._inside.be_random(ask.randomly)
        if ask.frames is not None:
            self._inside.share_out(ask.frames)
        batch = self._drawn()
        frames = valid_frames(batch)
        inside = self._inside
        head = Head(
            self.worker_idx,
            inside.life,
            _version_of(batch, inside.version),
            frames,
            batch.shape[-1],
            self._tally(),
            self._episodes,
            max(inside.next_ids, default=0),
            inside.next_ids,
        )
        return Parcel(head, batch)

    def _drawn(self) -> TensorDictBase:
        """What the collector's own `next` gives, on the CPU.

        Raises:
            TypeError: it is no batch.
        """
        self._episodes, before = (), self._inside.frames
        try:
            batch = _require_batch(self._collector, self._collector.next())
        except BaseException:
            self._lose(self._inside.frames - before)
            raise
        return batch if batch.device is None else batch.cpu().clear_device_()

    def _lose(self, frames: int) -> None:
        """No batch has come of a draw, of which a derived `next` was given these: episodes that go on lack them."""
        if frames:
            self._lost.fragments_lost += 1
            self._lost.frames_discarded += frames
        if frames or not self._inside.heals_envs:  # one core keeps nothing for the next draw, and may have lost a batch
            self._gap = self._inside.next_ids

    def _lacks(self, floor: int) -> None:
        """Episodes with lower ids lack frames."""
        self._gap = (*self._gap, floor)

    def _tally(self) -> Tally:
        said, lost = self._collector.stats(), self._lost
        return Tally(
            said["env_errors"],
            said["restarts"],
            said["fragments_lost"] + lost.fragments_lost,
            said["frames_discarded"] + said["frames_dropped"] + lost.frames_discarded,
        )

    def _is_by_env(self, before: Tally, after: Tally) -> bool:
        return not self._inside.heals_envs and super()._is_by_env(before, after)

    def _bring(self, models: Mapping[str, Snapshot], version: int) -> None:
        self._inside.bring(models, version)

    def _heard(self, episodes: Episodes) -> None:
        self._episodes += episodes


def _built(request: RemoteRequest, made: MakeCollector) -> Any:
    worker, hooks = request.worker, request.hooks
    around = {"pre_collect_hook": hooks.before, "post_collect_hook": hooks.after}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "frames_per_batch=", UserWarning)  # whoever asks for the share says so
        return made.kind(
            worker.source.env,
            worker.policy.policy,
            frames_per_batch=worker.share.frames_per_batch,
            total_frames=-1,
            worker_idx=worker.worker,
            **{name: hook for name, hook in around.items() if hook is not None},
            **made.keywords,
        )


def _require_batch(collector: Any, given: Any) -> TensorDictBase:
    if not isinstance(given, TensorDictBase):
        kind = type(collector).__name__
        raise TypeError(f"next() of {kind} gave {type(given).__name__}; it must give a TensorDict [*B, T]")
    return given


def _version_of(batch: TensorDictBase, default: int) -> int:
    """The oldest that acted in it."""
    versions = batch.get(VERSION, None)
    return default if versions is None else int(versions.min())
