"""Weight updaters: deliver weights in a way that users can override step by step.

push_weights ─▶ fetch ─▶ map ─▶ for each worker, unless skipped: deliver ─▶ post hooks
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from swath.weights.schemes import publisher_of
from swath.weights.snapshot import POLICY, plan_update, snapshot_of


class WeightUpdaterBase(ABC):
    """Delivers weights by steps that can be overridden; called by `update_policy_weights_` of its collector.

    A subclass implements `_sync_weights_with_worker`, the delivery to one worker. Everything that it publishes on its
    collector during one push becomes one version. Methods may be called from any thread.
    """

    _collector: Callable[[], Any] | None = None

    @classmethod
    def from_policy(cls, policy: Any) -> Self | None:  # noqa: ARG003  subclasses use it
        """Return an updater for a collector's policy; `None` if this class needs no policy. Meant to be overridden."""
        return None

    def init(self, *args: Any, **kwargs: Any) -> None:  # noqa: B027  subclasses may leave it
        """Prepare the updater; called by `init_updater` of the collector. Meant to be overridden."""

    def push_weights(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """Deliver weights to workers, then call the post hooks.

        Args:
            policy_or_weights: a module, a TensorDict, or a dict; `None` for the server's weights, or without these for
                the weights of the collector's policy.
            worker_ids: an int, a device, or a list of ints or devices; `None` for `all_worker_ids()`.

        Raises:
            Closed: the collector was shut down.
            Exception: a step raised it; hooks are not called then.
        """
        publisher = publisher_of(self.collector)
        with nullcontext() if publisher is None else publisher.one_version():
            weights = self._get_server_weights() if policy_or_weights is None else policy_or_weights
            if weights is None and publisher is not None:
                weights = publisher.fetch()
            weights = self._maybe_map_weights(weights)
            workers = self.all_worker_ids() if worker_ids is None else _as_list(worker_ids)
            if workers is None:
                self._sync_weights_with_worker(server_weights=weights)
            for worker in workers or ():
                if not self._skip_update(worker):
                    self._sync_weights_with_worker(worker_id=worker, server_weights=weights)
        for hook in self.post_hooks:
            hook()

    def __call__(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """Deliver weights; see `push_weights`."""
        self.push_weights(policy_or_weights, worker_ids)

    def register_collector(self, collector: Any) -> None:
        """Serve this collector, of which a weak reference is kept. A second call does nothing.

        Raises:
            RuntimeError: it serves another collector that still exists.
        """
        if self.collector not in (None, collector):
            raise RuntimeError(f"this {type(self).__name__} serves another collector; make one for each")
        self._collector = weakref.ref(collector)

    @property
    def collector(self) -> Any:
        """Return the collector that it serves; `None` if it never had one, or that no longer exists."""
        return None if self._collector is None else self._collector()

    @property
    def collectors(self) -> list[Any] | None:
        """Return the collector in a list, or `None`."""
        return None if self.collector is None else [self.collector]

    @cached_property
    def post_hooks(self) -> list[Callable[[], Any]]:
        """Return the functions to call after each push, without arguments, in order, in the thread that pushes."""
        return []

    def register_post_hook(self, hook: Callable[[], Any]) -> None:
        """Call this function after each push, too; its exceptions leave `push_weights`, when the weights are out."""
        self.post_hooks.append(hook)

    def increment_version(self) -> None:
        """Publish the collector's newest weights under the next version; do nothing without a collector."""
        if self.collector is not None:
            self.collector.increment_version()

    def all_worker_ids(self) -> Sequence[Any] | None:
        """Return the workers that get weights; `None` for one delivery without a worker. Meant to be overridden."""
        return None

    @property
    def has_server_weights(self) -> bool:
        """Return whether it has weights for a push without weights."""
        method = "_get_server_weights"
        return getattr(type(self), method) is not getattr(WeightUpdaterBase, method)

    def _get_server_weights(self) -> Any:
        """Return the weights for a push without weights, or `None`. Meant to be overridden."""
        return None

    def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
        """Return the weights as workers get them: a module's as a TensorDict of its data. May be overridden.

        Raises:
            TypeError: neither a module, nor a TensorDict, nor a dict.
        """
        if isinstance(policy_or_weights, nn.Module):
            return TensorDict.from_module(policy_or_weights).data
        if isinstance(policy_or_weights, TensorDictBase | dict):
            return policy_or_weights
        kind = type(policy_or_weights).__name__
        raise TypeError(f"weights are of type {kind}; pass a module, a TensorDict, or a dict of tensors")

    def _skip_update(self, worker_id: Any) -> bool:  # noqa: ARG002  subclasses use it
        """Return whether this push leaves the worker out. May be overridden."""
        return False

    @abstractmethod
    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        """Deliver weights to one worker; to all workers without an id.

        It may use `self.collector.publish_weights(server_weights, worker_ids=worker_id)`.
        """


class _InPlaceUpdater(WeightUpdaterBase):
    """Copies weights into TensorDicts of this process, and publishes them on its collector if it has one.

    A push without weights does nothing if there is no getter.
    """

    def __init__(self, getter: Callable[[], Any] | None, policy_weights: Any) -> None:
        self._getter = getter
        self.policy_weights = policy_weights

    @property
    def has_server_weights(self) -> bool:
        """Return whether it has weights for a push without weights."""
        return self._getter is not None

    def _target(self, worker_id: Any) -> Any:  # noqa: ARG002  a subclass uses it
        """Return the TensorDict to write."""
        return self.policy_weights

    def _get_server_weights(self) -> Any:
        weights = None if self._getter is None else self._getter()
        return {} if weights is None else weights

    def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
        """Return weights in any form unchanged."""
        return policy_or_weights

    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        if isinstance(server_weights, dict) and not server_weights:
            return
        publisher, target = publisher_of(self.collector), self._target(worker_id)
        if publisher is None:
            plan_update(target, server_weights)()
        else:
            update = plan_update(target, server_weights, required=False)  # the policy's manifest finds missing weights
            publisher.publish({POLICY: server_weights}, worker_id, change=update)


class VanillaWeightUpdater(_InPlaceUpdater):
    """Copies weights in place into the weights of one policy in this process.

    A collector gets them, too; tensors of an acting policy are written between two fragments only.

    Args:
        weight_getter: returns the weights for a push without weights, which does nothing without it.
        policy_weights: the TensorDict to write.
    """

    def __init__(self, *, weight_getter: Callable[[], Any] | None = None, policy_weights: Any) -> None:
        super().__init__(weight_getter, policy_weights)

    @classmethod
    def from_policy(cls, policy: Any) -> Self | None:
        """Return an updater of that policy's weights; `None` for a policy without any."""
        return cls(policy_weights=TensorDict.from_module(policy).lock_()) if isinstance(policy, nn.Module) else None


class MultiProcessedWeightUpdater(_InPlaceUpdater):
    """Copies weights in place into one TensorDict per device or worker, and publishes them to the workers there.

    Args:
        get_server_weights: returns the weights for a push without weights, which does nothing if this is `None`.
        policy_weights: TensorDicts by device or by index of a worker.
    """

    def __init__(self, *, get_server_weights: Callable[[], Any] | None, policy_weights: Mapping[Any, Any]) -> None:
        super().__init__(get_server_weights, policy_weights)

    def all_worker_ids(self) -> Sequence[Any]:
        """Return the devices or workers."""
        return list(self.policy_weights)

    def _target(self, worker_id: Any) -> Any:
        if worker_id not in self.policy_weights:
            raise ValueError(f"worker_ids={worker_id!r}: there are weights for {list(self.policy_weights)} only")
        return self.policy_weights[worker_id]


class RemoteModuleWeightUpdater(WeightUpdaterBase):
    """Publishes the weights of policies that this process has no copy of; a push without weights raises."""

    has_server_weights = False

    def _get_server_weights(self) -> Any:
        raise RuntimeError("RemoteModuleWeightUpdater has no weights of its own: pass weights")

    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        if self.collector is None:
            raise RuntimeError("RemoteModuleWeightUpdater has no collector: set it as a collector's weight_updater")
        self.collector.publish_weights(server_weights, worker_ids=worker_id)


class RayWeightUpdater(WeightUpdaterBase):
    """Publishes weights on the channel of its collector, for each worker after a number of its batches.

    Workers take them with their next request, also workers that are added later; a push waits for none.

    Args:
        policy_weights: read at each push.
        remote_collectors: handles of actors, as `RayCollector.remote_collectors` returns them.
        max_interval: how many batches of a worker may pass between updates; 0 updates at each push, 1 every second.
    """

    def __init__(self, policy_weights: Any, remote_collectors: Sequence[Any], max_interval: int = 0) -> None:
        self.policy_weights = policy_weights
        self.remote_collectors = remote_collectors
        self.max_interval = max(0, max_interval)
        self._updated: dict[int, tuple[int, int]] = {}  # by worker: life and number of fragments at its last update

    def register_collector(self, collector: Any) -> None:
        """Serve this collector, of which a weak reference is kept. A second call does nothing.

        Raises:
            RuntimeError: it serves another collector that still exists.
            ValueError: `remote_collectors` has actors of another collector.
        """
        actors = getattr(collector, "remote_collectors", ())
        if others := [actor for actor in self.remote_collectors if actor not in actors]:
            raise ValueError(
                f"remote_collectors has {len(others)} actors that are no workers of this collector; give its own "
                "remote_collectors, and an updater to each collector"
            )
        super().register_collector(collector)

    def all_worker_ids(self) -> list[int]:
        """Return the indices of the actors; with a collector, of its workers that live or come back."""
        publisher = publisher_of(self.collector)
        return list(range(len(self.remote_collectors))) if publisher is None else list(publisher.progress())

    def push_weights(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """Publish weights, then call the post hooks.

        Raises:
            RuntimeError: no collector has this updater.
            Closed: the collector was shut down.
        """
        if self.collector is None:
            raise RuntimeError(
                "RayWeightUpdater has no collector: set it as weight_updater of the RayCollector, or call that "
                "collector's update_policy_weights_()"
            )
        super().push_weights(policy_or_weights, worker_ids)

    def _get_server_weights(self) -> Any:
        """Return a snapshot of the weights."""
        return snapshot_of(self.policy_weights)

    def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
        """Return a snapshot of weights; a snapshot stays."""
        return snapshot_of(policy_or_weights)

    def _skip_update(self, worker_id: int) -> bool:
        """Return whether too few batches have passed since the worker's last update."""
        life, fragments = publisher_of(self.collector).progress().get(worker_id, (0, 0))
        updated_life, updated_fragments = self._updated.get(worker_id, (0, 0))
        return self.max_interval > 0 and life == updated_life and fragments - updated_fragments <= self.max_interval

    def _sync_weights_with_worker(self, worker_id: int | None = None, server_weights: Any = None) -> None:
        self.collector.publish_weights(server_weights, worker_ids=worker_id)
        progress = publisher_of(self.collector).progress()
        self._updated |= {worker: version for worker, version in progress.items() if worker_id in (None, worker)}


def _as_list(worker_ids: Any) -> list[Any]:
    """Return ids as a list, with devices as `torch.device`."""
    ids = worker_ids if isinstance(worker_ids, list | tuple) else [worker_ids]
    return [torch.device(worker) if isinstance(worker, str) else worker for worker in ids]


LocalWeightsUpdaterBase = RemoteWeightsUpdaterBase = WeightUpdaterBase
