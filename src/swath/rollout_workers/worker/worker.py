"""One worker with its envs and policies: the face for users of RLlib's `RolloutWorker`; its seeds, log and arguments.

Worker 0 in training and in its first life gives its envs the root seed and those after it. All others come from
`swath.seeds`, evaluation and training apart, and none of them is one of worker 0's.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from swath.errors import noted, warn
from swath.nearest import with_options
from swath.options import count, seconds
from swath.rollout.hosts.base import closed_on_failure
from swath.rollout.seeding import PrivateStreams
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.batches.sample_batch import MultiAgentBatch, SampleBatch, concat
from swath.rollout_workers.callbacks import DefaultCallbacks, callbacks_of
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig, PolicySetup
from swath.rollout_workers.config.checks import flag, optional
from swath.rollout_workers.config.policy_spec import PolicySpec
from swath.rollout_workers.env_runner import EnvContext, EnvRunner
from swath.rollout_workers.metrics import COUNTERS, RolloutMetrics
from swath.rollout_workers.parallel_iterator import ParallelIteratorWorker
from swath.rollout_workers.policies.torch import device_of
from swath.rollout_workers.worker.envs import Envs
from swath.rollout_workers.worker.learning import Batch, LearningMethods
from swath.seeds import Role, derive, derive_named

_LOGGER = logging.getLogger("swath")
_FORMAT = "%(asctime)s %(levelname)s %(message)s"

_PINNED = 2**16
"""How many seeds from the root on may be those of worker 0's envs."""

_EVALUATION = 2**15
"""The first env number of workers that evaluate."""

_MOST_LIVES = 2**5
_MOST_RENEWALS = 2**6
_ELSEWHERE = _MOST_LIVES * _MOST_RENEWALS


@dataclass(frozen=True)
class Seeds:
    """The seeds of one worker in one life.

    Attributes:
        root: the user's seed.
        worker: the worker's index.
        life: which of its lives, from 0.
        in_evaluation: whether it evaluates.
    """

    root: int
    worker: int = 0
    life: int = 0
    in_evaluation: bool = False

    @property
    def own(self) -> int:
        """The worker's own seed."""
        return self.root if self._is_pinned else self._of("global", self.worker)

    def first(self, num_envs: int) -> list[int]:
        """Of the first resets of its envs."""
        if self._is_pinned:
            return [self.root + env for env in range(num_envs)]
        return [self._of("env", self.worker * num_envs + env) for env in range(num_envs)]

    def renewed(self, env: int, num_envs: int, time: int) -> int:
        """Of the first reset of an env that was made anew for the `time`-th time, from 1."""
        return self._of("env", self.worker * num_envs + env, time)

    def streams(self, device: torch.device) -> PrivateStreams:
        """Random streams for what policies, which are on this device, and the worker draw."""
        return PrivateStreams(self._of("policy", self.worker), device)

    @property
    def _is_pinned(self) -> bool:
        return self.worker == 0 and self.life == 0 and not self.in_evaluation

    def _of(self, role: Role, number: int, time: int = 0) -> int:
        if number >= _EVALUATION:
            raise ValueError(f"sub-env number {number} of all workers has no seed; {_EVALUATION:,} have one")
        (lives, life), (renewals, turn) = divmod(self.life, _MOST_LIVES), divmod(time, _MOST_RENEWALS)
        is_first = lives == renewals == 0
        root = self.root if is_first else derive_named(self.root, f"round {lives} of lives, {renewals} of renewals")
        env, index = number + _EVALUATION * self.in_evaluation, life + _MOST_LIVES * turn
        seed = derive(root, role, env, index)
        if self.root <= seed < self.root + _PINNED:
            seed = derive(root, role, env, index + _ELSEWHERE)
        return seed


class WorkerLog:
    """The library's log at the level of the config, and in a file if there is a directory, until it is closed.

    Args:
        log_dir: where the file is; made if it is missing. None: nothing is written.
        name: of the file.
        level: of the logger; "WARN", the default of the config, leaves it as it is.
    """

    def __init__(self, log_dir: str | None, name: str, level: str) -> None:
        self._level, self._level_before = level, _LOGGER.level
        self._handler: logging.Handler = logging.NullHandler()
        if level != "WARN":
            _LOGGER.setLevel(level)
        if log_dir is not None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
            self._handler = logging.FileHandler(Path(log_dir) / name, encoding="utf-8", delay=True)
            self._handler.setFormatter(logging.Formatter(_FORMAT))
            _LOGGER.addHandler(self._handler)

    def close(self) -> None:
        """Write no more; the logger has the level that it had, unless somebody else has set another one."""
        _LOGGER.removeHandler(self._handler)
        self._handler.close()
        if self._level != "WARN" and _LOGGER.level == logging.getLevelName(self._level):
            _LOGGER.setLevel(self._level_before)


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


_ROUTED = ("192.0.2.1", 9)
"""An address for documentation: nothing is sent there, the system only says by which interface it would be."""


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

    Used by one thread at a time; only `ping`, `get_host`, `get_node_ip`, `lock` and `unlock` may be called meanwhile.

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

    Raises:
        ValueError: an argument or setting that is not served, or does not fit the env.
        TypeError: the creator makes what is no env.
        Exception: what the creator, the check, a policy's class or a callback raised; all that was made is closed.
    """

    @with_options(RolloutOptions)
    def __init__(self, options: RolloutOptions) -> None:
        self._options, self._lock = options, threading.Lock()
        own = AlgorithmConfig.of(options.config)
        own.validate()
        super().__init__(own, int(options.worker_index))
        if options.num_workers is not None:
            self.num_workers = options.num_workers
        self.env_creator, self.default_policy_class = options.env_creator, options.default_policy_class
        self.life, self.recreated_worker = int(options.recreated_worker), bool(options.recreated_worker)
        self.last_batch: Batch | None = None
        self.envs: Envs | None = None
        # not a generator, which would be over when `sample` has raised
        ParallelIteratorWorker.__init__(self, lambda: iter(self.sample, None), repeat=False)
        variables = own[f"extra_python_environs_for_{'worker' if self.worker_index else 'driver'}"]
        os.environ.update({str(name): str(value) for name, value in variables.items()})
        self.callbacks: DefaultCallbacks = callbacks_of(own)
        self.env_context = EnvContext(
            own.env_config, self.worker_index, num_workers=self.num_workers, recreated_worker=self.recreated_worker
        )
        shard = options.shard(own)
        self._reader = None if shard is None else DatasetReader(shard)
        self.seeds = None if own.seed is None else Seeds(own.seed, self.worker_index, self.life, own.in_evaluation)
        device = device_of({**own.to_dict(), "worker_index": self.worker_index})
        self._streams = None if self.seeds is None else self.seeds.streams(device)
        self._log = WorkerLog(options.log_dir, f"worker_{self.worker_index}.log", own.log_level)
        self._build()
        global _newest  # noqa: PLW0603  which worker this process has built last
        _newest = weakref.ref(self)

    @property
    def num_workers(self) -> int:
        """Remote workers of the set, also in `config`; once set, `"auto"` fragments are the share of so many."""
        return self.config.num_env_runners

    @num_workers.setter
    def num_workers(self, number: int) -> None:
        self.config.num_env_runners = count("num_workers", number, least=0)

    @property
    def seed(self) -> int | None:
        """Its seed: that of the config on worker 0; None if nothing is seeded."""
        return None if self.seeds is None else self.seeds.own

    @property
    def env(self) -> Any:
        """Sub-env 0 as the creator made it, or the vector env; None without env."""
        return None if self.envs is None else self.envs.first

    @property
    def async_env(self) -> Any:
        """The view of all envs; None without env."""
        return None if self.envs is None else self.envs.view

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """`(observation_space, action_space)` by policy id, before preprocessing, and of the env under `"__env__"`.

        Those of an env whose agents have one each are dicts by agent.
        """
        specs = self.policy_dict.items()
        spaces = {policy_id: (spec.observation_space, spec.action_space) for policy_id, spec in specs}
        given = self._options.spaces or {}
        env = given.get("__env__") if self.envs is None else self.envs.spaces
        return spaces if env is None else {**spaces, "__env__": env}

    spaces = property(get_spaces)

    def foreach_env(self, func: Callable[[Any], Any]) -> list[Any]:
        """`func(sub_env)` of each; of the vector env, if it shows no sub-envs; empty without env."""
        return [] if self.envs is None else [func(env) for env in self.envs.view.envs]

    def foreach_env_with_context(self, func: Callable[[Any, EnvContext], Any]) -> list[Any]:
        """`func(sub_env, context)` of each, with the context's `vector_index` as the sub-env's number."""
        if self.envs is None:
            return []
        return [func(env, self.envs.contexts[i]) for i, env in enumerate(self.envs.view.envs)]

    def assert_healthy(self) -> None:
        """Check that it can work.

        Raises:
            AssertionError: it was stopped, or has no policy.
        """
        assert not self.is_stopped, f"worker {self.worker_index} was stopped"
        assert self.policy_map, f"worker {self.worker_index} has no policy"

    def sample(self, *, explore: bool | None = None, force_reset: bool = False) -> Batch:
        """A batch: fragments of all sub-envs one behind the other, or whole episodes.

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
        with self._working():
            if not self.config.fake_sampler:
                return self._sampled(explore, force_reset=force_reset)
            if self.last_batch is None:
                self.last_batch = self._sampled(explore, force_reset=force_reset)
            return self.last_batch.copy()

    def sample_with_count(self) -> tuple[Batch, int]:
        """`sample()`, and how many env steps its batch is from; as a Ray actor's task two references."""
        batch = self.sample()
        return batch, batch.env_steps()

    sample_with_count.__ray_num_returns__ = 2  # type: ignore[attr-defined]

    def get_metrics(self) -> list[RolloutMetrics]:
        """The metrics of episodes that ended since the last call."""
        return [] if self.envs is None else self.envs.log.drain()

    @property
    def counters(self) -> dict[str, int]:
        """What was sampled, discarded and restarted."""
        if self.envs is None:
            return dict.fromkeys((*COUNTERS, "sub_env_restarts"), 0)
        return {**self.envs.counts, "sub_env_restarts": self.envs.failures.n_restarts}

    @property
    def total_rollout_fragment_length(self) -> int:
        """Steps of a fragment times sub-envs."""
        length = self.config.get_rollout_fragment_length(self.worker_index)
        return length * self.config.num_envs_per_env_runner

    def lock(self, timeout_s: float = 600.0) -> None:
        """Take the lock that callers may agree on; no method takes it by itself.

        Raises:
            TimeoutError: it was not free in time.
            ValueError: `timeout_s` is no number of seconds.
        """
        if not self._lock.acquire(timeout=seconds("timeout_s", timeout_s)):
            raise TimeoutError(f"the lock of worker {self.worker_index} was not free within {timeout_s} s")

    def unlock(self) -> None:
        """Give the lock back.

        Raises:
            RuntimeError: it is free.
        """
        self._lock.release()

    def get_host(self) -> str:
        """The name of the machine."""
        return platform.node()

    def get_node_ip(self) -> str:
        """The node's address: Ray's if it runs here, else that of the interface to the outside, else the loopback's."""
        ray = sys.modules.get("ray")
        if ray is not None and ray.is_initialized():
            return str(ray.util.get_node_ip_address())
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(_ROUTED)
            except OSError:
                return "127.0.0.1"
            return str(probe.getsockname()[0])

    def find_free_port(self) -> int:
        """An IPv4 port that is free at the moment."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def creation_args(self) -> dict[str, Any]:
        """The constructor's arguments, defaults filled in; the same arguments build the same worker."""
        return {**vars(self._options), "config": self.config.copy(), "num_workers": self.num_workers}

    def stop(self) -> None:
        """Close envs and policies; twice is fine. An env that raises when it is closed is warned of."""
        if self.is_stopped:
            return
        self.is_stopped = True
        self.teardown_torch_data_parallel()
        self._log.close()
        if self.envs is not None:
            try:
                self.envs.host.close()
            except Exception as error:  # noqa: BLE001  whatever it is, the worker is stopped
                warn(f"an env of worker {self.worker_index} raised when it was closed: {error!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if not hasattr(self, "env_context"):  # Ray asks for it also when building has failed
            return "<RolloutWorker that was not built>"
        n_envs = 0 if self.envs is None else self.envs.host.spec.num_envs
        where = f"{self.worker_index}/{self.num_workers}"
        steps = f"{self.counters['env_steps_sampled']:,} env steps, version {self.policy_version}"
        return f"<RolloutWorker {where}: {n_envs} envs, {len(self.policy_map)} policies; {steps}>"

    def _build(self) -> None:
        """Envs, then policies; if anything fails, all is closed."""
        config, made = self.config, list[Any]([self._log])
        alone = self.worker_index > 0 or self.num_workers == 0
        wanted = alone or config.create_local_env_runner or config.create_env_on_local_worker
        with self._working(), closed_on_failure(made):
            if self.env_creator is not None and wanted:
                envs = Envs(self, self._options.validate_env)
                self.envs = None if envs.is_empty else envs
            if self.envs is not None:
                made.append(self.envs.host)
            setup, self.is_policy_to_train = self._setup()
            for policy_id, spec in setup.items():
                self._add(policy_id, spec, None, None)
            if self.envs is not None:
                self.envs.begin_sampling()

    def _setup(self, policies: dict[str, PolicySpec] | None = None) -> PolicySetup:
        kind, spaces = self.default_policy_class, self._options.spaces
        around = {"env": self.env, "spaces": spaces, "default_policy_class": kind}
        return self.config.get_multi_agent_setup(policies=policies, **around)

    def _sampled(self, explore: bool | None, *, force_reset: bool) -> Batch:
        if self._reader is not None:
            rows = self._reader.next(self.total_rollout_fragment_length)
            return self._completed_batch({DEFAULT_POLICY_ID: rows}, rows.count)
        if self.envs is None:
            way_out = "set create_env_on_local_worker=True or create_local_env_runner=True, or give an env_creator"
            raise ValueError(f"worker {self.worker_index} has no env to sample from; {way_out}")
        with noted(f"worker {self.worker_index}, which sampled (policy version {self.policy_version})"):
            return self.envs.sample(self._completed_batch, explore=explore, force_reset=force_reset)

    def _completed_batch(self, batches: dict[str, SampleBatch], env_steps: int) -> Batch:
        """What is handed out, shown to callbacks."""
        is_plain = set(batches) == set(self.policy_map) == {DEFAULT_POLICY_ID}
        whole = (MultiAgentBatch.wrap_as_needed if is_plain else MultiAgentBatch)(batches, env_steps)
        self.callbacks.on_sample_end(worker=self, env_runner=self, samples=whole)
        return whole


def get_global_worker() -> RolloutWorker | None:
    """The worker that was built last in this process, if it lives and was not stopped."""
    worker = None if _newest is None else _newest()
    return None if worker is None or worker.is_stopped else worker


_newest: weakref.ref[RolloutWorker] | None = None
