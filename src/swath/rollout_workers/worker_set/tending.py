"""What is asked and said of policies and envs in all workers of a set, for good where it is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.mapping import is_policy_to_train
from swath.rollout_workers.worker.policies import BY_POLICY, require_addable
from swath.rollout_workers.worker.policy_methods import spaces_of
from swath.rollout_workers.worker_set.asking import spread
from swath.rollout_workers.worker_set.group import PATIENCE_S
from swath.rollout_workers.worker_set.resident import Call, Household
from swath.rollout_workers.worker_set.sampling import Sampling

_OF_WORKERS = (WorkerLate, WorkerLost, FleetFailed)
"""What is the matter with a worker, and not with what it was told."""

_OF_ITS_WORKER = ("worker_index", "num_workers", "__policy_id", *BY_POLICY)
"""What is in a policy's config beside its own settings."""


class Tending(Sampling):
    """Policies and envs."""

    def foreach_env(self, func: Callable[[Any], Any]) -> list[list[Any]]:
        """What a function gives of each sub-env: a list per worker, the local one's first."""
        return self.foreach_worker("foreach_env", kwargs={"func": func})

    def foreach_env_with_context(self, func: Callable[[Any, Any], Any]) -> list[list[Any]]:
        """What a function gives of each sub-env and its context: a list per worker, the local one's first."""
        return self.foreach_worker("foreach_env_with_context", kwargs={"func": func})

    def foreach_policy(self, func: Callable[[Any, str], Any]) -> list[Any]:
        """What a function gives of each policy and its id: one list, the local worker's first."""
        return [*chain.from_iterable(self.foreach_worker("foreach_policy", kwargs={"func": func}))]

    def foreach_policy_to_train(self, func: Callable[[Any, str], Any]) -> list[Any]:
        """As `foreach_policy`, of the policies that learn."""
        return [*chain.from_iterable(self.foreach_worker("foreach_policy_to_train", kwargs={"func": func}))]

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
        policies_to_train: Any = None,
        module_spec: Any = None,
    ) -> None:
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
        if policy_id in self._policy_ids():
            raise KeyError(f"policy_id={policy_id!r} is taken; there are {sorted(self._policy_ids())}")
        require_addable(policy_cls, policy, module_spec)
        _check(policy_mapping_fn, policies_to_train)
        built = {
            "policy_cls": policy_cls,
            "observation_space": observation_space,
            "action_space": action_space,
            "config": config,
            "policy_state": policy_state,
        }
        if (local := self._local_env_runner) is not None:
            local.add_policy(policy_id, **built, policy=policy)
        try:
            self._say(self._household().adding(policy_id, built if policy is None else _copied(policy, built)))
            self._arrange(policy_mapping_fn, policies_to_train)
        except _OF_WORKERS:  # the others have it, and those that come back will
            raise
        except Exception:
            if local is not None:
                local.remove_policy(policy_id=policy_id)
            self._say(self._household().removing(policy_id))
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
        if policy_id not in self._policy_ids():
            raise ValueError(f"policy_id={policy_id!r} is unknown; there are {sorted(self._policy_ids())}")
        _check(policy_mapping_fn, policies_to_train)

        def here() -> None:
            self._filters.pop(policy_id, None)
            if (crew := self._remote()) is not None:
                crew.channel.withdraw([policy_id])
            if (local := self._local_env_runner) is not None:
                local.remove_policy(
                    policy_id=policy_id, policy_mapping_fn=policy_mapping_fn, policies_to_train=policies_to_train
                )

        household = self._household().removing(policy_id)
        self._say(household.mapping_by(policy_mapping_fn).training(policies_to_train), here)

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Say in all workers, also later ones, which policy acts for whom in new episodes; None changes nothing.

        Raises:
            ValueError: it cannot be called.
        """
        self._arrange(policy_mapping_fn, None)

    def set_is_policy_to_train(self, is_policy_to_train: Any) -> None:
        """Say in all workers, also later ones, which policies learn.

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
        if (local := self._local_env_runner) is not None:
            asked = local.is_policy_to_train
            return True if asked is None else bool(asked(policy_id, batch))
        return policy_id in self._of_first(Call("get_policies_to_train", {"batch": batch}))

    def _arrange(self, mapping: Any, to_train: Any) -> None:
        """Say who acts for whom and who learns, where it is not None."""
        _check(mapping, to_train)

        def here() -> None:
            if (local := self._local_env_runner) is not None:
                local.set_policy_mapping_fn(mapping)
                if to_train is not None:
                    local.set_is_policy_to_train(to_train)

        self._say(self._household().mapping_by(mapping).training(to_train), here)

    def _household(self) -> Household:
        """What is said of policies so far."""
        crew = self._remote()
        return Household() if crew is None else crew.household

    def _say(self, household: Household, here: Callable[[], None] | None = None) -> None:
        """From now on, in all remote workers that can be asked; in the others before they do anything else.

        What cannot be sent to any, perhaps since it cannot be pickled, is not said.

        Args:
            household: what is to be.
            here: what is done in this process, if it is said.
        """
        crew = self._remote()
        before = self._household()
        try:
            if crew is not None:
                crew.household = household
                spread(crew, [worker for worker in crew.up() if crew.is_free(worker)], PATIENCE_S)
        except Exception as error:
            if crew is not None and not isinstance(error, _OF_WORKERS):
                crew.take_back(before)
            raise
        finally:
            if here is not None and (crew is None or crew.household is household):
                here()

    def _policy_ids(self) -> set[str]:
        if self._local_env_runner is not None:
            return set(self._local_env_runner.policy_map)
        household = self._household()
        return (set(self._config.policies) - household.removed) | set(household.added)


def _check(mapping: Any, to_train: Any) -> None:
    if mapping is not None and not callable(mapping):
        raise ValueError(f"policy_mapping_fn={mapping!r} cannot be called; give f(agent_id, episode, worker=…)")
    is_policy_to_train(to_train)


def _copied(policy: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """How others build the like of a policy; what was given beside it comes first."""
    seen, acted = spaces_of(policy, given["observation_space"], given["action_space"])
    own = {name: value for name, value in policy.config.items() if name not in _OF_ITS_WORKER}
    config, state = given["config"], given["policy_state"]
    return {
        "policy_cls": type(policy),
        "observation_space": seen,
        "action_space": acted,
        "config": _over(own, config),
        "policy_state": policy.get_state() if state is None else state,
    }


def _over(own: Mapping[str, Any], config: Any) -> Any:
    """The settings of a policy with those that were given; a whole config is as it is."""
    return config if isinstance(config, AlgorithmConfig) else {**own, **(config or {})}
