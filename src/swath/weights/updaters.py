"""Weight updaters: deliver weights in a way of the user's own, by steps that can be overridden.

push_weights ─▶ found ─▶ mapped ─▶ for each worker, unless skipped: delivered ─▶ post hooks
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

from swath.extras import need
from swath.weights.schemes import publisher_of
from swath.weights.snapshot import POLICY, Snapshot, plan, snapshot_of


class WeightUpdaterBase(ABC):
    """Delivers weights in a way of one's own; `update_policy_weights_` of its collector calls `push_weights`.

    A subclass says how one worker gets weights, in `_sync_weights_with_worker`. All that it publishes on its collector
    during one push becomes one version. Methods may be called from any thread.
    """

    _collector: Callable[[], Any] | None = None

    @classmethod
    def from_policy(cls, policy: Any) -> Self | None:  # noqa: ARG003  for those who override it
        """An updater for a collector's policy; `None` if this class needs no policy. To be overridden."""
        return None

    def init(self, *args: Any, **kwargs: Any) -> None:  # noqa: B027  to be overridden by those who need it
        """What `init_updater` of the collector calls. To be overridden."""

    def push_weights(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """Deliver weights to workers, then call the post hooks.

        Args:
            policy_or_weights: a module, a TensorDict, or a dict; `None` for the server's weights, or where there are
                none those of the collector's policy.
            worker_ids: an int, a device, or a list of these; `None` for `all_worker_ids()`.

        Raises:
            Closed: the collector was shut down.
            Exception: what a step raised; hooks are not called then.
        """
        publisher = publisher_of(self.collector)
        with nullcontext() if publisher is None else publisher.one_version():
            weights = self._get_server_weights() if policy_or_weights is None else policy_or_weights
            if weights is None and publisher is not None:
                weights = publisher.fetch()
            weights = self._maybe_map_weights(weights)
            workers = self.all_worker_ids() if worker_ids is None else _listed(worker_ids)
            if workers is None:
                self._sync_weights_with_worker(server_weights=weights)
            for worker in workers or ():
                if not self._skip_update(worker):
                    self._sync_weights_with_worker(worker_id=worker, server_weights=weights)
        for hook in self.post_hooks:
            hook()

    def __call__(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """The same as `push_weights`."""
        self.push_weights(policy_or_weights, worker_ids)

    def register_collector(self, collector: Any) -> None:
        """Serve this collector; a weak reference is kept. The same one again: nothing.

        Raises:
            RuntimeError: it serves another one, which is still there.
        """
        if self.collector not in (None, collector):
            raise RuntimeError(f"this {type(self).__name__} serves another collector; make one for each")
        self._collector = weakref.ref(collector)

    @property
    def collector(self) -> Any:
        """The collector that it serves; `None` if it never had one, or that is gone."""
        return None if self._collector is None else self._collector()

    @property
    def collectors(self) -> list[Any] | None:
        """The collector in a list, or `None`."""
        return None if self.collector is None else [self.collector]

    @cached_property
    def post_hooks(self) -> list[Callable[[], Any]]:
        """What is called after each push, without arguments, in order, in the thread that pushes."""
        return []

    def register_post_hook(self, hook: Callable[[], Any]) -> None:
        """Call this after each push, too; what it raises leaves `push_weights`, when the weights are out."""
        self.post_hooks.append(hook)

    def increment_version(self) -> None:
        """Publish the collector's newest weights under the next version; without a collector nothing."""
        if self.collector is not None:
            self.collector.increment_version()

    def all_worker_ids(self) -> Sequence[Any] | None:
        """Who gets weights; `None` for one delivery that names nobody. To be overridden."""
        return None

    @property
    def supplies(self) -> bool:
        """Whether it has weights of its own when none are passed."""
        fetches = "_get_server_weights"
        return getattr(type(self), fetches) is not getattr(WeightUpdaterBase, fetches)

    def _get_server_weights(self) -> Any:
        """The weights when none are passed, or `None`. To be overridden."""
        return None

    def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
        """The weights as workers get them: of a module a TensorDict of its data. May be overridden.

        Raises:
            TypeError: neither a module, nor a TensorDict, nor a dict.
        """
        if isinstance(policy_or_weights, nn.Module):
            return TensorDict.from_module(policy_or_weights).data
        if isinstance(policy_or_weights, TensorDictBase | dict):
            return policy_or_weights
        kind = type(policy_or_weights).__name__
        raise TypeError(f"weights are of type {kind}; pass a module, a TensorDict, or a dict of tensors")

    def _skip_update(self, worker_id: Any) -> bool:  # noqa: ARG002  for those who override it
        """Whether this worker gets nothing this time. May be overridden."""
        return False

    @abstractmethod
    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        """Deliver to one worker; to all of them if no id is given.

        It may use `self.collector.publish_weights(server_weights, worker_ids=worker_id)`.
        """


class _InPlace(WeightUpdaterBase):
    """Copies weights into TensorDicts of this process; with a collector its workers get them, too.

    Where neither weights are passed nor a getter gives some, nothing happens.
    """

    def __init__(self, getter: Callable[[], Any] | None, policy_weights: Any) -> None:
        self._getter = getter
        self.policy_weights = policy_weights

    @property
    def supplies(self) -> bool:
        """Whether it has weights of its own when none are passed."""
        return self._getter is not None

    def _target(self, worker_id: Any) -> Any:  # noqa: ARG002  for those who override it
        """What is written to."""
        return self.policy_weights

    def _get_server_weights(self) -> Any:
        weights = None if self._getter is None else self._getter()
        return {} if weights is None else weights

    def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
        """Weights in any form, as they are."""
        return policy_or_weights

    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        if isinstance(server_weights, dict) and not server_weights:
            return
        publisher, target = publisher_of(self.collector), self._target(worker_id)
        if publisher is None:
            plan(target, server_weights)()
        else:
            copy_in = plan(target, server_weights, required=False)  # what is missing is checked by its policy
            publisher.publish({POLICY: server_weights}, worker_id, change=copy_in)


class VanillaWeightUpdater(_InPlace):
    """Copies weights in place into those of one policy in this process.

    With a collector, the collector gets them, too, and tensors that act are written to between two fragments only.

    Args:
        weight_getter: gives weights when none are passed; without it nothing happens then.
        policy_weights: the TensorDict that is written to.
    """

    def __init__(self, *, weight_getter: Callable[[], Any] | None = None, policy_weights: Any) -> None:
        super().__init__(weight_getter, policy_weights)

    @classmethod
    def from_policy(cls, policy: Any) -> Self | None:
        """An updater of that policy's weights; `None` for one that has none."""
        return cls(policy_weights=TensorDict.from_module(policy).lock_()) if isinstance(policy, nn.Module) else None


class MultiProcessedWeightUpdater(_InPlace):
    """Copies weights in place into one TensorDict per device or worker and, with a collector, to the workers there.

    Args:
        get_server_weights: gives weights when none are passed; `None`: nothing happens then.
        policy_weights: TensorDicts by device or by index of a worker.
    """

    def __init__(self, *, get_server_weights: Callable[[], Any] | None, policy_weights: Mapping[Any, Any]) -> None:
        super().__init__(get_server_weights, policy_weights)

    def all_worker_ids(self) -> Sequence[Any]:
        """The devices or workers."""
        return list(self.policy_weights)

    def _target(self, worker_id: Any) -> Any:
        if worker_id not in self.policy_weights:
            raise ValueError(f"worker_ids={worker_id!r}: there are weights for {list(self.policy_weights)} only")
        return self.policy_weights[worker_id]


class RemoteModuleWeightUpdater(WeightUpdaterBase):
    """For policies that this process has no copy of: publishes the weights that are passed; without any it raises."""

    supplies = False

    def _get_server_weights(self) -> Any:
        raise RuntimeError("RemoteModuleWeightUpdater has no weights of its own: pass weights")

    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        if self.collector is None:
            raise RuntimeError("RemoteModuleWeightUpdater has no collector: set it as a collector's weight_updater")
        self.collector.publish_weights(server_weights, worker_ids=worker_id)


class RayWeightUpdater(WeightUpdaterBase):
    """Sends weights to Ray actors, each once in so many batches, and waits for none.

    With a collector the weights go onto its channel: workers take them with their next request, those that are
    replaced or added later, too. Without one they go to the actors directly.

    Args:
        policy_weights: read at each push.
        remote_collectors: handles of actors, as `RayCollector.remote_collectors` gives them.
        max_interval: how many batches of a worker may pass between updates; 0 updates at each push, 1 every second.
    """

    def __init__(self, policy_weights: Any, remote_collectors: Sequence[Any], max_interval: int = 0) -> None:
        self.policy_weights = policy_weights
        self.remote_collectors = remote_collectors
        self.max_interval = max(0, max_interval)
        self._pending: list[Any] = []
        self._pushes: dict[int, int] = {}
        self._updated: dict[int, tuple[int, int]] = {}

    def all_worker_ids(self) -> list[int]:
        """Indices of the actors; with a collector, those of its workers that are there or coming back."""
        publisher = publisher_of(self.collector)
        return list(range(len(self.remote_collectors))) if publisher is None else list(publisher.progress())

    def push_weights(self, policy_or_weights: Any = None, worker_ids: Any = None) -> None:
        """Send weights to workers, then call the post hooks.

        Raises:
            Closed: the collector was shut down.
            Exception: what an earlier delivery failed with.
        """
        if self._pending:
            done, self._pending = _ray().wait(self._pending, num_returns=len(self._pending), timeout=0)
            _ray().get(done)
        super().push_weights(policy_or_weights, worker_ids)

    def _get_server_weights(self) -> Any:
        """A handle of what the weights are now: a snapshot, or where it is sent from here, its place in Ray's store."""
        return self._maybe_map_weights(self.policy_weights)

    def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
        """A handle of weights; a handle as it is."""
        if isinstance(policy_or_weights, Snapshot | _ray().ObjectRef):
            return policy_or_weights
        snapshot = snapshot_of(policy_or_weights)
        return _ray().put(snapshot) if publisher_of(self.collector) is None else snapshot

    def _skip_update(self, worker_id: int) -> bool:
        """Whether too few batches have passed since the worker's last update."""
        publisher = publisher_of(self.collector)
        if publisher is None:
            passed = self._pushes[worker_id] = self._pushes.get(worker_id, 0) + 1
            return passed <= self.max_interval
        life, made = publisher.progress().get(worker_id, (0, 0))
        life_then, made_then = self._updated.get(worker_id, (0, 0))
        return self.max_interval > 0 and life == life_then and made - made_then <= self.max_interval

    def _sync_weights_with_worker(self, worker_id: int | None = None, server_weights: Any = None) -> None:
        publisher, handle = publisher_of(self.collector), self._maybe_map_weights(server_weights)
        if publisher is not None:
            weights = handle if isinstance(handle, Snapshot) else _ray().get(handle)
            self.collector.publish_weights(weights, worker_ids=worker_id)
            self._updated |= {one: at for one, at in publisher.progress().items() if worker_id in (None, one)}
            return
        workers = self.all_worker_ids()
        for worker in workers if worker_id is None else [worker_id]:
            if worker not in workers:
                raise ValueError(f"worker_ids={worker!r}: there is no such actor; there are {workers}")
            self._pending.append(self.remote_collectors[worker].update_policy_weights_.remote(policy_weights=handle))
            self._pushes[worker] = 0


def _listed(worker_ids: Any) -> list[Any]:
    """Ids as a list, devices as devices."""
    wanted = worker_ids if isinstance(worker_ids, list | tuple) else [worker_ids]
    return [torch.device(one) if isinstance(one, str) else one for one in wanted]


def _ray() -> Any:
    """Ray, if it is installed."""
    return need("ray", extra="ray", why="for weights that are sent to Ray actors")


LocalWeightsUpdaterBase = RemoteWeightsUpdaterBase = WeightUpdaterBase
