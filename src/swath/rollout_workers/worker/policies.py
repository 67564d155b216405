"""The policies of a rollout worker: construction, removal, updates, weights and restoration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeAlias

from swath.errors import warn_of_no_effect
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch, SampleBatch
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig, PolicySetup
from swath.rollout_workers.config.policy_spec import PolicySpec, is_policy_to_train
from swath.rollout_workers.filters import get_filter
from swath.rollout_workers.nests import map_nest, template_of
from swath.rollout_workers.policies.learning import require_same
from swath.rollout_workers.processing import NoPreprocessor, get_preprocessor

Weights: TypeAlias = dict[str, dict[str, Any]]
"""Arrays by name by policy id."""

Batch: TypeAlias = SampleBatch | MultiAgentBatch

TIMESTEP, UPDATES = "timestep", "num_grad_updates_per_policy"

POLICY_SETTINGS = ("explore", "normalize_actions", "clip_actions", "clip_rewards", "observation_filter")
"""Settings of how a worker treats a policy: the config in a policy's spec may override the worker's."""

_SET_BY_WORKER = ("worker_index", "num_workers", "__policy_id", *POLICY_SETTINGS)
"""Entries of a policy's config that its worker writes."""


@dataclass(frozen=True)
class NewPolicy:
    """The arguments of `add_policy`: a class to build or a policy object, and what changes with it.

    Raises:
        ValueError: not exactly one of class and policy; a `module_spec`; a mapping that cannot be called.
        TypeError: a class that cannot be called, a class in place of a policy, or a `policies_to_train` that is neither
            a collection of ids nor a function.
    """

    policy_id: str
    policy_cls: type | None = None
    policy: Any = None
    _: KW_ONLY
    observation_space: Any = None
    action_space: Any = None
    config: Any = None
    policy_state: Mapping[str, Any] | None = None
    policy_mapping_fn: Callable[..., str] | None = None
    policies_to_train: Collection[str] | Callable[..., bool] | None = None
    module_spec: Any = None

    def __post_init__(self) -> None:
        if self.module_spec is not None:
            raise ValueError("module_spec is not served: there are no RLModules; give policy_cls or policy")
        kind, policy = self.policy_cls, self.policy
        if (kind is None) == (policy is None):
            raise ValueError(f"give exactly one of policy_cls={kind!r} and policy={policy!r}: a class or an object")
        if isinstance(policy, type) or not (kind is None or callable(kind)):
            raise TypeError(f"policy_cls={kind!r} must be a class, policy={policy!r} an object of one")
        check_policy_functions(self.policy_mapping_fn, self.policies_to_train)

    @property
    def spec(self) -> PolicySpec:
        """Return the spec: the class, and the spaces before preprocessing, where the policy object knows them."""
        observation_space, action_space = self.observation_space, self.action_space
        if self.policy is None:
            return PolicySpec(self.policy_cls, observation_space, action_space, self.config)
        if observation_space is None:
            processed = getattr(self.policy, "observation_space", None)
            observation_space = getattr(processed, "original_space", processed)
        if action_space is None:
            action_space = getattr(self.policy, "action_space", None)
        return PolicySpec(type(self.policy), observation_space, action_space, self.config)

    def for_other_workers(self) -> NewPolicy:
        """Return the arguments by which other workers build a copy of the policy object."""
        policy, spec, config = self.policy, self.spec, self.config
        if policy is None:
            return self
        if not isinstance(config, AlgorithmConfig):
            settings = {name: value for name, value in policy.config.items() if name not in _SET_BY_WORKER}
            config = {**settings, **(config or {})}
        state = policy.get_state() if self.policy_state is None else self.policy_state
        changes = {"policy_cls": spec.policy_class, "policy": None, "config": config, "policy_state": state}
        return replace(self, **changes, observation_space=spec.observation_space, action_space=spec.action_space)


def check_policy_functions(mapping: Any, to_train: Any) -> None:
    """Check which policy acts for an agent, and which policies learn; None is accepted for both.

    Raises:
        ValueError: the mapping cannot be called.
        TypeError: `to_train` is neither a collection of ids nor a function.
    """
    if mapping is not None and not callable(mapping):
        raise ValueError(f"policy_mapping_fn={mapping!r} cannot be called; give f(agent_id, episode, worker=worker)")
    is_policy_to_train(to_train)


def set_policy_functions(worker: Any, mapping: Any, to_train: Any) -> None:
    """Set which policy acts for an agent in new episodes, and which policies learn; None keeps the present one."""
    check_policy_functions(mapping, to_train)
    if mapping is not None:
        worker.policy_mapping_fn = mapping
    if to_train is not None:
        worker.is_policy_to_train = is_policy_to_train(to_train)


def require_policy(worker: Any, policy_id: str) -> Any:
    """Return the policy of this id, or raise `KeyError`."""
    if policy_id not in worker.policy_map:
        raise KeyError(f"there is no policy {policy_id!r}; there are {sorted(worker.policy_map)}")
    return worker.policy_map[policy_id]


def learns(worker: Any, policy_id: str, batch: Any = None) -> bool:
    """Return whether a policy learns from a batch."""
    return worker.is_policy_to_train is None or bool(worker.is_policy_to_train(policy_id, batch))


def batches_to_learn(worker: Any, samples: Batch, *, single_agent: bool = False) -> list[tuple[str, Any, SampleBatch]]:
    """Return the policies that learn from a batch, with ids and rows, in the same order on all ranks.

    Args:
        worker: has the policies.
        samples: the batch.
        single_agent: the batch is of the default policy alone, which learns in any case.

    Raises:
        TypeError: another kind of batch.
        ValueError: `single_agent`, but the batch is of other policies; or other ranks have other policies.
    """
    if not isinstance(samples, SampleBatch | MultiAgentBatch):
        raise TypeError(f"samples is of type {type(samples).__name__}; give a SampleBatch or a MultiAgentBatch")
    batches = samples.as_multi_agent().policy_batches
    if single_agent and set(batches) != {DEFAULT_POLICY_ID}:
        raise ValueError(f"single_agent=True is for a batch of {DEFAULT_POLICY_ID!r}, not of {sorted(batches)}")
    ids = [pid for pid in batches if single_agent or (pid in worker.policy_map and learns(worker, pid, samples))]
    if worker.learns_on_ranks:
        require_same(sorted(ids), "policies in the batch")
        ids.sort()
    return [(policy_id, require_policy(worker, policy_id), batches[policy_id]) for policy_id in ids]


def apply_gradients(worker: Any, grads: Any) -> bool:
    """Apply gradients to the policies that learn, all or nothing; return whether any policy has changed."""
    by_policy = grads if isinstance(grads, Mapping) else {DEFAULT_POLICY_ID: grads}
    policies = {policy_id: require_policy(worker, policy_id) for policy_id in by_policy}
    steps = [(policies[policy_id], list(by_policy[policy_id])) for policy_id in policies if learns(worker, policy_id)]
    for policy, gradients in steps:
        policy.check_gradients(gradients)
    for policy, gradients in steps:
        policy.apply_gradients(gradients)
    return bool(steps)


def complete_specs(worker: Any, spaces: Any, specs: Mapping[str, PolicySpec] | None = None) -> PolicySetup:
    """Return complete specs of the policies, by default the config's, and the function that says which learn."""
    config: AlgorithmConfig = worker.config
    kind = worker.default_policy_class
    return config.get_multi_agent_setup(policies=specs, env=worker.env, spaces=spaces, default_policy_class=kind)


def build_policy(worker: Any, policy_id: str, spec: PolicySpec, policy: Any, state: Mapping[str, Any] | None) -> Any:
    """Add a policy to the worker's maps, all or nothing; build it by its complete spec if `policy` is None."""
    if policy_id in worker.policy_map:
        raise KeyError(f"there is a policy {policy_id!r} already; remove_policy it first, or take another id")
    if worker.learns_on_ranks:
        advice = "call teardown_torch_data_parallel() on each, add it there, and set the ranks up again"
        raise RuntimeError(f"policy {policy_id!r} cannot be added while policies learn on several ranks: {advice}")
    original_space, is_plain = spec.observation_space, worker.config["_disable_preprocessor_api"]
    assert original_space is not None  # the spec is complete
    preprocessor = (NoPreprocessor if is_plain else get_preprocessor(original_space))(original_space)
    space = preprocessor.observation_space
    # a dict is the config in the state of another worker's policy: the settings of this worker hold
    config = spec.config if isinstance(spec.config, AlgorithmConfig) else worker.config
    overrides = {name: config[name] for name in POLICY_SETTINGS if config[name] != worker.config[name]}
    filter_ = get_filter(config["observation_filter"], map_nest(lambda leaf: leaf.shape, template_of(space)))
    built = policy
    if built is None:
        assert spec.policy_class is not None  # the spec is complete
        settings = config.to_dict() if config is spec.config else dict(spec.config or {})
        settings |= {"worker_index": worker.worker_index, "num_workers": worker.config.num_env_runners}
        built = spec.policy_class(space, spec.action_space, {**settings, "__policy_id": policy_id})
    if state is not None:
        built.set_state(state)
    built.callbacks = worker.callbacks
    if policy is None:
        worker.callbacks.on_create_policy(policy_id=policy_id, policy=built)
    if getattr(built, "acts_in_space", False):
        overrides["normalize_actions"] = False
    worker.policy_map[policy_id], worker.policy_dict[policy_id] = built, spec
    worker.filters[policy_id], worker.preprocessors[policy_id] = filter_, preprocessor
    worker.policy_overrides[policy_id] = overrides
    return built


def forget_policy(worker: Any, policy_id: str) -> None:
    """Delete a policy from the worker's maps; its overrides stay, since it may still act."""
    for policies in (worker.policy_map, worker.policy_dict, worker.filters, worker.preprocessors):
        del policies[policy_id]


def copy_weights(worker: Any, weights: Any) -> None:
    """Copy weights into the worker's policies, all or none; warn once of weights for an unknown policy."""
    weights = fetch_from_ray(weights)
    for policy_id in sorted(weights.keys() - worker.policy_map.keys()):
        warn_of_no_effect(f"set_weights for the policy {policy_id!r}", "this worker does not have it")
    policies = {policy_id: worker.policy_map[policy_id] for policy_id in weights if policy_id in worker.policy_map}
    with ExitStack() as undo:
        for policy_id, policy in policies.items():
            if len(policies) > 1:  # a single policy takes all or none itself
                undo.callback(policy.set_weights, policy.get_weights())
            policy.set_weights(fetch_from_ray(weights[policy_id]))
        undo.pop_all()


def restore_policies(worker: Any, state: Mapping[str, Any]) -> None:
    """Restore policies and filters from the state of a worker, all or nothing; add the policies that are missing."""
    with ExitStack() as undo:
        for policy_id, policy_state in state.get("policy_states", {}).items():
            if (policy := worker.policy_map.get(policy_id)) is None:
                build_policy(worker, policy_id, _spec_of(policy_state), None, policy_state)
                undo.callback(forget_policy, worker, policy_id)
            else:
                undo.callback(policy.set_state, policy.get_state())
                policy.set_state(policy_state)
        for policy_id in state.get("filters", {}).keys() & worker.filters.keys():
            undo.callback(worker.filters[policy_id].sync, worker.filters[policy_id].copy())
            worker.filters[policy_id].sync(state["filters"][policy_id])
        undo.pop_all()
    worker.global_vars.update(deepcopy(state.get("global_vars", {})))


def give_global_vars(worker: Any, global_vars: Mapping[str, Any], policy_ids: Iterable[str]) -> None:
    """Add numbers to those that all workers know, and give them to these policies."""
    policies = {policy_id: require_policy(worker, policy_id) for policy_id in policy_ids}
    worker.global_vars.update(deepcopy(dict(global_vars)))
    numbers = {name: value for name, value in worker.global_vars.items() if name != UPDATES}
    for policy_id, policy in policies.items():
        updates = worker.global_vars[UPDATES].get(policy_id)
        policy.on_global_var_update(numbers if updates is None else {**numbers, "num_grad_updates": updates})


def fetch_from_ray(value: Any) -> Any:
    """Return the object behind a reference of Ray; return any other value unchanged."""
    if isinstance(value, Mapping) or type(value).__module__.partition(".")[0] != "ray":
        return value
    return sys.modules["ray"].get(value)


def _spec_of(state: Mapping[str, Any]) -> PolicySpec:
    """Return the spec in a policy's state, with the observation space before preprocessing."""
    spec = PolicySpec.deserialize(state["policy_spec"])
    spec.observation_space = getattr(spec.observation_space, "original_space", spec.observation_space)
    return spec
