"""A whole collector as one worker of a fleet: it is drawn from by its own `next()`.

Weights, state, seeds, hooks and shutdown pass through to it, by the methods that users have, too.
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
from swath.collect.description import Description
from swath.collect.paths import follow
from swath.collect.remote import RemoteRequest
from swath.collect.remote_weights import RemoteWeights
from swath.collect.responding import Responder
from swath.collect.saving import LIFE, WEIGHTS
from swath.collect.shaping import valid_frames
from swath.collect.worker import Seeding, Tally
from swath.collect.writing import ReplayWriter
from swath.collectors.collector import Collector
from swath.group.local import LocalFleet
from swath.keys import TRAJ_IDS, VERSION
from swath.options import Hooks
from swath.rollout.episodes.ids import LIFE_BITS, WORKER_BITS
from swath.rollout.episodes.statistics import NO_EPISODES, EpisodeArray, joined
from swath.seeds import derive, fresh_root
from swath.weights.names import POLICY
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
        self._collection = self._collector.collection
        self._collection.counters.told = self._heard
        self._built_by = request.built_by
        self._episodes = NO_EPISODES
        self._handed = 0
        self._life = request.worker.life
        try:
            self._begin(request)
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
        described: Description = self._collector.described()
        return described

    def close(self) -> None:
        """Shut the collector down."""
        self._collector.shutdown(timeout=FAREWELL_S)

    def next(self) -> Any:
        """A batch for whoever holds this worker's handle; the collection does not see it."""
        return self._drawn()

    def touch(self) -> int:
        """The version of its weights."""
        version: int = self._collection.version
        return version

    def reset(self) -> None:
        """Begin fresh episodes in all envs."""
        self._collector.reset()

    def seed_with(self, seeding: Seeding) -> None:
        """Seed everything and begin fresh episodes."""
        self._collector.set_seed(seeding.root, seeding.static)

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed this worker alone; see the collector's `set_seed`."""
        final: int = self._collector.set_seed(seed, static_seed)
        return final

    def set_hooks(self, hooks: Hooks) -> None:
        """Set the functions that are called around fragments."""
        self._collector.pre_collect_hook, self._collector.post_collect_hook = hooks.before, hooks.after

    def move_to(self, index: int, seeding: Seeding | None) -> int:
        """Be another worker, with fresh episodes; the life in which it goes on."""
        self._collector.worker_idx = index
        if seeding is not None:
            self.seed_with(seeding)
        return self._life

    def state_dict(self) -> OrderedDict[str, Any]:
        """What its own `state_dict` gives; of several workers with the weights of the first."""
        saved: OrderedDict[str, Any] = self._collector.state_dict()
        weights = {WEIGHTS: saved["worker0"][WEIGHTS]} if WEIGHTS in saved.get("worker0", {}) else {}
        return OrderedDict({"env_state_dict": OrderedDict(), LIFE: self._life, **weights, **saved})

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore what `state_dict` saved, in a new life."""
        self._collector.load_state_dict(state_dict, strict=strict)
        self._handed = self._collection.counters.frames

    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None) -> None:  # noqa: ARG002  it was saved, too
        """As `load_state_dict`, leniently: also what was saved of another number of workers."""
        self._go_on_from(saved.get(LIFE, 0), saved)

    def stats(self) -> dict[str, Any]:
        """What `stats()` of its collector gives."""
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
        if model_id != POLICY and isinstance(self._collector, Collector):
            return follow(self._collector, model_id)
        return self._collector.get_model(model_id)

    def _begin(self, request: RemoteRequest) -> None:
        """Be in this life, with these seeds; copies of one env do not share a random state."""
        worker, fleet = request.worker, self._collection.group.fleet
        if worker.life:
            self._go_on_from(worker.life - 1, {})
        if worker.seed is not None:
            self.seed_with(worker.seed)
        elif worker.twin and isinstance(fleet, LocalFleet):
            root = fresh_root()
            fleet.member.worker.reset_with([derive(root, "env", env) for env in range(fleet.member.env_count)])
        if request.writing is not None:
            hooks = Hooks(postproc=request.hooks.postproc)  # the others are called in the collector
            self._writer = ReplayWriter(request.writing, self.describe().layout, hooks)

    def _go_on_from(self, life: int, saved: Mapping[str, Any]) -> None:
        """Load what was saved; in the life after this one, where nothing was saved of a worker."""
        lives = {f"worker{number}": {LIFE: life} for number in range(self._collector.num_workers)}
        self.load_state_dict({LIFE: life, **lives, **saved}, strict=False)

    def _make(self, ask: Ask) -> Parcel:
        self._collection.be_random(ask.randomly)
        batch = self._drawn()
        ids, versions = batch.get(TRAJ_IDS, None), batch.get(VERSION, None)
        next_id = 0 if ids is None else int(ids.max()) + 1
        if ids is not None:
            lives = ids[ids >= 0] >> LIFE_BITS & (2 ** (WORKER_BITS - LIFE_BITS) - 1)
            self._life = max(self._life, int(lives.max()))
        head = Head(
            self.worker_idx,
            self._life,
            self._collection.version if versions is None else int(versions.min()),
            valid_frames(batch),
            batch.shape[-1],
            self._tally(),
            self._episodes.tobytes(),
            next_id,
        )
        return Parcel(head, batch)

    def _drawn(self) -> TensorDictBase:
        """What the collector's own `next` gives, on the CPU.

        Raises:
            TypeError: it is no batch.
        """
        self._episodes = NO_EPISODES
        batch = self._collector.next()
        if not isinstance(batch, TensorDictBase):
            kind = type(self._collector).__name__
            raise TypeError(f"next() of {kind} gave {type(batch).__name__}; it must give a TensorDict [*B, T]")
        self._handed += valid_frames(batch)
        return batch if batch.device is None else batch.cpu().clear_device_()

    def _tally(self) -> Tally:
        """What the collector counts; what it gave to a derived `next` that raised is discarded, too."""
        said = self._collector.stats()
        kept_back = max(0, said["frames"] - self._handed)
        discarded = said["frames_discarded"] + said["frames_dropped"] + kept_back
        return Tally(said["env_errors"], said["restarts"], said["fragments_lost"], discarded)

    @property
    def _env_errors(self) -> int:
        """None of several workers, which are replaced inside."""
        errors: int = self._collector.stats()["env_errors"] if isinstance(self._collector, Collector) else 0
        return errors

    def take(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""
        self._collection.group.channel.publish(models, version=version)

    def _heard(self, episodes: EpisodeArray) -> None:
        self._episodes = joined([self._episodes, episodes])


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
