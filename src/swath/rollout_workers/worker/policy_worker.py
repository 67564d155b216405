"""What a worker does with its policies, whether it has envs or not: the first half of `RolloutWorker`'s methods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from swath.errors import Closed
from swath.options import count
from swath.rollout.seeding import PrivateStreams
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.policy_spec import PolicySpec
from swath.rollout_workers.env_runner import EnvRunner
from swath.rollout_workers.filters.base import Filter
from swath.rollout_workers.filters.sharing import copies_of, rebase_all
from swath.rollout_workers.policies.epochs import learn_in_passes
from swath.rollout_workers.preprocessors import Preprocessor
from swath.rollout_workers.worker.learning import Batch, Learning
from swath.rollout_workers.worker.policies import Policies, require_addable, spaces_of
from swath.rollout_workers.worker.weights import PolicyWeights, Weights


class PolicyWorker(EnvRunner):
    """Has policies with weights, filters and preprocessors, and lets them learn.

    Attributes:
        config: the worker's settings.
        worker_index: 0 is the local worker.
    """

    config: AlgorithmConfig
    worker_index: int
    _policies: Policies
    _weights: PolicyWeights
    _learning: Learning
    _streams: PrivateStreams | None
    _closed: bool

    @property
    def policy_map(self) -> dict[str, Any]:
        """The policies by id."""
        return self._policies.map

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
            RuntimeError: the worker is one of several ranks: the others would not have the policy.
        """
        require_addable(policy_cls, policy, module_spec)
        spec = PolicySpec(policy_cls, observation_space, action_space, config)
        if policy is not None:
            spec = PolicySpec(type(policy), *spaces_of(policy, observation_space, action_space), config)
        setup, _ = self.config.get_multi_agent_setup(policies={policy_id: spec}, **self._sources())
        policies = self._policies
        changes = policies.with_changes(policy_mapping_fn, policies_to_train)
        with self._drawing():
            made = policies.add(policy_id, setup[policy_id], policy, policy_state)
        policies.mapping, policies.to_train = changes
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
        policies = self._policies
        changes = policies.with_changes(policy_mapping_fn, policies_to_train)
        policies.remove(policy_id)
        policies.mapping, policies.to_train = changes

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
        self._policies.mapping, _ = self._policies.with_changes(policy_mapping_fn, None)

    def set_is_policy_to_train(self, is_policy_to_train: Collection[str] | Callable[..., bool]) -> None:
        """Other policies learn.

        Raises:
            TypeError: it is no list, set or tuple of ids, and no function; the old one stays.
        """
        if is_policy_to_train is None:
            raise TypeError("is_policy_to_train=None: give a list, set or tuple of policy ids, or a function")
        _, self._policies.to_train = self._policies.with_changes(None, is_policy_to_train)

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

    @property
    def weights_seq_no(self) -> int | None:
        """The number last given with weights; None if none was."""
        return self._weights.seq_no

    @property
    def policy_version(self) -> int:
        """Own number of the weights: 0, then higher with each change."""
        return self._weights.version

    @property
    def global_vars(self) -> dict[str, Any]:
        """What all workers know."""
        return self._weights.global_vars

    def get_weights(self, policies: Collection[str] | str | None = None, inference_only: bool = False) -> Weights:
        """Copies of weights by policy id and name.

        Args:
            policies: an id or several; None: all.
            inference_only: without effect.

        Raises:
            KeyError: an unknown id.
        """
        return self._weights.get(policies, inference_only=inference_only)

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
        self._weights.set(weights, weights_seq_no)
        if global_vars is not None:
            self.set_global_vars(global_vars)

    def get_global_vars(self) -> dict[str, Any]:
        """A copy of what all workers know: `timestep`, `num_grad_updates_per_policy`."""
        return deepcopy(self._weights.global_vars)

    def set_global_vars(self, global_vars: Mapping[str, Any], policy_ids: Iterable[str] | str | None = None) -> None:
        """Take numbers over, and give them to policies.

        Args:
            global_vars: added to what is known, as by `dict.update`.
            policy_ids: who gets them; None: those that learn.

        Raises:
            KeyError: an unknown id.
        """
        self._weights.set_global_vars(global_vars, policy_ids)

    def get_state(self) -> dict[str, Any]:
        """What it takes to go on elsewhere; nothing changes by it."""
        return self._weights.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave; what is not in it stays. Policies that are missing here are added."""
        with self._drawing():
            self._weights.set_state(state)

    def learn_on_batch(self, samples: Batch) -> dict[str, Any]:
        """One update of each policy that learns and has rows in the batch, which stays as it is.

        Returns:
            What each reports, by policy id.

        Raises:
            WorkerLate: another of the ranks that learn as one has not come in time.
            Exception: what a policy's loss or a callback raised.
        """
        self._require_open("learn_on_batch")
        with self._drawing():
            return self._learning.update(samples, lambda policy, batch: policy.learn_on_batch(batch))

    def sample_and_learn(
        self,
        expected_batch_size: int,
        num_sgd_iter: int | None = None,
        sgd_minibatch_size: int | None = None,
        standardize_fields: Sequence[str] = (),
    ) -> tuple[dict[str, Any], int]:
        """Sample once, and let each policy that learns go through its rows in shuffled minibatches.

        Args:
            expected_batch_size: env steps that the batch must be from.
            num_sgd_iter: passes; None: `config.num_epochs`.
            sgd_minibatch_size: rows of an update, the last one of a pass may have fewer; None:
                `config.minibatch_size`; 0: all rows.
            standardize_fields: columns that are brought to mean 0 and standard deviation 1 first, in a copy.

        Returns:
            By policy id the mean of what its updates of the last pass reported; and the env steps.

        Raises:
            AssertionError: the batch is from another number of env steps.
            WorkerLate: another of the ranks that learn as one has not come in time.
            Exception: what `sample` or learning raised.
        """
        self._require_open("sample_and_learn")
        epochs = count("num_sgd_iter", self.config.num_epochs if num_sgd_iter is None else num_sgd_iter)
        given = self.config.minibatch_size if sgd_minibatch_size is None else sgd_minibatch_size
        size = None if given is None else count("sgd_minibatch_size", given, least=0) or None
        batch = self.sample()
        steps = batch.env_steps()
        if steps != expected_batch_size:
            raise AssertionError(f"expected_batch_size={expected_batch_size}, but the batch is from {steps} env steps")
        with self._drawing():
            info = self._learning.update(
                batch, lambda policy, rows: learn_in_passes(policy, rows, epochs, size, standardize_fields)
            )
        return info, steps

    def compute_gradients(self, samples: Batch, single_agent: bool | None = None) -> tuple[Any, dict[str, Any]]:
        """Gradients of the policies that learn; weights stay.

        Args:
            samples: the batch.
            single_agent: answer with the gradients and the info of `"default_policy"` alone.

        Returns:
            Gradients by policy id, and infos with the `batch_count`.

        Raises:
            ValueError: `single_agent`, but the batch is of other policies.
        """
        self._require_open("compute_gradients")
        with self._drawing():
            if single_agent:
                return self._learning.gradients_of_one(samples)
            chosen = self._learning.chosen(samples)
            made = {policy_id: policy.compute_gradients(batch) for policy_id, policy, batch in chosen}
        infos = {policy_id: info for policy_id, (_, info) in made.items()}
        return {policy_id: grads for policy_id, (grads, _) in made.items()}, {**infos, "batch_count": samples.count}

    def apply_gradients(self, grads: Any) -> None:
        """One step by gradients: by policy id, or those of `"default_policy"`.

        Raises:
            KeyError: an unknown id.
            ValueError: gradients that do not fit; nothing is applied.
            FloatingPointError: gradients that are not finite; nothing is applied.
        """
        self._require_open("apply_gradients")
        self._learning.apply(grads)

    def setup_torch_data_parallel(
        self, url: str, world_rank: int, world_size: int, backend: str, *, timeout_s: float = 300.0
    ) -> None:
        """Be one of several ranks, who begin with the weights of rank 0 and average their gradients from then on.

        If one rank raises while it samples or learns, the others wait for it until `timeout_s` is over.

        Args:
            url: where they meet, such as `tcp://host:port`.
            world_rank: 0 … `world_size` - 1.
            world_size: how many they are.
            backend: "gloo" or "nccl".
            timeout_s: how long one waits for the others, here and whenever they learn; then it raises `WorkerLate`,
                whose message names them, and the group has to be set up anew.

        Raises:
            RuntimeError: it is one already.
            ValueError: an argument out of range, a policy that is not torch, or others than those of the other ranks.
        """
        self._require_open("setup_torch_data_parallel")
        self._learning.join(url, world_rank, world_size, backend, timeout_s)

    def teardown_torch_data_parallel(self) -> None:
        """Learn alone again; nothing happens if it does."""
        self._learning.leave()

    def _sources(self) -> dict[str, Any]:
        """Where `get_multi_agent_setup` looks for what specs leave empty."""
        raise NotImplementedError

    def _require_open(self, what: str) -> None:
        """Raise `Closed` if the worker was stopped."""
        if self._closed:
            raise Closed(f"{what}() of worker {self.worker_index}, which was stopped; build another worker")

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """While the worker draws: from its own streams, if it is seeded."""
        if self._streams is None:
            yield
            return
        with self._streams.swapped():
            yield
