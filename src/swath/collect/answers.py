"""What can be asked of a worker elsewhere between two fragments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from swath.collect.making.acting import Acting
from swath.collect.paths import call_at, call_each, follow
from swath.collect.remote_weights import RemoteWeights
from swath.collect.saving import load_worker, save_worker
from swath.collect.worker import Seeding, Worker
from swath.rollout.hosts.base import first_of
from swath.seeds import derive
from swath.weights.names import POLICY


class Followed:
    """Follows paths from what is asked."""

    @property
    def _root(self) -> Any:
        """Where paths begin."""
        return self

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow a path from here and call what is found, or return it."""
        return call_at(self._root, attr_path, args, kwargs)

    def invoke(self, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """As `cascade_execute`, whatever the names of the arguments."""
        return call_at(self._root, path, args, kwargs)

    def get_distant_attr(self, path: str) -> Any:
        """What a path from here leads to."""
        return follow(self._root, path)

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method once per entry; see the collector's `map_fn`."""
        return call_each(follow(self._root, method_name), list_of_args, list_of_kwargs)


class Answers(Followed, RemoteWeights):
    """Control calls; they run in the worker, in one thread."""

    _worker: Worker
    _acting: Acting
    _frames = 0
    _batches = 0

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

    def get_model(self, model_id: str) -> Any:
        """The model of an id: the policy, or what a path leads to."""
        return self._acting.policy if model_id == POLICY else follow(self._root, model_id)

    def life(self) -> int:
        """Which of its lives it is in."""
        return self._worker.life

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
        return save_worker(self._worker, self._acting, self._frames, self._batches)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore what `state_dict` saved, in a new life."""
        load_worker(self._worker, self._acting, state_dict, strict=strict)

    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None) -> None:
        """As `load_state_dict` without weights, which come by the channel; with these seeds, from this seed."""
        if seeding is not None:
            self._worker.seeding = seeding
        load_worker(self._worker, self._acting, saved, strict=False)

    def getattr_env(self, name: str) -> Any:
        """An attribute of the first env."""
        return follow(first_of(self._worker.host.env), name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the policy."""
        return follow(self._acting.policy, name)

    def set_share(self, frames: int) -> int:
        """Make fragments of so many frames, rounded up to whole steps; how many they are."""
        num_envs = self._worker.host.spec.num_envs
        n_steps = -(-frames // num_envs)
        if n_steps != self._worker.place.n_steps:
            self._worker.make_steps(n_steps)
        return n_steps * num_envs

    def move_to(self, index: int, seeding: Seeding | None) -> int:
        """Be another worker, with fresh episodes; the life in which it goes on."""
        if seeding is not None:
            self._worker.seeding = seeding
        self._worker.move_to(index)
        return self._worker.life
