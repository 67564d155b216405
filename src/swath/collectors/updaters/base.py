"""What all weight updaters have in common: the steps of a push."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from swath.collectors.outlet import WeightOutlet
from swath.weight_update.outlet import outlet_of


class WeightUpdaterBase(ABC):
    """Delivers weights in a way of one's own; `update_policy_weights_` of its collector calls `push_weights`.

    A subclass says how one worker gets weights, in `_sync_weights_with_worker`. All that it publishes on its collector
    during one push becomes one version. Methods may be called from any thread.
    """

    _collector: Callable[[], Any] | None = None
    _hooks: list[Callable[[], Any]] | None = None

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
        with self._one_version():
            self._push(policy_or_weights, worker_ids)
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
        mine = self.collector
        if mine is not None and mine is not collector:
            raise RuntimeError(f"this {type(self).__name__} serves another collector; make one for each")
        self._collector = weakref.ref(collector)

    @property
    def collector(self) -> Any:
        """The collector that it serves; `None` if it never had one, or that is gone."""
        return None if self._collector is None else self._collector()

    @property
    def collectors(self) -> list[Any] | None:
        """The collector in a list, or `None`."""
        collector = self.collector
        return None if collector is None else [collector]

    @property
    def post_hooks(self) -> list[Callable[[], Any]]:
        """What is called after each push, without arguments, in order, in the thread that pushes."""
        if self._hooks is None:
            self._hooks = []
        return self._hooks

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
        raise TypeError(
            f"weights are of type {type(policy_or_weights).__name__}; pass a module, a TensorDict, or a dict of tensors"
        )

    def _skip_update(self, worker_id: Any) -> bool:  # noqa: ARG002  for those who override it
        """Whether this worker gets nothing this time. May be overridden."""
        return False

    @abstractmethod
    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        """Deliver to one worker; to all of them if no id is given.

        It may use `self.collector.publish_weights(server_weights, worker_ids=worker_id)`.
        """

    def _push(self, given: Any, worker_ids: Any) -> None:
        """All steps but the hooks."""
        self._deliver(self._maybe_map_weights(self._found(given)), worker_ids)

    def _found(self, given: Any) -> Any:
        """The weights that were passed, or the server's, or those of the collector's policy."""
        if given is not None:
            return given
        weights, outlet = self._get_server_weights(), self._outlet()
        return outlet.to_push() if weights is None and outlet is not None else weights

    def _deliver(self, weights: Any, worker_ids: Any) -> None:
        workers = self.all_worker_ids() if worker_ids is None else as_list(worker_ids)
        if workers is None:
            self._sync_weights_with_worker(server_weights=weights)
            return
        for worker in workers:
            if not self._skip_update(worker):
                self._sync_weights_with_worker(worker_id=worker, server_weights=weights)

    def _outlet(self) -> WeightOutlet | None:
        """Where the collector's weights go out; `None` without a collector, or with something that only acts as one."""
        outlet = outlet_of(self.collector)
        return outlet if isinstance(outlet, WeightOutlet) else None

    def _one_version(self) -> AbstractContextManager[None]:
        """What is published within is one version.

        Raises:
            Closed: the collector was shut down.
        """
        outlet = self._outlet()
        if outlet is None:
            return nullcontext()
        outlet.require_open()
        return outlet.one_version()


def as_list(worker_ids: Any) -> list[Any]:
    """Ids as a list, devices as devices."""
    wanted = worker_ids if isinstance(worker_ids, list | tuple) else [worker_ids]
    return [torch.device(one) if isinstance(one, str) else one for one in wanted]
