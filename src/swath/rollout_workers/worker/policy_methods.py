"""A worker's methods for its policies, who they act for and who of them learns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config.policy_spec import PolicySpec
from swath.rollout_workers.filters.base import Filter
from swath.rollout_workers.filters.sharing import copies_of, rebase_all
from swath.rollout_workers.preprocessors import Preprocessor
from swath.rollout_workers.worker.base import WorkerBase
from swath.rollout_workers.worker.policies import require_addable


class PolicyMethods(WorkerBase):
    """What a worker does with its policies."""

    @property
    def policy_dict(self) -> dict[str, PolicySpec]:
        """Complete specs by policy id."""
        return self._policies.specs

    @property
    def filters(self) -> dict[str, Filter]:
        """Observation filters by policy id."""
        return self._policies.filters

    @property
    def preprocessors(self) -> dict[str, Preprocessor]:
        """Preprocessors by policy id."""
        return self._policies.preprocessors

    @property
    def policy_mapping_fn(self) -> Callable[..., str]:
        """Which policy acts for an agent."""
        return self._policies.mapping

    @property
    def is_policy_to_train(self) -> Callable[..., bool] | None:
        """`f(policy_id, batch) -> bool`; None if all learn."""
        return self._policies.to_train

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Any:
        """The policy of this id, or None."""
        return self.policy_map.get(policy_id)

    def add_policy(
        self,
        policy_id: str,
        policy_cls: type | None = None,
        policy: Any = None,
        *,
        observation_space: Any = None,
        action_space: Any = None,
        config: Any = None,
        policy_state: Mapping[str, Any] | None = None,
        policy_mapping_fn: Callable[..., str] | None = None,
        policies_to_train: Collection[str] | Callable[..., bool] | None = None,
        module_spec: Any = None,
    ) -> Any:
        """Add a policy: all of it, or nothing.

        Args:
            policy_id: a new one.
            policy_cls: its class; or
            policy: the policy itself, used as it is.
            observation_space: before preprocessing; None: found out as for policies of the config.
            action_space: likewise.
            config: overrides of the worker's settings, or a whole config.
            policy_state: set right after it is built.
            policy_mapping_fn: another mapping, for new episodes.
            policies_to_train: others learn.
            module_spec: not served.

        Raises:
            KeyError: the id is taken.
            ValueError: not exactly one of class and object; a `module_spec`; no spaces.
            TypeError: a class that is none, or a class in place of an object.
        """
        require_addable(policy_cls, policy, module_spec)
        if policy is not None:
            spec = PolicySpec(type(policy), *spaces_of(policy, observation_space, action_space), config)
        else:
            spec = PolicySpec(policy_cls, observation_space, action_space, config)
        spec = self._completed(policy_id, spec)
        self._policies.check(policy_mapping_fn, policies_to_train)
        with self._drawing():
            made = self._policies.add(policy_id, spec, policy, policy_state)
        self._policies.adopt(policy_mapping_fn, policies_to_train)
        return made

    def remove_policy(
        self,
        *,
        policy_id: str = DEFAULT_POLICY_ID,
        policy_mapping_fn: Callable[..., str] | None = None,
        policies_to_train: Collection[str] | Callable[..., bool] | None = None,
    ) -> None:
        """Remove a policy; agents that it acts for go on with it until their episodes end.

        Raises:
            ValueError: there is none of this id.
        """
        self._policies.check(policy_mapping_fn, policies_to_train)
        self._policies.remove(policy_id)
        self._policies.adopt(policy_mapping_fn, policies_to_train)

    def for_policy(self, func: Callable[..., Any], policy_id: str = DEFAULT_POLICY_ID, **kwargs: Any) -> Any:
        """`func(policy, **kwargs)`.

        Raises:
            KeyError: there is none of this id.
        """
        return func(self._policies.get(policy_id), **kwargs)

    def foreach_policy(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """`func(policy, policy_id, **kwargs)` of each."""
        return [func(policy, policy_id, **kwargs) for policy_id, policy in list(self.policy_map.items())]

    def foreach_policy_to_train(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """The same of those that learn."""
        learning = self._policies.trainable()
        each = list(self.policy_map.items())
        return [func(policy, policy_id, **kwargs) for policy_id, policy in each if policy_id in learning]

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Another mapping of agents to policies, for new episodes; None keeps it.

        Raises:
            ValueError: it cannot be called; the old one stays.
        """
        if policy_mapping_fn is not None:
            self._policies.set_mapping(policy_mapping_fn)

    def set_is_policy_to_train(self, is_policy_to_train: Collection[str] | Callable[..., bool]) -> None:
        """Other policies learn.

        Raises:
            TypeError: it is no list, set or tuple of ids, and no function; the old one stays.
        """
        if is_policy_to_train is None:
            raise TypeError("is_policy_to_train=None: give a list, set or tuple of policy ids, or a function")
        self._policies.set_to_train(is_policy_to_train)

    def get_policies_to_train(self, batch: Any = None) -> set[str]:
        """The ids of policies that learn."""
        return self._policies.trainable(batch)

    def get_filters(self, flush_after: bool = False) -> dict[str, Filter]:
        """Copies of the filters; their buffers are emptied afterwards if asked for."""
        return copies_of(self.filters, flush_after=flush_after)

    def sync_filters(self, new_filters: Mapping[str, Filter]) -> None:
        """Take the statistics of others over; what is in the own buffers is learnt on top of them.

        Raises:
            AssertionError: a policy of this worker has none among them.
        """
        rebase_all(self.filters, new_filters)

    def _completed(self, policy_id: str, spec: PolicySpec) -> PolicySpec:
        """The spec with nothing left empty."""
        setup, _ = self.config.get_multi_agent_setup(
            policies={policy_id: spec},
            env=None if self.envs is None else self.envs.first,
            spaces=self._given["spaces"],
            default_policy_class=self.default_policy_class,
        )
        return setup[policy_id]


def spaces_of(policy: Any, observation_space: Any, action_space: Any) -> tuple[Any, Any]:
    """The spaces that were given, or those of the policy, before preprocessing."""
    seen = getattr(policy, "observation_space", None)
    original = getattr(seen, "original_space", seen)
    acted = getattr(policy, "action_space", None)
    return original if observation_space is None else observation_space, acted if action_space is None else action_space
