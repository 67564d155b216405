"""Weights of policies, the version that they make, and the numbers that all workers share."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from typing import Any

from swath.errors import warn, warn_of_no_effect
from swath.rollout_workers.worker.policies import Policies

Weights = dict[str, dict[str, Any]]
"""Arrays by name by policy id."""

TIMESTEP, UPDATES = "timestep", "num_grad_updates_per_policy"


class WeightBook:
    """Who has which weights.

    Args:
        policies: the worker's.

    Attributes:
        version: own number of the weights: 0, then higher with each change.
        seq_no: the number last given with weights; None if none was.
        global_vars: what all workers know.
    """

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self.version = 0
        self.seq_no: int | None = None
        self.global_vars: dict[str, Any] = {TIMESTEP: 0, UPDATES: {}}
        self._strangers: set[str] = set()

    def changed(self) -> None:
        """Weights have changed."""
        self.version = max(self.version + 1, self.seq_no or 0)

    def get(self, policies: Collection[str] | str | None, *, inference_only: bool) -> Weights:
        """Copies by policy id.

        Raises:
            KeyError: an unknown id.
        """
        if inference_only:
            warn_of_no_effect("inference_only", "rows are post-processed in workers, for which all weights are needed")
        return {policy_id: self._policies.get(policy_id).get_weights() for policy_id in self._ids(policies)}

    def set(self, weights: Any, seq_no: int | None) -> None:
        """Copy weights in, all or none.

        Raises:
            ValueError: names or shapes that a policy does not have.
        """
        if seq_no is not None and seq_no == self.seq_no:
            return
        self._apply(self._known(fetched(weights)))
        self.seq_no = seq_no
        self.changed()

    def set_global_vars(self, given: Mapping[str, Any], policy_ids: Iterable[str] | str | None) -> None:
        """Take numbers over and tell them to policies.

        Raises:
            KeyError: an unknown id.
        """
        ids = sorted(self._policies.trainable()) if policy_ids is None else self._ids(policy_ids)
        policies = {policy_id: self._policies.get(policy_id) for policy_id in ids}
        self.global_vars.update(deepcopy(dict(given)))
        for policy_id, policy in policies.items():
            told = {name: value for name, value in self.global_vars.items() if name != UPDATES}
            updates = self.global_vars[UPDATES].get(policy_id)
            if updates is not None:
                told["num_grad_updates"] = updates
            policy.on_global_var_update(told)

    def _ids(self, given: Iterable[str] | str | None) -> list[str]:
        if given is None:
            return list(self._policies.map)
        return [given] if isinstance(given, str) else list(given)

    def _known(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """Those of policies that there are; of others it is warned once."""
        for policy_id in weights:
            if policy_id not in self._policies.map and policy_id not in self._strangers:
                self._strangers.add(policy_id)
                warn(f"set_weights was given weights of policy {policy_id!r}, which is not here; they are left out")
        return {policy_id: given for policy_id, given in weights.items() if policy_id in self._policies.map}

    def _apply(self, weights: Mapping[str, Any]) -> None:
        before: list[tuple[Any, Any]] = []
        try:
            for policy_id, given in weights.items():
                policy = self._policies.map[policy_id]
                kept = policy.get_weights() if len(weights) > 1 else None
                policy.set_weights(fetched(given))
                before.append((policy, kept))
        except BaseException:
            for policy, kept in before:
                policy.set_weights(kept)
            raise


def fetched(value: Any) -> Any:
    """What a reference of Ray stands for, fetched; anything else itself."""
    if isinstance(value, Mapping) or type(value).__module__.partition(".")[0] != "ray":
        return value
    return sys.modules["ray"].get(value)
