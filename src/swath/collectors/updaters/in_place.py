"""Updaters that copy weights into TensorDicts of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from tensordict import TensorDict
from torch import nn

from swath.collectors.updaters.base import WeightUpdaterBase
from swath.weights.manifest import plan
from swath.weights.snapshot import POLICY


class _InPlace(WeightUpdaterBase):
    """What the two have in common."""

    def _maybe_map_weights(self, policy_or_weights: Any) -> Any:
        """Weights in any form, as they are; `None` stands for nothing to do."""
        return policy_or_weights

    def _found(self, given: Any) -> Any:
        """The weights that were passed, or the getter's; never those of the collector's policy."""
        return self._get_server_weights() if given is None else given

    def _copy(self, target: Any, weights: Any, worker_id: Any) -> None:
        """Copy into tensors; with a collector when they do not act, and to its workers, too."""
        outlet = self._outlet()
        if outlet is None:
            plan(target, weights)()
            return
        copy_in = plan(target, weights, required=False)  # what is missing is checked by its policy
        outlet.publish({POLICY: weights}, worker_id, also=copy_in)


class VanillaWeightUpdater(_InPlace):
    """Copies weights in place into those of one policy in this process.

    With a collector, the collector gets them, too, and tensors that act are written to between two fragments only.

    Args:
        weight_getter: gives weights when none are passed; without it nothing happens then.
        policy_weights: the TensorDict that is written to.
    """

    def __init__(self, *, weight_getter: Callable[[], Any] | None = None, policy_weights: Any) -> None:
        self.weight_getter = weight_getter
        self.policy_weights = policy_weights

    @classmethod
    def from_policy(cls, policy: Any) -> Self | None:
        """An updater of that policy's weights; `None` for one that has none."""
        return cls(policy_weights=TensorDict.from_module(policy).lock_()) if isinstance(policy, nn.Module) else None

    @property
    def supplies(self) -> bool:
        """Whether it has weights of its own when none are passed."""
        return self.weight_getter is not None

    def _get_server_weights(self) -> Any:
        return None if self.weight_getter is None else self.weight_getter()

    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        if server_weights is not None:
            self._copy(self.policy_weights, server_weights, worker_id)


class MultiProcessedWeightUpdater(_InPlace):
    """Copies weights in place into one TensorDict per device or worker and, with a collector, to the workers there.

    Args:
        get_server_weights: gives weights when none are passed; `None`: nothing happens then.
        policy_weights: TensorDicts by device or by index of a worker.
    """

    def __init__(self, *, get_server_weights: Callable[[], Any] | None, policy_weights: Mapping[Any, Any]) -> None:
        self.get_server_weights = get_server_weights
        self.policy_weights = policy_weights

    def all_worker_ids(self) -> Sequence[Any]:
        """The devices or workers."""
        return list(self.policy_weights)

    @property
    def supplies(self) -> bool:
        """Whether it has weights of its own when none are passed."""
        return self.get_server_weights is not None

    def _get_server_weights(self) -> Any:
        return None if self.get_server_weights is None else self.get_server_weights()

    def _sync_weights_with_worker(self, *, worker_id: Any = None, server_weights: Any) -> None:
        if server_weights is None:
            return
        if worker_id not in self.policy_weights:
            raise ValueError(f"worker_ids={worker_id!r}: there are weights for {list(self.policy_weights)} only")
        self._copy(self.policy_weights[worker_id], server_weights, worker_id)
