"""Policies of a set: added, removed, mapped, learning, in all its workers and in those that come later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.nearest import with_options
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.worker.options import NewPolicy, check_arrangement
from swath.rollout_workers.worker_set.actor import MAPPING, POLICY, REMOVED, TO_TRAIN
from swath.rollout_workers.worker_set.workers import Workers


class SetPolicies:
    """Methods for policies."""

    _workers: Workers

    @with_options(NewPolicy)
    def add_policy(self, new: NewPolicy) -> None:  # noqa: D417  its fields are the arguments
        """Add a policy to all workers, and to those that come later: all of it, or nothing.

        Args:
            policy_id: a new one.
            policy_cls: what to build.
            policy: or a policy: the local worker gets it as it is, the others get copies.
            observation_space: None: as the worker finds it.
            action_space: likewise.
            config: settings over the worker's.
            policy_state: set right after it is built.
            policy_mapping_fn: from now on, for new episodes.
            policies_to_train: from now on.
            module_spec: only None: there are no modules here.

        Raises:
            KeyError: the id is taken.
            ValueError: not exactly one of class and policy; a `module_spec`.
            Exception: what building it raised, in the first worker by id; then no worker has it.
        """
        workers, policy_id = self._workers, new.policy_id
        if policy_id in (known := workers.policy_ids()):
            raise KeyError(f"policy_id={policy_id!r} is taken; there are {sorted(known)}")
        alone = replace(new, policy_mapping_fn=None, policies_to_train=None)
        if workers.local is not None:
            workers.local.add_policy(**vars(alone))
        values: dict[str, Any] = {f"{POLICY}{policy_id}": vars(alone.for_others())}
        if policy_id in (removed := workers.shared.get(REMOVED, frozenset())):
            values[REMOVED] = removed - {policy_id}
        try:
            workers.change(values)
            self._arrange(new.policy_mapping_fn, new.policies_to_train)
        except (WorkerLate, WorkerLost, FleetFailed):  # the others have it, and those that come back will
            raise
        except Exception:
            self._remove(policy_id, None, None)
            raise

    def remove_policy(
        self,
        *,
        policy_id: str = DEFAULT_POLICY_ID,
        policy_mapping_fn: Callable[..., str] | None = None,
        policies_to_train: Any = None,
    ) -> None:
        """Remove a policy from all workers, and from those that come later.

        Args:
            policy_id: which.
            policy_mapping_fn: from now on, for new episodes.
            policies_to_train: from now on.

        Raises:
            ValueError: there is no such policy.
        """
        if policy_id not in (known := self._workers.policy_ids()):
            raise ValueError(f"policy_id={policy_id!r} is unknown; there are {sorted(known)}")
        check_arrangement(policy_mapping_fn, policies_to_train)
        self._remove(policy_id, policy_mapping_fn, policies_to_train)

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Set in all workers, also later ones, which policy acts for whom in new episodes; None changes nothing.

        Raises:
            ValueError: it cannot be called.
        """
        self._arrange(policy_mapping_fn, None)

    def set_is_policy_to_train(self, is_policy_to_train: Any) -> None:
        """Set in all workers, also later ones, which policies learn.

        Args:
            is_policy_to_train: a list, set or tuple of ids, or `f(policy_id, batch=None) -> bool`.

        Raises:
            TypeError: anything else.
        """
        if is_policy_to_train is None:
            raise TypeError("is_policy_to_train=None: give ids, or f(policy_id, batch=None) -> bool")
        self._arrange(None, is_policy_to_train)

    def is_policy_to_train(self, policy_id: str, batch: Any = None) -> bool:
        """Whether a policy learns."""
        if (local := self._workers.local) is None:
            return policy_id in self._workers.ask_first("get_policies_to_train", batch=batch)
        is_asked = local.is_policy_to_train
        return True if is_asked is None else bool(is_asked(policy_id, batch))

    def _arrange(self, mapping: Any, to_train: Any) -> None:
        """Set who acts for whom and who learns, where it is not None."""
        check_arrangement(mapping, to_train)

        def here() -> None:
            if (local := self._workers.local) is not None:
                local.set_policy_mapping_fn(mapping)
                if to_train is not None:
                    local.set_is_policy_to_train(to_train)

        if values := _arrangement(mapping, to_train):
            self._workers.change(values, here)

    def _remove(self, policy_id: str, mapping: Any, to_train: Any) -> None:
        workers = self._workers

        def here() -> None:
            workers.forget_policy(policy_id)
            if workers.local is not None:
                workers.local.remove_policy(policy_id=policy_id, policy_mapping_fn=mapping, policies_to_train=to_train)

        removed = workers.shared.get(REMOVED, frozenset()) | {policy_id}
        workers.change({REMOVED: removed, **_arrangement(mapping, to_train)}, here)


def _arrangement(mapping: Any, to_train: Any) -> dict[str, Any]:
    return {key: value for key, value in ((MAPPING, mapping), (TO_TRAIN, to_train)) if value is not None}
