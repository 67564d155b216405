"""The policies of a worker: who acts for whom, by which filter and preprocessor, and who learns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from swath.rollout.seeding import PrivateStreams
from swath.rollout_workers.callbacks import DefaultCallbacks
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.policy_spec import PolicySpec, is_policy_to_train
from swath.rollout_workers.filters import Filter, get_filter
from swath.rollout_workers.nests import map_nest, template_of
from swath.rollout_workers.preprocessors import NoPreprocessor, Preprocessor, get_preprocessor

BY_POLICY = ("explore", "normalize_actions", "clip_actions", "clip_rewards", "observation_filter")
"""Settings of what a worker does for a policy: the config in a policy's spec may have others than the worker's."""

_OF_ITS_WORKER = ("worker_index", "num_workers", "__policy_id", *BY_POLICY)
"""What is in a policy's config beside its own settings."""


@dataclass
class Policies:
    """The policies of one worker; the four maps always have the same keys.

    Attributes:
        config: the worker's.
        callbacks: the user's.
        facts: what a policy's config has besides the settings: `worker_index`, `num_workers`.
        mapping: which policy acts for an agent of a new episode.
        to_train: `f(policy_id, batch) -> bool`; None: all learn.
        streams: of random numbers that belong to the worker; None: nothing is seeded.
        map: the policies.
        specs: complete.
        filters: of processed observations.
        preprocessors: of observations.
        own: settings that are other than the worker's, also of those that were removed, which may still act.
        on_ranks: they learn together with those of other ranks.
        version: own number of the weights: 0, then higher with each change.
        seq_no: the number last given with weights; None if none was.
    """

    config: AlgorithmConfig
    callbacks: DefaultCallbacks
    facts: Mapping[str, Any]
    mapping: Callable[..., str]
    to_train: Callable[..., bool] | None = None
    streams: PrivateStreams | None = None
    map: dict[str, Any] = field(default_factory=dict)
    specs: dict[str, PolicySpec] = field(default_factory=dict)
    filters: dict[str, Filter] = field(default_factory=dict)
    preprocessors: dict[str, Preprocessor] = field(default_factory=dict)
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    on_ranks: bool = False
    version: int = 0
    seq_no: int | None = None

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

    def drawing(self) -> AbstractContextManager[None]:
        """While the worker draws: from its own streams, if it is seeded."""
        return nullcontext() if self.streams is None else self.streams.swapped()

    def changed(self) -> None:
        """Weights have changed."""
        self.version = max(self.version + 1, self.seq_no or 0)

    @contextmanager
    def changing(self, chosen: Collection[Any]) -> Iterator[None]:
        """While weights change, if any policy is chosen; the version grows also if one raises."""
        try:
            yield
        finally:
            if chosen:
                self.changed()

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

    def arrange(self, mapping: Any, to_train: Any) -> None:
        """Have others act for agents in new episodes, and others learn; what is None stays. See `check_arrangement`."""
        check_arrangement(mapping, to_train)
        self.mapping = self.mapping if mapping is None else mapping
        self.to_train = self.to_train if to_train is None else is_policy_to_train(to_train)

    def learns(self, policy_id: str, batch: Any = None) -> bool:
        """Whether a policy learns."""
        return self.to_train is None or bool(self.to_train(policy_id, batch))

    def trainable(self, batch: Any = None) -> set[str]:
        """The ids of those that learn."""
        return {policy_id for policy_id in self.map if self.learns(policy_id, batch)}


@dataclass(frozen=True)
class NewPolicy:
    """What `add_policy` takes: either a class to build or a policy as it is, and what changes with it.

    Raises:
        ValueError: not exactly one of class and policy; a `module_spec`; a mapping that cannot be called.
        TypeError: a class that is none, a class in place of a policy, or no ids and no function in `policies_to_train`.
    """

    policy_id: str
    policy_cls: type | None = None
    policy: Any = None
    observation_space: Any = field(default=None, kw_only=True)
    action_space: Any = field(default=None, kw_only=True)
    config: Any = field(default=None, kw_only=True)
    policy_state: Mapping[str, Any] | None = field(default=None, kw_only=True)
    policy_mapping_fn: Callable[..., str] | None = field(default=None, kw_only=True)
    policies_to_train: Collection[str] | Callable[..., bool] | None = field(default=None, kw_only=True)
    module_spec: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.module_spec is not None:
            raise ValueError(
                f"module_spec={self.module_spec!r} is not served: there are no RLModules; give policy_cls or policy"
            )
        kind, policy = self.policy_cls, self.policy
        if (kind is None) == (policy is None):
            raise ValueError(
                f"policy_cls={kind!r} and policy={policy!r}: give exactly one, a class to build or a policy as it is"
            )
        if isinstance(policy, type) or not (kind is None or callable(kind)):
            raise TypeError(f"policy_cls={kind!r} must be a class, policy={policy!r} an object of one")
        check_arrangement(self.policy_mapping_fn, self.policies_to_train)

    @property
    def spec(self) -> PolicySpec:
        """The class; of a policy also its spaces, before preprocessing, where none are given."""
        seen, acted = self.observation_space, self.action_space
        if self.policy is None:
            return PolicySpec(self.policy_cls, seen, acted, self.config)
        own = getattr(self.policy, "observation_space", None)
        seen = getattr(own, "original_space", own) if seen is None else seen
        acted = getattr(self.policy, "action_space", None) if acted is None else acted
        return PolicySpec(type(self.policy), seen, acted, self.config)

    def for_others(self) -> NewPolicy:
        """How other workers build the like of a policy; what was given with it comes first."""
        policy, spec, config = self.policy, self.spec, self.config
        if policy is None:
            return self
        if not isinstance(config, AlgorithmConfig):
            own = {name: value for name, value in policy.config.items() if name not in _OF_ITS_WORKER}
            config = {**own, **(config or {})}
        state = policy.get_state() if self.policy_state is None else self.policy_state
        made_of = {"policy_cls": spec.policy_class, "policy": None, "config": config, "policy_state": state}
        return replace(self, **made_of, observation_space=spec.observation_space, action_space=spec.action_space)


def check_arrangement(mapping: Any, to_train: Any) -> None:
    """Check who acts for whom and who learns; None changes nothing.

    Raises:
        ValueError: the mapping cannot be called.
        TypeError: `to_train` is no collection of ids and no function.
    """
    if mapping is not None and not callable(mapping):
        raise ValueError(f"policy_mapping_fn={mapping!r} cannot be called; give f(agent_id, episode, worker=worker)")
    is_policy_to_train(to_train)
