"""The arguments of `RolloutWorker` and of `add_policy`, frozen values that check themselves; and rows of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swath.options import count
from swath.rollout_workers.batches.sample_batch import SampleBatch, concat
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.policy_spec import PolicySpec, is_policy_to_train
from swath.rollout_workers.env_runner import EnvContext

BY_POLICY = ("explore", "normalize_actions", "clip_actions", "clip_rewards", "observation_filter")
"""Settings of what a worker does for a policy: the config in a policy's spec may have others than the worker's."""

_OF_ITS_WORKER = ("worker_index", "num_workers", "__policy_id", *BY_POLICY)
"""What is in a policy's config beside its own settings."""


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """What `RolloutWorker` takes; what each argument means stands there.

    Raises:
        ValueError: a session creator, or an index that is none.
    """

    env_creator: Callable[[EnvContext], Any] | None = None
    validate_env: Callable[[Any, EnvContext], Any] | None = None
    config: AlgorithmConfig | Mapping[str, Any] | None = None
    worker_index: int = 0
    num_workers: int | None = None
    recreated_worker: int = False
    log_dir: str | None = None
    spaces: Mapping[str, Any] | None = None
    default_policy_class: type | None = None
    dataset_shards: Any = None
    tf_session_creator: Any = -1

    def __post_init__(self) -> None:
        count("worker_index", self.worker_index, least=0)
        if self.tf_session_creator not in (-1, None):
            raise ValueError(f"tf_session_creator={self.tf_session_creator!r} is not served: policies are torch only")

    def shard(self, config: AlgorithmConfig) -> Any:
        """The worker's shard of the dataset; None if rows come from envs.

        Raises:
            ValueError: shards that nobody reads, or none where there must be one.
        """
        shards, index = self.dataset_shards, self.worker_index
        if (config.input_ == "dataset") != (shards is not None and index < len(shards)):
            n = "none" if shards is None else len(shards)
            raise ValueError(f"input_={config.input_!r}: 'dataset' reads dataset_shards[{index}]; there are {n} shards")
        return None if shards is None else shards[index]


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


class DatasetReader:
    """Hands out rows of a shard, over and over.

    Args:
        shard: an iterable of `SampleBatch` or dicts of columns; or what has `iter_batches`, as Ray's datasets.
    """

    def __init__(self, shard: Any) -> None:
        self._shard, self._left = shard, SampleBatch()
        self._parts: Iterator[SampleBatch] = iter(())

    def next(self, n_rows: int) -> SampleBatch:
        """The next rows, so many.

        Raises:
            ValueError: the shard has none.
        """
        is_new = False
        while self._left.count < n_rows:
            part = next(self._parts, None)
            if part is None and is_new:
                raise ValueError(f"the dataset shard {self._shard!r} has no rows")
            if part is None:
                self._parts, is_new = self._pass(n_rows), True
            elif part.count:
                self._left, is_new = concat([self._left, part]), False
        rows, self._left = self._left[:n_rows].copy(), self._left[n_rows:]
        return rows

    def _pass(self, n_rows: int) -> Iterator[SampleBatch]:
        parts = self._shard
        if hasattr(parts, "iter_batches"):
            parts = parts.iter_batches(batch_size=n_rows, batch_format="numpy")
        return (part if isinstance(part, SampleBatch) else SampleBatch(part) for part in parts)
