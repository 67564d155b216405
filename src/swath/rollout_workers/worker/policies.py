"""The policies of a worker: who acts for whom, by which filter and preprocessor, and who learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swath.rollout_workers.callbacks import DefaultCallbacks
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.policy_spec import PolicySpec, is_policy_to_train
from swath.rollout_workers.filters.base import Filter
from swath.rollout_workers.filters.mean_std import get_filter
from swath.rollout_workers.nests import map_nest, template_of
from swath.rollout_workers.preprocessors import NoPreprocessor, Preprocessor, get_preprocessor

BY_POLICY = ("explore", "normalize_actions", "clip_actions", "clip_rewards", "observation_filter")
"""Settings of what a worker does for a policy: the config in a policy's spec may have others than the worker's."""


@dataclass
class Policies:
    """The policies of one worker; the four maps always have the same keys.

    Attributes:
        config: the worker's.
        callbacks: the user's.
        facts: what a policy's config has besides the settings: `worker_index`, `num_workers`.
        mapping: which policy acts for an agent of a new episode.
        to_train: `f(policy_id, batch) -> bool`; None: all learn.
        map: the policies.
        specs: complete.
        filters: of processed observations.
        preprocessors: of observations.
        own: settings that are other than the worker's, also of those that were removed, which may still act.
        on_ranks: they learn together with those of other ranks.
    """

    config: AlgorithmConfig
    callbacks: DefaultCallbacks
    facts: Mapping[str, Any]
    mapping: Callable[..., str]
    to_train: Callable[..., bool] | None = None
    map: dict[str, Any] = field(default_factory=dict)
    specs: dict[str, PolicySpec] = field(default_factory=dict)
    filters: dict[str, Filter] = field(default_factory=dict)
    preprocessors: dict[str, Preprocessor] = field(default_factory=dict)
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    on_ranks: bool = False

    def add(self, policy_id: str, spec: PolicySpec, policy: Any = None, state: Mapping[str, Any] | None = None) -> Any:
        """Take in a policy that is ready, or build one by a complete spec; all or nothing.

        Raises:
            KeyError: the id is taken.
            RuntimeError: the other ranks would not have the policy.
            Exception: what its class or its state raises.
        """
        if policy_id in self.map:
            raise KeyError(f"there is a policy {policy_id!r} already; remove_policy it first, or take another id")
        if self.on_ranks:
            raise RuntimeError(
                f"policy {policy_id!r} cannot be added while policies learn on several ranks: call "
                "teardown_torch_data_parallel() on each, add the policy there, then set the ranks up again"
            )
        assert spec.observation_space is not None, "the spec is not complete"
        kind = NoPreprocessor if self.config["_disable_preprocessor_api"] else get_preprocessor(spec.observation_space)
        preprocessor = kind(spec.observation_space)
        space = preprocessor.observation_space
        # what the spec's config says otherwise; that of a policy's state, a dict, is of another worker
        given = spec.config if isinstance(spec.config, AlgorithmConfig) else self.config
        own = {name: given[name] for name in BY_POLICY if given[name] != self.config[name]}
        kept = get_filter(given["observation_filter"], map_nest(lambda leaf: leaf.shape, template_of(space)))
        made = policy
        if made is None:
            assert spec.policy_class is not None
            settings = given.to_dict() if given is spec.config else dict(spec.config or {})
            settings |= {**self.facts, "__policy_id": policy_id}
            made = spec.policy_class(space, spec.action_space, settings)
        if state is not None:
            made.set_state(state)
        made.callbacks = self.callbacks
        if policy is None:
            self.callbacks.on_create_policy(policy_id=policy_id, policy=made)
        if getattr(made, "acts_in_space", False):
            own["normalize_actions"] = False
        self.map[policy_id], self.specs[policy_id], self.own[policy_id] = made, spec, own
        self.filters[policy_id], self.preprocessors[policy_id] = kept, preprocessor
        return made

    def remove(self, policy_id: str) -> None:
        """Forget a policy.

        Raises:
            ValueError: there is none of this id.
        """
        if policy_id not in self.map:
            raise ValueError(f"there is no policy {policy_id!r}; there are {sorted(self.map)}")
        for held in (self.map, self.specs, self.filters, self.preprocessors):
            del held[policy_id]

    def get(self, policy_id: str) -> Any:
        """The policy of this id.

        Raises:
            KeyError: there is none.
        """
        if policy_id not in self.map:
            raise KeyError(f"there is no policy {policy_id!r}; there are {sorted(self.map)}")
        return self.map[policy_id]

    def setting(self, policy_id: str, name: str) -> Any:
        """One of the settings `BY_POLICY`: the policy's own, else the worker's."""
        return self.own[policy_id].get(name, self.config[name])

    def filter_of(self, policy_id: str) -> Callable[[], Filter]:
        """Gives the policy's filter of the moment; the last one, once the policy is removed."""
        last = self.filters[policy_id]

        def current() -> Filter:
            nonlocal last
            last = self.filters.get(policy_id, last)
            return last

        return current

    def with_changes(self, mapping: Any, to_train: Any) -> tuple[Callable[..., str], Callable[..., bool] | None]:
        """`mapping` and `to_train` as they will be: what is None stays. Nothing is changed yet.

        Raises:
            ValueError: the mapping cannot be called.
            TypeError: `to_train` is no collection of ids and no function.
        """
        if mapping is not None and not callable(mapping):
            wanted = "give f(agent_id, episode, worker=worker)"
            raise ValueError(f"policy_mapping_fn={mapping!r} cannot be called; {wanted}")
        learning = self.to_train if to_train is None else is_policy_to_train(to_train)
        return self.mapping if mapping is None else mapping, learning

    def learns(self, policy_id: str, batch: Any = None) -> bool:
        """Whether a policy learns."""
        return self.to_train is None or bool(self.to_train(policy_id, batch))

    def trainable(self, batch: Any = None) -> set[str]:
        """The ids of those that learn."""
        return {policy_id for policy_id in self.map if self.learns(policy_id, batch)}


def require_addable(policy_cls: Any, policy: Any, module_spec: Any) -> None:
    """Raise `ValueError` unless there is either a class to build or a policy as it is, `TypeError` if it is no such."""
    if module_spec is not None:
        raise ValueError(
            f"module_spec={module_spec!r} is not served: there are no RLModules; give policy_cls or policy"
        )
    if (policy_cls is None) == (policy is None):
        raise ValueError(
            f"policy_cls={policy_cls!r} and policy={policy!r}: give exactly one, a class to build or a policy as it is"
        )
    if isinstance(policy, type) or not (policy_cls is None or callable(policy_cls)):
        raise TypeError(f"policy_cls={policy_cls!r} must be a class, policy={policy!r} an object of one")


def spaces_of(policy: Any, observation_space: Any, action_space: Any) -> tuple[Any, Any]:
    """The spaces that were given, or those of the policy, before preprocessing."""
    seen = getattr(policy, "observation_space", None)
    original = getattr(seen, "original_space", seen)
    acted = getattr(policy, "action_space", None)
    return original if observation_space is None else observation_space, acted if action_space is None else action_space
