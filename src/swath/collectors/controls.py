"""What a collector in this process adds to all others: it reaches its env and policy directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from swath.collect.collection import Collection
from swath.collect.making.acting import Acting
from swath.collect.making.devices import Devices
from swath.collect.paths import call_each, follow
from swath.collectors.base import BaseCollector
from swath.collectors.outlet import WeightOutlet
from swath.collectors.receivers import Receivers
from swath.collectors.status import collector_facts, status_line
from swath.options import Hooks
from swath.rollout.hosts.base import first_of
from swath.weights.names import POLICY


class InThisProcess(BaseCollector):
    """Control calls come between two fragments; facts never wait."""

    _collection: Collection
    _acting: Acting
    _devices: Devices
    _outlet: WeightOutlet
    _receivers: Receivers

    def reset(self, index: Any = None) -> None:
        """Begin fresh episodes with the next batch, in all envs or in those of `index`; later batches hold later data.

        Args:
            index: env numbers, or one bool per env.

        Raises:
            ValueError: `index` names no envs, or names some of a vector env that cannot reset single envs.
        """
        spec = self._collection.worker.host.spec
        if index is None:
            self._collection.begin_episodes(None)
            return
        if not spec.resettable:
            raise ValueError(f"index={index!r}: this vector env cannot reset single envs; reset all of them")
        self._collection.begin_episodes(_chosen(index, spec.num_envs))

    def get_distant_attr(self, path: str) -> Any:
        """The attribute at the end of a path."""
        return self._follow(self, path)

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method once per entry; once without arguments if there are no lists.

        Raises:
            ValueError: the lists are not of the same length.
        """
        return call_each(self._follow(self, method_name), list_of_args, list_of_kwargs)

    def getattr_env(self, name: str) -> Any:
        """An attribute of the env; of the first of several copies."""
        return self._follow(first_of(self._collection.worker.host.env), name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the policy."""
        return self._follow(self._acting.policy, name)

    def get_model(self, model_id: str) -> Any:
        """The model of an id.

        Raises:
            KeyError: no such model.
            AttributeError: a path that leads nowhere.
        """
        self._collection.gate.require_open()
        if model_id not in self._receivers:
            self._outlet.require_models(model_id)
        return self._acting.policy if model_id == POLICY else follow(self, model_id)

    @property
    def env(self) -> Any:
        """The live env, vector env, or list of envs."""
        return self._collection.worker.host.env

    @property
    def policy(self) -> Any:
        """The policy that acts within draws."""
        return self._acting.policy

    def frames_per_batch_worker(self, worker_idx: int | None = None) -> int:
        """Frames asked of one worker.

        Raises:
            ValueError: no such worker.
        """
        mine = self._collection.worker.place.worker
        if worker_idx not in (None, 0, mine):
            raise ValueError(f"worker_idx={worker_idx!r}: this collector has worker {mine} only")
        return self._collection.batch_frames

    @property
    def num_workers(self) -> int:
        """One."""
        return 1

    @property
    def num_collectors(self) -> int:
        """One."""
        return 1

    @property
    def device(self) -> torch.device | None:
        """The device given for all."""
        return self._devices.common

    @property
    def env_device(self) -> torch.device:
        """Where the env runs."""
        return self._collection.worker.host.spec.device or torch.device("cpu")

    @property
    def policy_device(self) -> torch.device | None:
        """Where the policy runs, as given or found; `None` if neither says more than the CPU."""
        return self._acting.device

    @property
    def storing_device(self) -> torch.device | None:
        """Where batches live; `None` sets no device."""
        return self._devices.storing

    def __repr__(self) -> str:
        """A status line."""
        return status_line(self._collection, self._background)

    def _facts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return collector_facts(self._collection, self._background)

    def _follow(self, root: Any, path: str) -> Any:
        self._collection.gate.require_open()
        return follow(root, path)

    def _seed(self, root: int, *, static: bool) -> None:
        self._collection.set_seed(root, static=static)

    def _move_to(self, index: int) -> None:
        with self._collection.gate.control():
            self._collection.worker.move_to(index)

    @property
    def _hooks(self) -> Hooks:
        return self._collection.shaper.hooks

    def _set_hooks(self, **changed: Any) -> None:
        self._collection.shaper.hooks = replace(self._hooks, **changed)


def _chosen(index: Any, num_envs: int) -> list[int]:
    asked = np.asarray(index)
    if asked.dtype == np.bool_:
        if asked.size != num_envs:
            raise ValueError(f"index={index!r} has {asked.size} bools; give one per env ({num_envs}), or env numbers")
        return [int(env) for env in np.flatnonzero(asked)]
    numbers = asked.reshape(-1)
    if numbers.dtype.kind not in "iu" or not all(-num_envs <= env < num_envs for env in numbers):
        raise ValueError(f"index={index!r} names no envs; give numbers below {num_envs}, or one bool per env")
    return sorted({int(env) % num_envs for env in numbers})
