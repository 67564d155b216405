"""One worker with its envs and policies: the face for users of RLlib's `RolloutWorker`."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any, Self

from swath.errors import Closed, note_source, warn, warn_of_no_effect
from swath.nearest import with_options
from swath.options import count, seconds
from swath.rollout.hosts.base import close_on_failure
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch, SampleBatch
from swath.rollout_workers.callbacks import DefaultCallbacks, callbacks_of
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.checks import flag, optional
from swath.rollout_workers.config.policy_spec import PolicySpec
from swath.rollout_workers.env_runner import EnvContext, EnvRunner
from swath.rollout_workers.filters import Filter, copy_filters, replace_statistics
from swath.rollout_workers.metrics import COUNTERS, RolloutMetrics
from swath.rollout_workers.parallel_iterator import ParallelIteratorWorker
from swath.rollout_workers.policies.learning import join_ranks, learn_in_passes, leave_ranks
from swath.rollout_workers.policies.torch import device_of
from swath.rollout_workers.processing import Preprocessor
from swath.rollout_workers.sampling.sampler import Sampler
from swath.rollout_workers.worker import policies
from swath.rollout_workers.worker.envs import Envs
from swath.rollout_workers.worker.policies import Batch, NewPolicy, Weights
from swath.rollout_workers.worker.setup import DatasetReader, RolloutOptions, Seeds, WorkerLog


class RolloutWorker(ParallelIteratorWorker, EnvRunner):
    """Steps its envs with its policies and hands out batches; works alone, in a `WorkerSet`, or as a Ray actor.

    ```python
    worker = RolloutWorker(
        env_creator=lambda context: gym.make("CartPole-v1"),
        default_policy_class=PPOTorchPolicy,
        config=AlgorithmConfig().env_runners(num_envs_per_env_runner=8, rollout_fragment_length=200),
    )
    with worker:
        batch = worker.sample()
    ```

    Used by one thread at a time; others may call only `ping`, `get_host`, `get_node_ip`, `lock` and `unlock`.

    Args:
        env_creator: makes an env of an `EnvContext`; called once per sub-env. None: a worker without env.
        validate_env: `f(env, EnvContext)`, called with every sub-env that is made; refuses by raising.
        config: an `AlgorithmConfig`, a dict, or None for defaults; copied.
        worker_index: 0 is the local worker, others are members of a set.
        num_workers: remote workers of the set; None: as the config says.
        recreated_worker: it replaces one that was lost; a number says which of its lives it is, from 0.
        log_dir: where it may write; None: it writes nothing.
        spaces: `(observation_space, action_space)` by policy id, and of the env under `"__env__"`.
        default_policy_class: the class of policies whose spec has none.
        dataset_shards: with `input_="dataset"` the rows, by worker.
        tf_session_creator: only -1 or None.

    Attributes:
        config: the worker's settings.
        policy_map: the policies by id.
        policy_dict: complete specs by policy id.
        filters: of processed observations, by policy id.
        preprocessors: of observations, by policy id.
        policy_mapping_fn: which policy acts for an agent of a new episode.
        is_policy_to_train: `f(policy_id, batch) -> bool`; None: all learn.
        is_stopped: whether it was stopped.
        policy_version: the worker's number of its weights: 0, then higher with each change.
        weights_seq_no: the number last given with weights; None if there was none.
        global_vars: what all workers know.

    Raises:
        ValueError: an argument or setting that is not served, or does not fit the env.
        TypeError: the creator returns an object that is no env.
        Exception: what the creator, the check, a policy's class or a callback raised; everything built is closed.
    """

    is_policy_to_train: Callable[..., bool] | None = None
    policy_version = 0
    weights_seq_no: int | None = None
    learns_on_ranks = is_stopped = False
    sampler: Sampler | None = None

    @with_options(RolloutOptions)
    def __init__(self, options: RolloutOptions) -> None:
        self._options, self._lock = options, threading.Lock()
        self.config = config = AlgorithmConfig.of(options.config)
        config.validate()
        # not a generator, which would be over when `sample` has raised
        super().__init__(lambda: iter(self.sample, None), repeat=False)
        self.worker_index = int(options.worker_index)
        if options.num_workers is not None:
            self.num_workers = options.num_workers
        self.env_creator, self.default_policy_class = options.env_creator, options.default_policy_class
        self.life, self.recreated_worker = int(options.recreated_worker), bool(options.recreated_worker)
        self.policy_map: dict[str, Any] = {}
        self.policy_dict: dict[str, PolicySpec] = {}
        self.filters: dict[str, Filter] = {}
        self.preprocessors: dict[str, Preprocessor] = {}
        self.policy_overrides: dict[str, dict[str, Any]] = {}
        self.policy_mapping_fn = config.policy_mapping_fn
        self.global_vars: dict[str, Any] = {policies.TIMESTEP: 0, policies.UPDATES: {}}
        self.last_batch: Batch | None = None
        self.envs: Envs | None = None
        variables = config[f"extra_python_environs_for_{'worker' if self.worker_index else 'driver'}"]
        os.environ.update({str(name): str(value) for name, value in variables.items()})
        self.callbacks: DefaultCallbacks = callbacks_of(config)
        self.env_context = EnvContext(
            config.env_config, self.worker_index, num_workers=self.num_workers, recreated_worker=self.recreated_worker
        )
        shard = options.shard(config)
        self._reader = None if shard is None else DatasetReader(shard)
        self.seeds = None
        if config.seed is not None:
            self.seeds = Seeds(config.seed, self.worker_index, self.life, config.in_evaluation)
        device = device_of({**config.to_dict(), "worker_index": self.worker_index})
        self._streams = None if self.seeds is None else self.seeds.streams(device)
        self._log = WorkerLog(options.log_dir, f"worker_{self.worker_index}.log", config.log_level)
        self._build()
        global _newest  # noqa: PLW0603  the worker that this process has built last
        _newest = weakref.ref(self)

    @property
    def num_workers(self) -> int:
        """Return the number of remote workers of the set, also in `config`; `"auto"` fragments are shares of it."""
        return self.config.num_env_runners

    @num_workers.setter
    def num_workers(self, number: int) -> None:
        self.config.num_env_runners = count("num_workers", number, minimum=0)

    @property
    def seed(self) -> int | None:
        """Return the worker's seed: the config's on worker 0; None if nothing is seeded."""
        return None if self.seeds is None else self.seeds.worker_seed

    @property
    def env(self) -> Any:
        """Return sub-env 0 as the creator made it, or the vector env; None without env."""
        return None if self.envs is None else self.envs.first

    @property
    def async_env(self) -> Any:
        """Return the view of all envs; None without env."""
        return self.envs

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Return `(observation_space, action_space)` by policy id, before preprocessing; the env's under `"__env__"`.

        If each agent of the env has its own space, the env's spaces are dicts by agent.
        """
        specs = self.policy_dict.items()
        spaces = {policy_id: (spec.observation_space, spec.action_space) for policy_id, spec in specs}
        env = (self._options.spaces or {}).get("__env__")
        if self.envs is not None:
            env = self.envs.observation_space, self.envs.action_space
        return spaces if env is None else {**spaces, "__env__": env}

    spaces = property(get_spaces)

    def foreach_env(self, func: Callable[[Any], Any]) -> list[Any]:
        """Return `func(sub_env)` for each sub-env, in its process, or for the vector env if it shows none."""
        return [] if self.envs is None else self.envs.map(func)

    def foreach_env_with_context(self, func: Callable[[Any, EnvContext], Any]) -> list[Any]:
        """Return `func(sub_env, context)` for each sub-env; the context's `vector_index` is the sub-env's number."""
        return [] if self.envs is None else self.envs.map(func, with_contexts=True)

    def assert_healthy(self) -> None:
        """Raise `AssertionError` if the worker was stopped, or has no policy."""
        assert not self.is_stopped, f"worker {self.worker_index} was stopped"
        assert self.policy_map, f"worker {self.worker_index} has no policy"

    def sample(self, *, explore: bool | None = None, force_reset: bool = False) -> Batch:
        """Sample a batch: fragments of all sub-envs in order, or whole episodes.

        Args:
            explore: sample actions, or take the best; None: as `explore` in the settings of each policy says.
            force_reset: begin new episodes in all sub-envs first; the running ones are given up, and counted.

        Returns:
            A `SampleBatch` if `"default_policy"` is the only policy, and has rows; else a `MultiAgentBatch`.

        Raises:
            ValueError: the worker has neither envs nor a dataset; `explore` is neither yes nor no.
            Closed: it was stopped.
            Exception: what an env, a policy, a filter or a callback raised, as its own type with a note; the next call
                goes on.
        """
        explore = optional(flag)("explore", explore)
        with self._use_streams():
            if not self.config.fake_sampler:
                return self._sample(explore, force_reset=force_reset)
            if self.last_batch is None:
                self.last_batch = self._sample(explore, force_reset=force_reset)
            return self.last_batch.copy()

    def sample_with_count(self) -> tuple[Batch, int]:
        """Return `sample()` and the number of its env steps; two references if called as a Ray actor's task."""
        batch = self.sample()
        return batch, batch.env_steps()

    sample_with_count.__ray_num_returns__ = 2  # type: ignore[attr-defined]

    def learn_on_batch(self, samples: Batch) -> dict[str, Any]:
        """Update each policy that learns and has rows in the batch, which stays unchanged.

        Returns:
            What each policy reports, by id.

        Raises:
            WorkerLate: another rank that learns with this one has not come in time.
            Exception: what a policy's loss or a callback raised.
        """
        return self._update(samples, lambda policy, batch: policy.learn_on_batch(batch))

    def sample_and_learn(
        self,
        expected_batch_size: int,
        num_sgd_iter: int | None = None,
        sgd_minibatch_size: int | None = None,
        standardize_fields: Sequence[str] = (),
    ) -> tuple[dict[str, Any], int]:
        """Sample once, and update each policy that learns with shuffled minibatches of its rows.

        Args:
            expected_batch_size: env steps of the batch.
            num_sgd_iter: passes; None: `config.num_epochs`.
            sgd_minibatch_size: rows of an update, the last of a pass may have fewer; None: `config.minibatch_size`; 0:
                all rows.
            standardize_fields: columns that are brought to mean 0 and standard deviation 1 first, in a copy.

        Returns:
            By policy id the mean of what its updates of the last pass reported; and the env steps.

        Raises:
            AssertionError: the batch is from another number of env steps.
            WorkerLate: another rank that learns with this one has not come in time.
            Exception: what `sample` or learning raised.
        """
        epochs = count("num_sgd_iter", self.config.num_epochs if num_sgd_iter is None else num_sgd_iter)
        size = self.config.minibatch_size if sgd_minibatch_size is None else sgd_minibatch_size
        size = None if size is None else count("sgd_minibatch_size", size, minimum=0) or None
        batch = self.sample()
        steps = batch.env_steps()
        if steps != expected_batch_size:
            raise AssertionError(f"expected_batch_size={expected_batch_size}, but the batch is from {steps} env steps")
        return self._update(batch, partial(learn_in_passes, epochs=epochs, size=size, fields=standardize_fields)), steps

    def compute_gradients(self, samples: Batch, single_agent: bool | None = None) -> tuple[Any, dict[str, Any]]:
        """Compute gradients of the policies that learn; the weights stay unchanged.

        Args:
            samples: the batch.
            single_agent: return the gradients and the info of `"default_policy"` alone.

        Returns:
            Gradients by policy id, and infos with the `batch_count`.

        Raises:
            ValueError: `single_agent`, but the batch is of other policies.
        """
        with self._use_streams():
            batches = policies.batches_to_learn(self, samples, single_agent=bool(single_agent))
            results = {policy_id: policy.compute_gradients(batch) for policy_id, policy, batch in batches}
        if single_agent:
            gradients, info = results[DEFAULT_POLICY_ID]
            return gradients, info
        infos = {policy_id: info for policy_id, (_, info) in results.items()}
        return {policy_id: grads for policy_id, (grads, _) in results.items()}, {**infos, "batch_count": samples.count}

    def apply_gradients(self, grads: Any) -> None:
        """Apply gradients by policy id, or of `"default_policy"` alone; policies that do not learn stay unchanged.

        Raises:
            KeyError: an unknown id.
            ValueError: gradients that do not fit; nothing is applied.
            FloatingPointError: gradients that are not finite; nothing is applied.
        """
        with self._use_streams():
            if policies.apply_gradients(self, grads):
                self._count_weight_change()

    def setup_torch_data_parallel(
        self, url: str, world_rank: int, world_size: int, backend: str, *, timeout_s: float = 300.0
    ) -> None:
        """Join several ranks, which start with the weights of rank 0 and average their gradients from then on.

        If one rank raises while it samples or learns, the others wait for it until `timeout_s` is over.

        Args:
            url: where the ranks meet, such as `tcp://host:port`.
            world_rank: 0 … `world_size` - 1.
            world_size: number of ranks.
            backend: "gloo" or "nccl".
            timeout_s: how long a rank waits for the others, here and whenever they learn; then it raises `WorkerLate`,
                whose message names them, and the group has to be set up again.

        Raises:
            RuntimeError: the worker is in a group already.
            ValueError: an argument out of range, a policy that is not torch, or policies that differ from the other
                ranks'.
        """
        with self._use_streams():
            join_ranks(self.policy_map, url, world_rank, world_size, backend, timeout_s)
        self.learns_on_ranks = True
        self._count_weight_change()

    def teardown_torch_data_parallel(self) -> None:
        """Leave the ranks and learn alone again; do nothing outside a group."""
        if self.learns_on_ranks:
            leave_ranks(self.policy_map)
            self.learns_on_ranks = False

    def policy_setting(self, policy_id: str, name: str) -> Any:
        """Return the policy's own value of a setting, or the worker's."""
        return self.policy_overrides[policy_id].get(name, self.config[name])

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Any:
        """Return the policy of this id, or None."""
        return self.policy_map.get(policy_id)

    @with_options(NewPolicy)
    def add_policy(self, new: NewPolicy) -> Any:  # noqa: D417  its fields are the arguments
        """Add a policy, all or nothing.

        Args:
            policy_id: a new one.
            policy_cls: its class; or
            policy: the policy object, used unchanged.
            observation_space: before preprocessing; None: found as for policies of the config.
            action_space: None: found as for policies of the config.
            config: overrides of the worker's settings, or a whole config.
            policy_state: set right after the policy is built.
            policy_mapping_fn: another mapping, for new episodes.
            policies_to_train: which policies learn from now on.
            module_spec: not served.

        Raises:
            KeyError: the id is taken.
            ValueError: not exactly one of class and object; a `module_spec`; no spaces.
            TypeError: a class that cannot be called, or a class in place of an object.
            RuntimeError: the worker is one of several ranks: the others would not have the policy.
        """
        setup, _ = policies.complete_specs(self, self._options.spaces, {new.policy_id: new.spec})
        with self._use_streams():
            built = policies.build_policy(self, new.policy_id, setup[new.policy_id], new.policy, new.policy_state)
        policies.set_policy_functions(self, new.policy_mapping_fn, new.policies_to_train)
        return built

    def remove_policy(
        self,
        *,
        policy_id: str = DEFAULT_POLICY_ID,
        policy_mapping_fn: Callable[..., str] | None = None,
        policies_to_train: Collection[str] | Callable[..., bool] | None = None,
    ) -> None:
        """Remove a policy; its agents keep it until their episodes end. Raise `ValueError` for an unknown id."""
        if policy_id not in self.policy_map:
            raise ValueError(f"there is no policy {policy_id!r}; there are {sorted(self.policy_map)}")
        policies.set_policy_functions(self, policy_mapping_fn, policies_to_train)
        policies.forget_policy(self, policy_id)

    def for_policy(self, func: Callable[..., Any], policy_id: str = DEFAULT_POLICY_ID, **kwargs: Any) -> Any:
        """Return `func(policy, **kwargs)`; raise `KeyError` if there is no policy of this id."""
        return func(policies.require_policy(self, policy_id), **kwargs)

    def foreach_policy(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """Return `func(policy, policy_id, **kwargs)` for each policy."""
        return [func(policy, policy_id, **kwargs) for policy_id, policy in list(self.policy_map.items())]

    def foreach_policy_to_train(self, func: Callable[..., Any], **kwargs: Any) -> list[Any]:
        """Return `func(policy, policy_id, **kwargs)` for each policy that learns."""
        learning = [policy_id for policy_id in self.policy_map if policies.learns(self, policy_id)]
        return [func(self.policy_map[policy_id], policy_id, **kwargs) for policy_id in learning]

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Set the mapping of agents to policies for new episodes; raise `ValueError` if it cannot be called."""
        policies.set_policy_functions(self, policy_mapping_fn, None)

    def set_is_policy_to_train(self, is_policy_to_train: Collection[str] | Callable[..., bool]) -> None:
        """Set which policies learn; raise `TypeError` for anything but a list, set or tuple of ids, or a function."""
        if is_policy_to_train is None:
            raise TypeError("is_policy_to_train=None: give a list, set or tuple of policy ids, or a function")
        policies.set_policy_functions(self, None, is_policy_to_train)

    def get_policies_to_train(self, batch: Any = None) -> set[str]:
        """Return the ids of policies that learn."""
        return {policy_id for policy_id in self.policy_map if policies.learns(self, policy_id, batch)}

    def get_filters(self, flush_after: bool = False) -> dict[str, Filter]:
        """Return copies of the filters; empty their buffers afterwards if `flush_after`."""
        return copy_filters(self.filters, flush_after=flush_after)

    def sync_filters(self, new_filters: Mapping[str, Filter]) -> None:
        """Replace the filters' statistics, and add the buffers; raise `AssertionError` if a policy has no filter."""
        replace_statistics(self.filters, new_filters)

    def get_weights(self, policies: Collection[str] | str | None = None, inference_only: bool = False) -> Weights:
        """Return copies of weights by policy id and name.

        Args:
            policies: an id or several; None: all.
            inference_only: without effect.

        Raises:
            KeyError: an unknown id.
        """
        if inference_only:
            warn_of_no_effect("inference_only", "rows are post-processed in workers, for which all weights are needed")
        ids = [policies] if isinstance(policies, str) else self.policy_map if policies is None else policies
        return {policy_id: self.for_policy(lambda policy: policy.get_weights(), policy_id) for policy_id in ids}

    def set_weights(
        self, weights: Any, global_vars: Mapping[str, Any] | None = None, weights_seq_no: int | None = None
    ) -> None:
        """Copy weights into the policies, all or none.

        Args:
            weights: arrays or tensors by policy id and name; references of Ray are fetched. Weights of unknown policies
                are unused, and warned of once.
            global_vars: as for `set_global_vars`.
            weights_seq_no: their number; weights with the present number are skipped.

        Raises:
            ValueError: names or shapes that a policy does not have; the message lists them.
        """
        if weights_seq_no is None or weights_seq_no != self.weights_seq_no:
            policies.copy_weights(self, weights)
            self.weights_seq_no = weights_seq_no
            self._count_weight_change()
        if global_vars is not None:
            self.set_global_vars(global_vars)

    def get_global_vars(self) -> dict[str, Any]:
        """Return a copy of the variables of all workers: `timestep`, `num_grad_updates_per_policy`."""
        return deepcopy(self.global_vars)

    def set_global_vars(self, global_vars: Mapping[str, Any], policy_ids: Iterable[str] | str | None = None) -> None:
        """Update the numbers that all workers know, and give them to policies.

        Args:
            global_vars: added to the present ones, as by `dict.update`.
            policy_ids: which policies get them; None: the policies that learn.

        Raises:
            KeyError: an unknown id.
        """
        ids = sorted(self.get_policies_to_train()) if policy_ids is None else policy_ids
        policies.give_global_vars(self, global_vars, [ids] if isinstance(ids, str) else ids)

    def get_state(self) -> dict[str, Any]:
        """Return the state from which another worker can continue; nothing changes by it."""
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
        """Restore a state of `get_state`; add missing policies. Nothing changes if a policy or filter raises."""
        with self._use_streams():
            policies.restore_policies(self, state)
        for name in ("policy_mapping_fn", "is_policy_to_train", "weights_seq_no", "policy_version"):
            setattr(self, name, state.get(name, getattr(self, name)))

    def get_metrics(self) -> list[RolloutMetrics]:
        """Return the metrics of episodes that ended since the last call."""
        return [] if self.envs is None else self.envs.log.drain()

    @property
    def counters(self) -> dict[str, int]:
        """Return the numbers of steps and episodes that were sampled and discarded, and of sub-env restarts."""
        if self.envs is None:
            return dict.fromkeys((*COUNTERS, "sub_env_restarts"), 0)
        return {**self.envs.counts, "sub_env_restarts": self.envs.failures.n_restarts}

    @property
    def total_rollout_fragment_length(self) -> int:
        """Return the steps of a fragment times the number of sub-envs."""
        length = self.config.get_rollout_fragment_length(self.worker_index)
        return length * self.config.num_envs_per_env_runner

    def lock(self, timeout_s: float = 600.0) -> None:
        """Acquire the lock that callers may agree on, or raise `TimeoutError`; no method of the worker takes it."""
        if not self._lock.acquire(timeout=seconds("timeout_s", timeout_s)):
            raise TimeoutError(f"the lock of worker {self.worker_index} was not free within {timeout_s} s")

    def unlock(self) -> None:
        """Release the lock; raise `RuntimeError` if it is free."""
        self._lock.release()

    def creation_args(self) -> dict[str, Any]:
        """Return all arguments of the constructor; they build the same worker again."""
        return {**vars(self._options), "config": self.config.copy(), "num_workers": self.num_workers}

    def stop(self) -> None:
        """Close envs and policies; warn of an env that raises when it is closed. A second call does nothing."""
        if self.is_stopped:
            return
        self.is_stopped = True
        self.teardown_torch_data_parallel()
        self._log.close()
        if self.envs is not None:
            try:
                self.envs.host.close()
            except Exception as error:  # noqa: BLE001  the worker is stopped in any case
                warn(f"an env of worker {self.worker_index} raised when it was closed: {error!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if not hasattr(self, "env_context"):  # Ray asks for it also when building has failed
            return "<RolloutWorker that was not built>"
        n_envs = 0 if self.envs is None else self.envs.num_envs
        place = f"{self.worker_index}/{self.num_workers}"
        steps = f"{self.counters['env_steps_sampled']:,} env steps, version {self.policy_version}"
        return f"<RolloutWorker {place}: {n_envs} envs, {len(self.policy_map)} policies; {steps}>"

    def _build(self) -> None:
        """Build the envs, then the policies; close everything if one of them fails."""
        config, resources = self.config, list[Any]([self._log])
        samples = self.worker_index > 0 or self.num_workers == 0
        has_env = samples or config.create_local_env_runner or config.create_env_on_local_worker
        with self._use_streams(), close_on_failure(resources):
            if self.env_creator is not None and has_env:
                envs = Envs(self, self._options.validate_env)
                self.envs = None if envs.is_empty else envs
            if self.envs is not None:
                resources.append(self.envs.host)
            setup, self.is_policy_to_train = policies.complete_specs(self, self._options.spaces)
            for policy_id, spec in setup.items():
                policies.build_policy(self, policy_id, spec, None, None)
            if self.envs is not None:
                self.sampler = Sampler(self.envs, self._complete)

    @contextmanager
    def _use_streams(self) -> Iterator[None]:
        """Draw from the worker's own random streams in the block; raise `Closed` if the worker was stopped."""
        if self.is_stopped:
            raise Closed(f"worker {self.worker_index} was stopped; build another one")
        with nullcontext() if self._streams is None else self._streams.activate():
            yield

    def _count_weight_change(self) -> None:
        self.policy_version = max(self.policy_version + 1, self.weights_seq_no or 0)

    def _update(self, samples: Batch, update: Callable[[Any, SampleBatch], Any]) -> dict[str, Any]:
        """Return `update(policy, batch)` for each policy that learns; the version grows even if one raises."""
        with self._use_streams():
            batches = policies.batches_to_learn(self, samples)
            try:
                return {policy_id: update(policy, batch) for policy_id, policy, batch in batches}
            finally:
                if batches:
                    self._count_weight_change()

    def _sample(self, explore: bool | None, *, force_reset: bool) -> Batch:
        if self._reader is not None:
            rows = self._reader.next(self.total_rollout_fragment_length)
            return self._complete({DEFAULT_POLICY_ID: rows}, rows.count)
        if self.sampler is None:
            advice = "set create_env_on_local_worker=True or create_local_env_runner=True, or give an env_creator"
            raise ValueError(f"worker {self.worker_index} has no env to sample from; {advice}")
        with note_source(f"worker {self.worker_index}, which sampled (policy version {self.policy_version})"):
            return self.sampler.sample(explore, force_reset=force_reset)

    def _complete(self, batches: dict[str, SampleBatch], env_steps: int) -> Batch:
        """Return the batch to hand out, after callbacks have seen it."""
        is_plain = set(batches) == set(self.policy_map) == {DEFAULT_POLICY_ID}
        batch = (MultiAgentBatch.wrap_as_needed if is_plain else MultiAgentBatch)(batches, env_steps)
        self.callbacks.on_sample_end(worker=self, env_runner=self, samples=batch)
        return batch


def get_global_worker() -> RolloutWorker | None:
    """Return the worker that this process has built last, if it lives and was not stopped."""
    worker = None if _newest is None else _newest()
    return None if worker is None or worker.is_stopped else worker


_newest: weakref.ref[RolloutWorker] | None = None
