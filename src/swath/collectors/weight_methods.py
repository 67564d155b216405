"""How weights come into a collector in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swath.collect.background import Background
from swath.collect.collection import Collection
from swath.collect.making.acting import Acting
from swath.collectors.weight_arguments import POLICY, WeightArguments, renamed


class TakesWeights:
    """Methods that publish weights, from any thread, before, during and between draws. After shutdown: `Closed`."""

    _collection: Collection
    _background: Background
    _acting: Acting

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        *,
        weights: Any = None,
        policy: Any = None,
        worker_ids: Any = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
        wait: bool = False,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Copy weights into the policy, at once or right after the running batch, and count the version up.

        Within draws the user's own module acts: without weights there is nothing to copy, and weights that are given
        are copied into it. In the background a snapshot acts: it gets the weights that are given, or else those that
        the user's module has now. Values are read before this returns.

        Args:
            policy_or_weights: a module, a TensorDict, or a dict of tensors, nested or as `state_dict()` gives.
            weights: a TensorDict or dict.
            policy: a module.
            worker_ids: not here: there is one worker.
            model_id: `"policy"`.
            weights_dict: `{"policy": weights}`.
            wait: return when the worker runs this version.
            timeout_s: how long to wait, in seconds.
            **kwargs: `policy_weights`, the old name of the first argument.

        Raises:
            TypeError: not weights, or `worker_ids`.
            KeyError: names do not fit, or an unknown model.
            ValueError: shapes do not fit, or two forms at once. In all cases nothing has changed.
            RuntimeError: no weights, and a factory built the policy.
            WorkerLate: `wait`, and the running batch did not end in time; the weights are published all the same.
        """
        old_name = renamed(kwargs)
        if worker_ids is not None:
            raise _one_worker()
        if old_name is not None and policy_or_weights is not None:
            raise ValueError("policy_weights and policy_or_weights are both given; give one of them")
        first = policy_or_weights if old_name is None else old_name
        self._publish(WeightArguments(first, weights, policy, model_id, weights_dict).source())
        if wait:
            self._collection.gate.pass_through(timeout_s)

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Copy weights into this collector's policy, as `update_policy_weights_`; without any source do nothing."""
        source = WeightArguments(policy_or_weights, weights, policy).source()
        if source is None and self._acting.has_no_source:
            self._collection.gate.require_open()
            return
        self._publish(source)

    def publish_weights(self, weights: Any, *, worker_ids: Any = None, model_id: str = POLICY) -> int:
        """Copy weights into the policy; returns the new version."""
        if worker_ids is not None:
            raise _one_worker()
        return self._publish(WeightArguments(weights, model_id=model_id).source())

    def increment_version(self) -> int:
        """Publish the weights there are under the next version, and return it."""
        self._collection.gate.require_open()
        return self._collection.publish(None)

    @property
    def policy_version(self) -> int:
        """The newest version that was published; 0 at construction."""
        return self._collection.version

    def get_policy_version(self) -> int:
        """The same as `policy_version`."""
        return self._collection.version

    def _publish(self, source: Any) -> int:
        self._background.raise_kept()
        self._collection.gate.require_open()
        return self._collection.publish(self._acting.plan(source))


def _one_worker() -> TypeError:
    return TypeError("worker_ids: a Collector in this process has one worker; leave it out")
