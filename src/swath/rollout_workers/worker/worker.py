"""One worker with its envs and policies: the face for users of RLlib's `RolloutWorker`."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Self

from swath.errors import warn
from swath.nearest import spelled
from swath.options import count
from swath.rollout.episodes.ids import LIFE_BITS, WORKER_BITS
from swath.rollout.hosts.base import closed_on_failure
from swath.rollout_workers.callbacks import DefaultCallbacks, callbacks_of
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.env_context import EnvContext
from swath.rollout_workers.env_runner import EnvRunner
from swath.rollout_workers.metrics import MetricsLog
from swath.rollout_workers.parallel_iterator import ParallelIteratorWorker
from swath.rollout_workers.perf_stats import PerfStats
from swath.rollout_workers.sampling.chunks import UnrollIds
from swath.rollout_workers.worker.agent_envs import made_envs
from swath.rollout_workers.worker.arguments import WorkerLog, config_of, set_environment
from swath.rollout_workers.worker.dataset import DatasetReader, shard_of
from swath.rollout_workers.worker.env_making import EnvMaker
from swath.rollout_workers.worker.learning import Batch, Learning
from swath.rollout_workers.worker.learning_methods import LearningMethods
from swath.rollout_workers.worker.policies import Policies
from swath.rollout_workers.worker.sampling_setup import Station
from swath.rollout_workers.worker.seeding import Seeds
from swath.rollout_workers.worker.weights import WeightBook


class RolloutWorker(LearningMethods, ParallelIteratorWorker, EnvRunner):
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

    Used by one thread at a time; only `ping`, `get_host`, `get_node_ip`, `lock` and `unlock` may be called beside.

    Args:
        env_creator: makes an env of an `EnvContext`; called once per sub-env. None: a worker without env.
        validate_env: `f(env, EnvContext)`, called with every sub-env that is made; refuses by raising.
        config: an `AlgorithmConfig`, a dict, or None for defaults; copied.
        worker_index: 0 is the local worker, others are members of a set.
        num_workers: remote workers of the set; None: as the config says.
        recreated_worker: it replaces one that was lost.
        log_dir: where it may write; None: it writes nothing.
        spaces: `(observation_space, action_space)` by policy id, and of the env under `"__env__"`.
        default_policy_class: the class of policies whose spec has none.
        dataset_shards: with `input_="dataset"` the rows, by worker.
        tf_session_creator: only -1 or None.

    Raises:
        ValueError: an argument or setting that is not served, or does not fit the env.
        TypeError: the creator makes what is no env.
        Exception: what the creator, the check, a policy's class or a callback raised; all that was made is closed.
    """

    @spelled
    def __init__(
        self,
        *,
        env_creator: Callable[[EnvContext], Any] | None = None,
        validate_env: Callable[[Any, EnvContext], Any] | None = None,
        config: AlgorithmConfig | Mapping[str, Any] | None = None,
        worker_index: int = 0,
        num_workers: int | None = None,
        recreated_worker: bool = False,
        log_dir: str | None = None,
        spaces: Mapping[str, Any] | None = None,
        default_policy_class: type | None = None,
        dataset_shards: Any = None,
        tf_session_creator: Any = -1,
    ) -> None:
        own = config_of(config)
        if tf_session_creator not in (-1, None):
            raise ValueError(
                f"tf_session_creator={tf_session_creator!r} is not served: policies are torch only; leave it out"
            )
        self.worker_index = count("worker_index", worker_index, least=0)
        self.num_workers = own.num_env_runners if num_workers is None else count("num_workers", num_workers, least=0)
        self.recreated_worker, self.env_creator = recreated_worker, env_creator
        self.default_policy_class = default_policy_class
        self._given: dict[str, Any] = {
            "env_creator": env_creator,
            "validate_env": validate_env,
            "config": own,
            "worker_index": worker_index,
            "num_workers": self.num_workers,
            "recreated_worker": recreated_worker,
            "log_dir": log_dir,
            "spaces": spaces,
            "default_policy_class": default_policy_class,
            "dataset_shards": dataset_shards,
            "tf_session_creator": tf_session_creator,
        }
        ParallelIteratorWorker.__init__(self, self._batches, repeat=False)
        self._closed, self._lock, self.life = False, threading.Lock(), int(recreated_worker)
        self.config = own
        set_environment(own, worker_index)
        self.callbacks: DefaultCallbacks = callbacks_of(own)
        self.env_context = EnvContext(
            own.env_config, worker_index, num_workers=self.num_workers, recreated_worker=recreated_worker
        )
        self._laps = PerfStats()
        self._log, self._reader = MetricsLog(), self._make_reader()
        self._seeds = self._make_seeds()
        self._streams = None if self._seeds is None else self._seeds.streams()
        self.last_batch: Batch | None = None
        self._written = WorkerLog(log_dir, f"worker_{self.worker_index}.log", own.log_level)
        self._build()
        global _newest  # noqa: PLW0603  which worker this process has built last
        _newest = weakref.ref(self)

    def begin_life(self, life: int) -> None:
        """Be this worker in this life, counted from 0: its ids and seeds are its own. Episodes begin anew."""
        self.life = life
        self._seeds = self._make_seeds()
        self._streams = None if self._seeds is None else self._seeds.streams()
        if self.envs is not None:
            self.envs.begin_life(self._station())

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped."""
        return self._closed

    def stop(self) -> None:
        """Close envs and policies; twice is fine. An env that raises when it is closed is warned of."""
        if self._closed:
            return
        self._closed = True
        self.teardown_torch_data_parallel()
        self._written.close()
        if self.envs is not None:
            try:
                self.envs.close()
            except Exception as error:  # noqa: BLE001  whatever it is, the worker is stopped
                warn(f"an env of worker {self.worker_index} raised when it was closed: {error!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if not hasattr(self, "_policies"):  # Ray asks for it also when building has failed
            return "<RolloutWorker that was not built>"
        n_envs = 0 if self.envs is None else self.envs.host.spec.num_envs
        where = f"{self.worker_index}/{self.num_workers}"
        steps = f"{self.counters['env_steps_sampled']:,} env steps, version {self.policy_version}"
        return f"<RolloutWorker {where}: {n_envs} envs, {len(self.policy_map)} policies; {steps}>"

    def _build(self) -> None:
        """Envs, then policies; if anything fails, all is closed."""
        made: list[Any] = [self._written]
        alone = self.worker_index > 0 or self.num_workers == 0
        wants_env = self.env_creator is not None and (
            alone or self.config.create_local_env_runner or self.config.create_env_on_local_worker
        )
        maker = EnvMaker(
            self.env_creator or _no_env, self._given["validate_env"], self.env_context, self.callbacks, self
        )
        with self._drawing(), closed_on_failure(made):
            self.envs = made_envs(maker, self._station()) if wants_env else None
            if self.envs is not None:
                made.append(self.envs)
            self._policies = self._make_policies()
            self._book, self._learning = WeightBook(self._policies), Learning(self._policies)
            if self.envs is not None:
                self.envs.act_with(self._policies)

    @property
    def seed(self) -> int | None:
        """Its seed: that of the config on worker 0; None if nothing is seeded."""
        return None if self._seeds is None else self._seeds.own

    def _make_policies(self) -> Policies:
        setup, to_train = self.config.get_multi_agent_setup(
            env=None if self.envs is None else self.envs.first,
            spaces=self._given["spaces"],
            default_policy_class=self.default_policy_class,
        )
        facts = {"worker_index": self.worker_index, "num_workers": self.num_workers}
        made = Policies(self.config, self.callbacks, facts, self.config.policy_mapping_fn, to_train)
        for policy_id, spec in setup.items():
            made.add(policy_id, spec)
        return made

    def _station(self) -> Station:
        unrolls = UnrollIds((self.worker_index << WORKER_BITS) + (self.life << LIFE_BITS))
        return Station(self, self._seeds, None, self._log, unrolls, self._laps)

    def _make_seeds(self) -> Seeds | None:
        root = self.config.seed
        if root is None:
            return None
        return Seeds(root, self.worker_index, self.life, self.config.in_evaluation)

    def _make_reader(self) -> DatasetReader | None:
        shard = shard_of(self.config, self._given["dataset_shards"], self.worker_index)
        return None if shard is None else DatasetReader(shard, self.total_rollout_fragment_length)


def get_global_worker() -> RolloutWorker | None:
    """The worker that was built last in this process, if it lives and was not stopped."""
    worker = None if _newest is None else _newest()
    return None if worker is None or worker.is_stopped else worker


def _no_env(context: EnvContext) -> None:
    """Makes none."""


_newest: weakref.ref[RolloutWorker] | None = None
