"""What a collector in this process adds to all others: it reaches its env and policy directly."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.collect.description import Description, signature_of
from swath.collect.paths import call_each, follow
from swath.collect.remote import RemoteWorker
from swath.collect.saving import require_state
from swath.collectors.base import BaseCollector
from swath.collectors.state import load_fleet, saved_fleet
from swath.collectors.status import facts_of, local_state
from swath.group.group import Call
from swath.options import Hooks
from swath.rollout.hosts.base import first_of
from swath.weights.snapshot import POLICY
from swath.workers.fleet_state import FIRST

OF_MANY = ("workers", "workers_alive", "worker_frames")
"""Facts that one worker in this process does not have."""


class InThisProcess(BaseCollector):
    """Control calls come between two fragments; facts never wait."""

    _member: RemoteWorker

    def described(self) -> Description:
        """What its batches and weights are like, as those of one worker."""
        one = self.collection.jobs.described[0]
        return replace(one, signature=signature_of(self.fake_tensordict(), len(one.layout.batch_shape) + 1))

    def fake_tensordict(self) -> TensorDictBase:
        """A batch of zeros with the keys, shapes and dtypes of real ones, `[*B, T]`."""
        self.collection.gate.require_open()
        zeros: TensorDictBase = self.collection.shaper.without_ids(self._member.zero_batch()).apply(torch.zeros_like)
        return zeros if self.storing_device is None else zeros.to(self.storing_device)

    def state_dict(self) -> OrderedDict[str, Any]:
        """Counters, weights, version and seed; simulators and what is in flight are not saved.

        Raises:
            Exception: what stopped the background thread.
        """
        self.collection.gate.require_open()
        self._background.raise_kept()
        saved, own = saved_fleet(self.collection)
        return OrderedDict({**saved[0], **own})

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore what `state_dict` saved; new episodes begin in a new life.

        Args:
            state_dict: what was saved.
            strict: whether all parts must be there.

        Raises:
            KeyError: parts are missing, unless `strict=False`, or weights do not fit.
            ValueError: weights of other shapes. In all cases nothing has changed.
        """
        self.collection.gate.require_open()
        load_fleet(self.collection, {0: require_state(state_dict)}, state_dict, strict=strict)

    def reset(self, index: Any = None) -> None:
        """Begin fresh episodes with the next batch, in all envs or in those of `index`; later batches hold later data.

        Args:
            index: env numbers, or one bool per env.

        Raises:
            ValueError: `index` names no envs, or names some of a vector env that cannot reset single envs.
        """
        spec = self._member.worker.host.spec
        if index is not None and not spec.resettable:
            raise ValueError(f"index={index!r}: this vector env cannot reset single envs; reset all of them")
        envs = None if index is None else _chosen(index, spec.num_envs)
        with self.collection.forgetting(envs=envs):
            self.collection.group.answers(self.collection.group.send({0: Call("reset", (envs,))}))

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
        return self._follow(first_of(self._member.worker.host.env), name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the policy."""
        return self._follow(self._member.policy, name)

    def get_model(self, model_id: str) -> Any:
        """The model of an id.

        Raises:
            KeyError: no such model.
            AttributeError: a path that leads nowhere.
        """
        self.collection.gate.require_open()
        if model_id not in self._receivers:
            self._outlet.require_models(model_id)
        return self._member.policy if model_id == POLICY else follow(self, model_id)

    @property
    def env(self) -> Any:
        """The live env, vector env, or list of envs."""
        return self._member.worker.host.env

    @property
    def policy(self) -> Any:
        """The policy that acts within draws."""
        return self._member.policy

    def frames_per_batch_worker(self, worker_idx: int | None = None) -> int:
        """Frames asked of one worker.

        Raises:
            ValueError: no such worker.
        """
        mine = self._member.worker.place.worker
        if worker_idx not in (None, 0, mine):
            raise ValueError(f"worker_idx={worker_idx!r}: this collector has worker {mine} only")
        return self.collection.batch_frames

    @property
    def device(self) -> torch.device | None:
        """The device given for all."""
        return self._request.workers[0].options.devices.common

    @property
    def env_device(self) -> torch.device:
        """Where the env runs."""
        return self._member.worker.host.spec.device or torch.device("cpu")

    @property
    def policy_device(self) -> torch.device | None:
        """Where the policy runs, as given or found; `None` if neither says more than the CPU."""
        return self._member.acting.device

    @property
    def storing_device(self) -> torch.device | None:
        """Where batches live; `None` sets no device."""
        return self._request.workers[0].options.devices.storing

    def _facts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        worker, tracker = self._member.worker, self.collection.tracker
        tracker.note(FIRST, replace(worker.tally))
        known = tracker.workers[0]
        known.version, known.life, known.lag = worker.version, worker.life, self.collection.version - worker.version
        facts, own = facts_of(self.collection, self._background)
        own["worker_0/state"] = local_state(self.collection, self._background)
        del own["worker_0/busy"]
        own = {name.replace("0", str(worker.place.worker), 1): fact for name, fact in own.items()}
        return {name: fact for name, fact in facts.items() if name not in OF_MANY}, own

    def _follow(self, root: Any, path: str) -> Any:
        self.collection.gate.require_open()
        return follow(root, path)

    @property
    def _hooks(self) -> Hooks:
        return self.collection.shaper.hooks

    def _set_hooks(self, **changed: Any) -> None:
        self.collection.shaper.hooks = replace(self._hooks, **changed)


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
