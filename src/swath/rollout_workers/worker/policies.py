"""What a worker does with its policies, whether it has envs or not: who acts, who learns, weights, filters, state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from swath.errors import Closed, warn, warn_of_no_effect
from swath.nearest import with_options
from swath.rollout.seeding import PrivateStreams
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.callbacks import DefaultCallbacks
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig, PolicySetup
from swath.rollout_workers.config.policy_spec import PolicySpec, is_policy_to_train
from swath.rollout_workers.filters import Filter, copies_of, get_filter, rebase_all
from swath.rollout_workers.nests import map_nest, template_of
from swath.rollout_workers.preprocessors import NoPreprocessor, Preprocessor, get_preprocessor

Weights = dict[str, dict[str, Any]]
"""Arrays by name by policy id."""

TIMESTEP, UPDATES = "timestep", "num_grad_updates_per_policy"

BY_POLICY = ("explore", "normalize_actions", "clip_actions", "clip_rewards", "observation_filter")
"""Settings of what a worker does for a policy: the config in a policy's spec may have others than the worker's."""

_OF_ITS_WORKER = ("worker_index", "num_workers", "__policy_id", *BY_POLICY)
"""What is in a policy's config beside its own settings."""


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
            raise ValueError(f"give exactly one, a class or a policy as it is: policy_cls={kind!r}, policy={policy!r}")
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


class PolicyMethods:
    """Has policies; the four maps by policy id always have the same keys.

    Args:
        config: settings; kept, not copied.
        worker_index: of the worker.

    Attributes:
        config: the worker's settings.
        callbacks: the user's.
        policy_map: the policies.
        policy_dict: complete specs.
        filters: of processed observations.
        preprocessors: of observations.
        policy_mapping_fn: which policy acts for an agent of a new episode.
        is_policy_to_train: `f(policy_id, batch) -> bool`; None: all learn.
        is_stopped: it does no work any more.
        policy_version: own number of the weights: 0, then higher with each change.
        weights_seq_no: the number last given with weights; None if none was.
        global_vars: what all workers know.
    """

    callbacks: DefaultCallbacks
    is_policy_to_train: Callable[..., bool] | None = None
    policy_version = 0
    weights_seq_no: int | None = None
    _streams: PrivateStreams | None
    _on_ranks = is_stopped = False

    def __init__(self, config: AlgorithmConfig, worker_index: int) -> None:
        self.config, self.worker_index = config, worker_index
        self.policy_map: dict[str, Any] = {}
        self.policy_dict: dict[str, PolicySpec] = {}
        self.filters: dict[str, Filter] = {}
        self.preprocessors: dict[str, Preprocessor] = {}
        self.policy_mapping_fn = config.policy_mapping_fn
        self.global_vars: dict[str, Any] = {TIMESTEP: 0, UPDATES: {}}
        # settings other than the worker's, also of those that were removed, which may still act
        self._own: dict[str, dict[str, Any]] = {}
        self._unknown: set[str] = set()

    def setting(self, policy_id: str, name: str) -> Any:
        """One of the settings `BY_POLICY`: the policy's own, else the worker's."""
        return self._own[policy_id].get(name, self.config[name])

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Any:
        """The policy of this id, or None."""
        return self.policy_map.get(policy_id)

    @with_options(NewPolicy)
    def add_policy(self, new: NewPolicy) -> Any:  # noqa: D417  its fields are the arguments
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
            RuntimeError: the worker is one of several ranks: the others would not have the policy.
        """
        setup, _ = self._setup({new.policy_id: new.spec})
        with self._working():
            made = self._add(new.policy_id, setup[new.policy_id], new.policy, new.policy_state)
        self._arrange(new.policy_mapping_fn, new.policies_to_train)
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
        check_arrangement(policy_mapping_fn, policies_to_train)
        if policy_id not in self.policy_map:
            raise ValueError(f"there is no policy {policy_id!r}; there are {sorted(self.policy_map)}")
        self._forget(policy_id)
        self._arrange(policy_mapping_fn, policies_to_train)

    def for_policy(self, func: Callable[..., Any], policy_id: str = DEFAULT_POLICY_ID, **kwargs: Any) -> Any:
        """`func(policy, **kwargs)`.

        Raises:
            KeyError: there is none of this id.
        """
        return func(self._policy(policy_id), **kwargs)

    def foreach_policy(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """`func(policy, policy_id, **kwargs)` of each."""
        return [func(policy, policy_id, **kwargs) for policy_id, policy in list(self.policy_map.items())]

    def foreach_policy_to_train(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """The same of those that learn."""
        learning, each = self.get_policies_to_train(), list(self.policy_map.items())
        return [func(policy, policy_id, **kwargs) for policy_id, policy in each if policy_id in learning]

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Another mapping of agents to policies, for new episodes; None keeps it.

        Raises:
            ValueError: it cannot be called; the old one stays.
        """
        self._arrange(policy_mapping_fn, None)

    def set_is_policy_to_train(self, is_policy_to_train: Collection[str] | Callable[..., bool]) -> None:
        """Other policies learn.

        Raises:
            TypeError: it is no list, set or tuple of ids, and no function; the old one stays.
        """
        if is_policy_to_train is None:
            raise TypeError("is_policy_to_train=None: give a list, set or tuple of policy ids, or a function")
        self._arrange(None, is_policy_to_train)

    def get_policies_to_train(self, batch: Any = None) -> set[str]:
        """The ids of policies that learn."""
        return {policy_id for policy_id in self.policy_map if self._learns(policy_id, batch)}

    def get_filters(self, flush_after: bool = False) -> dict[str, Filter]:
        """Copies of the filters; their buffers are emptied afterwards if asked for."""
        return copies_of(self.filters, flush_after=flush_after)

    def sync_filters(self, new_filters: Mapping[str, Filter]) -> None:
        """Take the statistics of others over; what is in the own buffers is learnt on top of them.

        Raises:
            AssertionError: a policy of this worker has none among them.
        """
        rebase_all(self.filters, new_filters)

    def get_weights(self, policies: Collection[str] | str | None = None, inference_only: bool = False) -> Weights:
        """Copies of weights by policy id and name.

        Args:
            policies: an id or several; None: all.
            inference_only: without effect.

        Raises:
            KeyError: an unknown id.
        """
        if inference_only:
            warn_of_no_effect("inference_only", "rows are post-processed in workers, for which all weights are needed")
        ids = self.policy_map if policies is None else _ids(policies)
        return {policy_id: self._policy(policy_id).get_weights() for policy_id in ids}

    def set_weights(
        self, weights: Any, global_vars: Mapping[str, Any] | None = None, weights_seq_no: int | None = None
    ) -> None:
        """Copy weights in, all or none.

        Args:
            weights: arrays or tensors by policy id and name; references of Ray are fetched. Those of policies that are
                not here are left out, and warned of once.
            global_vars: as for `set_global_vars`.
            weights_seq_no: their number; weights of the number that is here already are left out.

        Raises:
            ValueError: names or shapes that a policy does not have; the message lists them.
        """
        if weights_seq_no is None or weights_seq_no != self.weights_seq_no:
            self._copy_in(_fetched(weights))
            self.weights_seq_no = weights_seq_no
            self._changed()
        if global_vars is not None:
            self.set_global_vars(global_vars)

    def get_global_vars(self) -> dict[str, Any]:
        """A copy of what all workers know: `timestep`, `num_grad_updates_per_policy`."""
        return deepcopy(self.global_vars)

    def set_global_vars(self, global_vars: Mapping[str, Any], policy_ids: Iterable[str] | str | None = None) -> None:
        """Take numbers over, and give them to policies.

        Args:
            global_vars: added to what is known, as by `dict.update`.
            policy_ids: who gets them; None: those that learn.

        Raises:
            KeyError: an unknown id.
        """
        ids = sorted(self.get_policies_to_train()) if policy_ids is None else _ids(policy_ids)
        policies = {policy_id: self._policy(policy_id) for policy_id in ids}
        self.global_vars.update(deepcopy(dict(global_vars)))
        numbers = {name: value for name, value in self.global_vars.items() if name != UPDATES}
        for policy_id, policy in policies.items():
            updates = self.global_vars[UPDATES].get(policy_id)
            policy.on_global_var_update(numbers if updates is None else {**numbers, "num_grad_updates": updates})

    def get_state(self) -> dict[str, Any]:
        """What it takes to go on elsewhere; nothing changes by it."""
        return {
            "policy_ids": list(self.policy_map),
            "policy_states": {policy_id: policy.get_state() for policy_id, policy in self.policy_map.items()},
            "policy_mapping_fn": self.policy_mapping_fn,
            "is_policy_to_train": self.is_policy_to_train,
            "filters": self.get_filters(),
            "global_vars": self.get_global_vars(),
            "weights_seq_no": self.weights_seq_no,
            "policy_version": self.policy_version,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave; what is not in it stays. Policies that are missing here are added.

        Raises:
            Exception: what a policy or a filter raised that cannot take its part over; nothing is set.
        """
        with self._working(), ExitStack() as undoing:
            for policy_id, given in state.get("policy_states", {}).items():
                if (policy := self.policy_map.get(policy_id)) is None:
                    self._add(policy_id, _spec_of(given), None, given)
                    undoing.callback(self._forget, policy_id)
                else:
                    undoing.callback(policy.set_state, policy.get_state())
                    policy.set_state(given)
            for policy_id in state.get("filters", {}).keys() & self.filters.keys():
                own = self.filters[policy_id]
                undoing.callback(own.sync, own.copy())
                own.sync(state["filters"][policy_id])
            undoing.pop_all()  # nothing has raised
        self.global_vars.update(deepcopy(state.get("global_vars", {})))
        for name in ("policy_mapping_fn", "is_policy_to_train", "weights_seq_no", "policy_version"):
            setattr(self, name, state.get(name, getattr(self, name)))

    def _add(self, policy_id: str, spec: Any, policy: Any, state: Mapping[str, Any] | None) -> Any:
        """Take in a policy that is ready, or build one by a complete spec; all or nothing."""
        if policy_id in self.policy_map:
            raise KeyError(f"there is a policy {policy_id!r} already; remove_policy it first, or take another id")
        if self._on_ranks:
            way_out = "call teardown_torch_data_parallel() on each, add it there, and set the ranks up again"
            raise RuntimeError(f"policy {policy_id!r} cannot be added while policies learn on several ranks: {way_out}")
        given_space, is_plain = spec.observation_space, self.config["_disable_preprocessor_api"]
        preprocessor = (NoPreprocessor if is_plain else get_preprocessor(given_space))(given_space)
        space = preprocessor.observation_space
        # what the spec's config says otherwise; that of a policy's state, a dict, is of another worker
        given = spec.config if isinstance(spec.config, AlgorithmConfig) else self.config
        own = {name: given[name] for name in BY_POLICY if given[name] != self.config[name]}
        kept = get_filter(given["observation_filter"], map_nest(lambda leaf: leaf.shape, template_of(space)))
        made = policy
        if made is None:
            settings = given.to_dict() if given is spec.config else dict(spec.config or {})
            facts = {"worker_index": self.worker_index, "num_workers": self.config.num_env_runners}
            made = spec.policy_class(space, spec.action_space, {**settings, **facts, "__policy_id": policy_id})
        if state is not None:
            made.set_state(state)
        made.callbacks = self.callbacks
        if policy is None:
            self.callbacks.on_create_policy(policy_id=policy_id, policy=made)
        if getattr(made, "acts_in_space", False):
            own["normalize_actions"] = False
        self.policy_map[policy_id], self.policy_dict[policy_id], self._own[policy_id] = made, spec, own
        self.filters[policy_id], self.preprocessors[policy_id] = kept, preprocessor
        return made

    def _forget(self, policy_id: str) -> None:
        for held in (self.policy_map, self.policy_dict, self.filters, self.preprocessors):
            del held[policy_id]

    def _policy(self, policy_id: str) -> Any:
        """The policy of this id, or `KeyError`."""
        if policy_id not in self.policy_map:
            raise KeyError(f"there is no policy {policy_id!r}; there are {sorted(self.policy_map)}")
        return self.policy_map[policy_id]

    def _learns(self, policy_id: str, batch: Any = None) -> bool:
        return self.is_policy_to_train is None or bool(self.is_policy_to_train(policy_id, batch))

    def _arrange(self, mapping: Any, to_train: Any) -> None:
        """Have others act for agents in new episodes, and others learn; what is None stays. See `check_arrangement`."""
        check_arrangement(mapping, to_train)
        self.policy_mapping_fn = self.policy_mapping_fn if mapping is None else mapping
        self.is_policy_to_train = self.is_policy_to_train if to_train is None else is_policy_to_train(to_train)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """While the worker samples or learns: it draws from its own streams, if it is seeded.

        Raises:
            Closed: it was stopped.
        """
        if self.is_stopped:
            raise Closed(f"worker {self.worker_index} was stopped; build another one")
        with nullcontext() if self._streams is None else self._streams.swapped():
            yield

    def _changed(self) -> None:
        """Weights have changed."""
        self.policy_version = max(self.policy_version + 1, self.weights_seq_no or 0)

    def _copy_in(self, weights: Mapping[str, Any]) -> None:
        """Copy weights in, all or none; those of policies that are not here are left out, and warned of once."""
        for policy_id in sorted(weights.keys() - self.policy_map.keys() - self._unknown):
            self._unknown.add(policy_id)
            warn(f"set_weights was given weights of policy {policy_id!r}, which is not here; they are left out")
        known = [policy_id for policy_id in weights if policy_id in self.policy_map]
        before = self.get_weights(known) if len(known) > 1 else {}  # a single policy takes all or none itself
        try:
            for policy_id in known:
                self.policy_map[policy_id].set_weights(_fetched(weights[policy_id]))
        except BaseException:
            for policy_id, each in before.items():
                self.policy_map[policy_id].set_weights(each)
            raise

    def _setup(self, policies: dict[str, PolicySpec] | None = None) -> PolicySetup:
        """Complete specs of these policies, or of those of the config, and who learns."""
        raise NotImplementedError


def _ids(given: Iterable[str] | str) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _spec_of(state: Mapping[str, Any]) -> PolicySpec:
    """The spec in a policy's state, with observations as they are before preprocessing."""
    spec = PolicySpec.deserialize(state["policy_spec"])
    spec.observation_space = getattr(spec.observation_space, "original_space", spec.observation_space)
    return spec


def _fetched(value: Any) -> Any:
    """What a reference of Ray stands for, fetched; anything else itself."""
    if isinstance(value, Mapping) or type(value).__module__.partition(".")[0] != "ray":
        return value
    return sys.modules["ray"].get(value)
