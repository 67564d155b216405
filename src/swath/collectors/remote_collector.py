"""A whole collector as one worker of a fleet: it is drawn from by its own `next()`.

Weights, state, seeds, hooks and shutdown pass through to it, by the methods that users have, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from tensordict import TensorDictBase

from swath.collectors.collector import Collector
from swath.collectors.delivery import valid_frames
from swath.collectors.messages import Description, FragmentRequest, Head, Tally, signature_of
from swath.collectors.multi import LocalMultiCollector, MultiAsyncCollector, MultiSyncCollector
from swath.collectors.options import Hooks, defaults
from swath.collectors.remote import LIFE, WEIGHTS
from swath.collectors.responding import Responder
from swath.collectors.worker_request import SETTINGS, Seeding, WorkerOptions, WorkerRequest
from swath.keys import TRAJ_IDS, VERSION
from swath.options import Survival
from swath.rollout.episodes.statistics import NO_EPISODES, EpisodeArray, EpisodeLog, joined, life_of
from swath.seeds import fresh_root
from swath.weights.snapshot import Snapshot
from swath.workers.packing import Parcel

FAREWELL_S = 24 * 3600.0
"""Whoever asks for the farewell ends this place, and all that lives in it, when it takes too long."""

Inner: TypeAlias = Collector | LocalMultiCollector
WORDS = {"single": Collector, "sync": MultiSyncCollector, "async": MultiAsyncCollector}
DEFAULTS = defaults(WorkerOptions)
# Keywords of the classes with sub-processes that are set below, or that have no meaning in an actor.
SUB_PROCESSES = ("num_workers", "collector_class", "cat_results", "update_at_each_batch")


class Ended(EpisodeLog):
    """Episodes of a collector, and those of the last draw."""

    last_draw = NO_EPISODES

    def add(self, episodes: EpisodeArray) -> None:
        """These have ended."""
        super().add(episodes)
        self.last_draw = joined([self.last_draw, episodes])


class RemoteCollector(Responder):
    """A collector as one worker of a fleet.

    Args:
        request: what it is made of.
        kind: the class.
        keywords: of its constructor, beyond env, policy, frames, hooks and index.
    """

    def __init__(self, request: WorkerRequest, kind: type[Inner], keywords: Mapping[str, Any]) -> None:
        super().__init__(request)
        own = {"frames_per_batch": request.frames, "worker_idx": request.worker, **keywords}
        self._collector = kind(request.source.env, request.policy, **own)
        self._collection = self._collector.collection
        self._episodes = self._collection.counters.episodes = Ended()
        self._ends_with_env &= isinstance(self._collector, Collector)  # others replace workers of their own
        self._life = request.life
        try:
            self.set_hooks(request.hooks)
            if self._life:
                self.restore({LIFE: self._life - 1})
            if request.seed is not None:
                self.seed_with(request.seed)
            elif request.copies_env:
                self._collector.set_seed(fresh_root())
            self._begin_writing(request, self.describe().layout, Hooks(postproc=request.hooks.postproc))
        except BaseException:
            self.close()
            raise

    @property
    def _root(self) -> Any:
        return self._collector

    def describe(self) -> Description:
        """What its batches and weights are like."""
        workers = self._collection.jobs.described
        one = workers[0]
        if isinstance(self._collector, Collector):
            return replace(
                one, signature=signature_of(self._collector.fake_tensordict(), len(one.layout.batch_shape) + 1)
            )
        if not isinstance(self._collector, MultiSyncCollector):
            return one
        layout = replace(one.layout, batch_shape=(len(workers), *one.layout.batch_shape))
        return replace(one, num_envs=sum(each.num_envs for each in workers.values()), layout=layout)

    def close(self) -> None:
        """Shut the collector down."""
        self._collector.shutdown(timeout=FAREWELL_S)

    def touch(self) -> int:
        """The version of its weights."""
        return self._collection.version

    def reset(self) -> None:
        """Begin fresh episodes in all envs."""
        self._collector.reset()

    def seed_with(self, seeding: Seeding) -> None:
        """Seed everything and begin fresh episodes."""
        self._collector.set_seed(seeding.root, seeding.static)

    def set_hooks(self, hooks: Hooks) -> None:
        """Set the functions that are called around fragments."""
        self._collector.pre_collect_hook, self._collector.post_collect_hook = hooks.before, hooks.after

    def move_to(self, index: int) -> None:
        """Be another worker, with fresh episodes; with seeds, if it has some."""
        self._collector.worker_idx = index

    def state_dict(self) -> OrderedDict[str, Any]:
        """What its own `state_dict` gives; of several workers with the weights of the first."""
        saved = self._collector.state_dict()
        weights = {WEIGHTS: saved["worker0"][WEIGHTS]} if WEIGHTS in saved.get("worker0", {}) else {}
        return OrderedDict({"env_state_dict": OrderedDict(), LIFE: self._life, **weights, **saved})

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore what `state_dict` saved, in a new life."""
        self._collector.load_state_dict(state_dict, strict=strict)

    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None = None) -> None:  # noqa: ARG002  it was saved
        """As `load_state_dict`, leniently: also what was saved of another number of workers."""
        lives = {f"worker{number}": {LIFE: saved.get(LIFE, 0)} for number in range(self._collector.num_workers)}
        self.load_state_dict({**lives, **saved}, strict=False)

    def stats(self) -> dict[str, Any]:
        """What `stats()` of its collector gives."""
        return self._collector.stats()

    def get_model(self, model_id: str) -> Any:
        """The model of an id; of a collector of several a copy of it."""
        return self._collector.get_model(model_id)

    def take(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""
        self._collection.group.channel.publish(models, version=version)

    def next(self) -> TensorDictBase:
        """What the collector's own `next` gives, on the CPU; for others by the handle, too.

        Raises:
            TypeError: it is no batch.
        """
        self._episodes.last_draw = NO_EPISODES
        batch = self._collector.next()
        if not isinstance(batch, TensorDictBase):
            kind = type(self._collector).__name__
            raise TypeError(f"next() of {kind} gave {type(batch).__name__}; it must give a TensorDict [*B, T]")
        return batch if batch.device is None else batch.cpu().clear_device_()

    def counted(self) -> Tally:
        """What the collector counts, but for what it has written."""
        said = self.stats()
        discarded = said["frames_discarded"] + said["frames_dropped"]
        frames = said["frames"] + discarded
        return Tally(said["env_errors"], said["restarts"], said["fragments_lost"], frames, discarded)

    def _make(self, ask: FragmentRequest) -> Parcel:
        self._collection.be_random(ask.randomly)
        batch = self.next()
        ids, versions = batch.get(TRAJ_IDS, None), batch.get(VERSION, None)
        next_id = 0 if ids is None else int(ids.max()) + 1
        if ids is not None:
            self._life = max(self._life, *(life_of(each)[1] for each in ids[ids >= 0].unique().tolist()))
        version, episodes = self.touch() if versions is None else int(versions.min()), self._episodes.last_draw
        head = Head(self._life, version, valid_frames(batch), batch.shape[-1], episodes.tobytes(), next_id)
        return Parcel(head, batch)


def kind_of(given: Any) -> type[Inner]:
    """What is to be built in each actor.

    Raises:
        TypeError: no class of ours.
    """
    kind = WORDS.get(given, given) if isinstance(given, str) else given
    if isinstance(kind, type) and issubclass(kind, Collector | LocalMultiCollector):
        return kind
    raise TypeError(
        f"collector_class={given!r} must be Collector ('single'), MultiSyncCollector ('sync'), "
        "MultiAsyncCollector ('async') of swath, or a class derived from one of them"
    )


def nested(
    kind: type[Inner], request: WorkerRequest, further: Mapping[str, Any], number: int, survival: Survival
) -> WorkerRequest:
    """What an actor is made of in which such a collector is built.

    Args:
        kind: its class.
        request: what a plain worker would be made of.
        further: keywords of the class itself.
        number: of sub-processes, if it has some; those that are late are replaced before the actor is.
        survival: of the whole.
    """
    given = {name: getattr(request.options, name) for name in SETTINGS}
    given = {name: value for name, value in given.items() if value is not DEFAULTS[name]}
    given.pop("storing_device", None)  # whoever joins batches moves them
    if issubclass(kind, LocalMultiCollector):
        patience = survival.fragment_timeout_s
        given |= {
            "num_workers": number,
            "restarts": survival.restarts,
            "fragment_timeout_s": None if patience is None else patience / 2,
            "placement_timeout_s": survival.placement_timeout_s,
        }
    elif request.options.on_env_error == "restart":
        del given["on_env_error"]  # the actor is replaced
    return replace(request, make=partial(RemoteCollector, kind=kind, keywords={**given, **further}))
