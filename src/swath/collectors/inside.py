"""A whole collector inside a worker, as the worker has to know it: of one core, or of several.

Both are drawn from by `next()`; the rest reaches past their faces, since a worker is told what users do not say: which
life it is in, which of its batches are random, under which number its weights run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from swath.collect.counters import Episodes
from swath.collect.description import Description, signature_of
from swath.collect.making.assembly import WorkerRequest
from swath.collect.remote import description_of
from swath.collect.saving import LIFE, WEIGHTS, load_worker
from swath.collect.worker import Seeding
from swath.collectors.collector import Collector
from swath.collectors.fleet_assembly import Assembled, seed_all, spread_seed
from swath.collectors.fleet_state import load_fleet
from swath.collectors.multi import MultiAsyncCollector, MultiSyncCollector
from swath.seeds import derive, fresh_root
from swath.weights.manifest import Manifest
from swath.weights.names import POLICY
from swath.weights.snapshot import Snapshot, fitting


class Inside(ABC):
    """What a worker asks of its collector but for batches."""

    @abstractmethod
    def begin(self, request: WorkerRequest) -> None:
        """Be in this life, with these seeds."""

    @abstractmethod
    def describe(self) -> Description:
        """What its batches and weights are like."""

    @abstractmethod
    def tell(self, told: Callable[[Episodes], None]) -> None:
        """Say of each episode that its end was delivered."""

    def tell_of_gaps(self, told: Callable[[int], None]) -> None:  # noqa: B027  one core drops none
        """Say of good frames that are dropped in here: of who made them, episodes with ids below this one lack them."""

    @property
    @abstractmethod
    def frames(self) -> int:
        """How many it has delivered."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Of the newest weights."""

    @property
    @abstractmethod
    def life(self) -> int:
        """The last life number that was used in it."""

    @property
    @abstractmethod
    def next_ids(self) -> tuple[int, ...]:
        """Above every trajectory id given, by each of its cores that has given some."""

    @property
    @abstractmethod
    def heals_envs(self) -> bool:
        """Whether cores whose env raises are replaced inside."""

    @abstractmethod
    def be_random(self, randomly: bool) -> None:
        """Let batches be random from now on, or no more."""

    @abstractmethod
    def share_out(self, frames: int) -> int:
        """Make batches of so many frames, rounded up; how many they are."""

    @abstractmethod
    def seed(self, seeding: Seeding) -> None:
        """Seed everything and begin fresh episodes."""

    @abstractmethod
    def bring(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Bring weights to all cores; they run this version."""

    @abstractmethod
    def manifest_of(self, model_id: str) -> Manifest:
        """What the weights of a model must look like."""

    @abstractmethod
    def state(self) -> OrderedDict[str, Any]:
        """What is saved of it, as of any worker."""

    @abstractmethod
    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None) -> None:
        """Go on from what was saved, but for weights, in a new life, with these seeds."""


class OneInside(Inside):
    """A `Collector`, or of a class derived from it."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._collection, self._acting = collector._collection, collector._acting  # noqa: SLF001  see the module
        self._worker = self._collection.worker

    def begin(self, request: WorkerRequest) -> None:
        """Be in this life, with these seeds; copies of one env do not share a random state."""
        worker = self._worker
        worker.seeding = request.seed
        if request.life:
            worker.next_life(request.life)
        elif request.seed is not None:
            worker.set_seed(request.seed)
        if request.twin and request.seed is None:
            root = fresh_root()
            worker.reset_with([derive(root, "env", env) for env in range(worker.host.spec.num_envs)])

    def describe(self) -> Description:
        """What its batches and weights are like."""
        layout = self._collection.shaper.layout
        signature = signature_of(self._collector.fake_tensordict(), len(layout.batch_shape) + 1)
        return description_of(self._worker, self._acting, layout, signature)

    def tell(self, told: Callable[[Episodes], None]) -> None:
        """Say of each episode that its end was delivered."""
        self._collection.counters.told = told

    @property
    def frames(self) -> int:
        """How many it has delivered."""
        return self._collection.counters.frames

    @property
    def version(self) -> int:
        """Of the weights."""
        return self._worker.version

    @property
    def life(self) -> int:
        """Which of its lives it is in."""
        return self._worker.life

    @property
    def next_ids(self) -> tuple[int, ...]:
        """Above every trajectory id given."""
        return (self._worker.next_id,)

    @property
    def heals_envs(self) -> bool:
        """It does not: whoever asks the worker replaces it."""
        return False

    def be_random(self, randomly: bool) -> None:
        """Let batches be random from now on, or no more."""
        self._collection.be_random(randomly)

    def share_out(self, frames: int) -> int:
        """Make batches of so many frames, rounded up to whole steps."""
        self._collection.share_out(frames)
        return self._collection.batch_frames

    def seed(self, seeding: Seeding) -> None:
        """Seed everything and begin fresh episodes."""
        self._worker.set_seed(seeding)

    def bring(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Copy the weights into the models here."""
        for change in [fitting(one, self._collector.get_model(model_id)) for model_id, one in models.items()]:
            change()
        self._collection.restore_version(version)

    def manifest_of(self, model_id: str) -> Manifest:
        """What the weights of a model must look like."""
        return Manifest.of(self._collector.get_model(model_id))

    def state(self) -> OrderedDict[str, Any]:
        """What its own `state_dict` gives."""
        return self._collector.state_dict()

    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None) -> None:
        """Go on from what was saved, but for weights, in a new life."""
        if seeding is not None:
            self._worker.seeding = seeding
        load_worker(self._worker, self._acting, saved, strict=False)
        self._collection.restore_version(self._worker.version)


class ManyInside(Inside):
    """A `MultiSyncCollector` or `MultiAsyncCollector`, or of a class derived from one of these."""

    def __init__(self, collector: MultiSyncCollector | MultiAsyncCollector) -> None:
        self._collector = collector
        self._assembled: Assembled = collector._assembled  # noqa: SLF001  see the module
        self._collection = self._assembled.collection
        self._is_sync = isinstance(collector, MultiSyncCollector)

    def begin(self, request: WorkerRequest) -> None:
        """Be in this life, all cores, with these seeds."""
        if request.life:
            lives = {worker: {LIFE: request.life - 1} for worker in self._assembled.described}
            load_fleet(self._assembled, lives, {}, strict=False)
        if request.seed is not None:
            self.seed(request.seed)

    def describe(self) -> Description:
        """As its cores are, with as many envs as its batches have."""
        cores = self._assembled.described
        one, n_envs = cores[0], sum(core.num_envs for core in cores.values())
        if not self._is_sync:
            return replace(one, envs=n_envs)
        layout = replace(one.layout, batch_shape=(len(cores), *one.layout.batch_shape))
        return replace(one, num_envs=n_envs, layout=layout)

    def tell(self, told: Callable[[Episodes], None]) -> None:
        """Say of each episode that its end was delivered."""
        self._collection.counters.told = told

    def tell_of_gaps(self, told: Callable[[int], None]) -> None:
        """Say of fragments that are dropped in here, though their core goes on with their episodes."""
        desk = self._collection.desk
        skip = desk.skip

        def lacks(worker: int, floor: int) -> None:
            skip(worker, floor)
            told(floor)

        desk.skip = lacks

    @property
    def frames(self) -> int:
        """How many it has delivered."""
        return self._collection.counters.frames

    @property
    def version(self) -> int:
        """Of the newest weights."""
        return self._collection.version

    @property
    def life(self) -> int:
        """The last life number that any core has used."""
        standing = self._assembled.jobs.standing
        return max(standing.last_life(worker) for worker in self._assembled.described)

    @property
    def next_ids(self) -> tuple[int, ...]:
        """Above every trajectory id given, by core."""
        return tuple(self._collection.desk.known.next_ids.values())

    @property
    def heals_envs(self) -> bool:
        """Cores are replaced inside."""
        return True

    def be_random(self, randomly: bool) -> None:
        """Let batches be random from now on, or no more; what is in flight is dropped if it is not so."""
        self._collection.be_random(randomly)

    def share_out(self, frames: int) -> int:
        """Make batches of so many frames, rounded up to whole steps; other fragments in flight are dropped."""
        cores = self._assembled.described
        share = -(-frames // len(cores)) if self._is_sync else frames
        by_worker = {worker: core.rounded(share) for worker, core in cores.items()}
        self._collection.share_out(by_worker, sum(by_worker.values()) if self._is_sync else by_worker[0])
        return self._collection.batch_frames

    def seed(self, seeding: Seeding) -> None:
        """Seed every core and begin fresh episodes."""
        seed_all(self._assembled, seeding)

    def bring(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Put the weights on the channel of the cores: each gets them with its next request."""
        self._collection.desk.channel.publish(models, version=version)

    def manifest_of(self, model_id: str) -> Manifest:
        """What the weights of a model must look like, as a core says."""
        if model_id == POLICY:
            return self._assembled.described[0].manifest
        manifest: Manifest = self._collection.calls.first("manifest_of", model_id)
        return manifest

    def state(self) -> OrderedDict[str, Any]:
        """What its own `state_dict` gives, with the newest weights and the life of all."""
        saved = self._collector.state_dict()
        first = saved["worker0"]
        if WEIGHTS in first:
            saved[WEIGHTS] = first[WEIGHTS]
        saved["env_state_dict"] = OrderedDict()
        saved[LIFE] = self.life
        return saved

    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None) -> None:
        """Let every core go on from what was saved of it, but for weights, in a new life."""
        self._assembled.jobs.standing.seeding.clear()
        if seeding is not None:
            spread_seed(self._assembled, seeding)
        parts = {worker: _part(saved, worker) for worker in self._assembled.described}
        load_fleet(self._assembled, parts, {name: part for name, part in saved.items() if name != "seed"}, strict=False)


def _part(saved: Mapping[str, Any], worker: int) -> dict[str, Any]:
    """What is known of a core; its weights come by the channel."""
    part = {LIFE: saved.get(LIFE, 0), **saved.get(f"worker{worker}", {})}
    part.pop(WEIGHTS, None)
    return part
