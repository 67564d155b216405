"""The set of workers as users see it: what it is built of, how it grows, shrinks and ends, what is known of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.group.stats import viewed
from swath.nearest import with_options
from swath.options import count, seconds
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.callbacks import callbacks_of
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.metrics import RolloutMetrics
from swath.rollout_workers.worker.options import NewPolicy, check_arrangement
from swath.rollout_workers.worker.worker import RolloutWorker
from swath.rollout_workers.worker_set.actor import MAPPING, POLICY, TO_TRAIN, by_policy
from swath.rollout_workers.worker_set.calls import Calls, seconds_to_wait
from swath.rollout_workers.worker_set.group import Event
from swath.rollout_workers.worker_set.sampling import Sampling
from swath.rollout_workers.worker_set.workers import SetOptions, Workers, either


class WorkerSet(Sampling, Calls):
    """Many rollout workers as one; those that die are replaced, and know then what the others know.

    ```python
    config = AlgorithmConfig().env_runners(num_env_runners=4, num_envs_per_env_runner=8).environment("CartPole-v1")
    with WorkerSet(config=config, default_policy_class=PPOTorchPolicy) as workers:
        batch = workers.sample()
        workers.local_worker().learn_on_batch(batch)
        workers.sync_weights()
    ```

    Used by one thread at a time.

    Args:
        env_creator: makes a sub-env of an `EnvContext`; None: from `config.env`.
        validate_env: looks at each sub-env, and raises if it does not like it.
        default_policy_class: of policies without one.
        config: an `AlgorithmConfig`, a dict, or None for defaults; copied.
        num_workers: remote workers, with ids from 1; None: `config.num_env_runners`.
        backend: `"ray"`, `"process"` or `"inline"`; None: Ray if it is up in this process, else processes.
        local_worker: build worker 0 in this process; it is always built if there are no others.
        logdir: workers write to folders in it; None: nothing is written.
        num_env_runners: another name of `num_workers`.
        local_env_runner: another name of `local_worker`.
        _setup: False builds no worker.

    Attributes:
        kept_episodes: metrics that were collected when another worker raised; part of those that are collected next.

    Raises:
        ValueError: there is nothing to make envs with, no such backend, or it cannot give what the config asks for.
        RuntimeError: the backend needs a package that is not installed.
        WorkerLate: a worker was not ready in time.
        Exception: what building a worker raised. Nothing is left of the others then.
    """

    worker_class: Callable[..., Any] | None = None
    """What workers are; None: `RolloutWorker`."""

    @with_options(SetOptions)
    def __init__(self, options: SetOptions) -> None:
        self._callbacks = callbacks_of(options.settings)
        self.kept_episodes: list[RolloutMetrics] = []
        self.kept_batches = []
        self._workers = Workers(self.worker_class or RolloutWorker, options, self._report_returned)
        if options.builds:
            try:
                self._workers.begin()
            except BaseException:
                self.stop(0.0)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        group = self._workers
        local = "no local worker" if group.local is None else "a local worker"
        remote = f"; {group.fleet!r}, version {group.channel.version}" if group.ids() else ""
        return f"<{type(self).__name__}: {'stopped' if group.stopped else local + remote}>"

    @property
    def config(self) -> AlgorithmConfig:
        """The settings by which workers are built, also those to come: to be read, not changed."""
        return self._workers.config

    def local_worker(self) -> Any:
        """Worker 0, or None."""
        return self._workers.local

    def _use_local(self, worker: Any) -> None:
        self._workers.local = worker

    local_env_runner = property(local_worker)
    _local_env_runner = property(local_worker, _use_local)

    def worker_ids(self) -> list[int]:
        """Ids of the remote workers that live or are coming back."""
        return self._workers.ids()

    def healthy_worker_ids(self) -> list[int]:
        """Ids of the remote workers that can be called, as far as is known."""
        return sorted(self._workers.open(losses=False).fleet.up)

    def num_remote_workers(self) -> int:
        """How many remote workers live or are coming back."""
        return len(self.worker_ids())

    def num_healthy_remote_workers(self) -> int:
        """How many remote workers can be called, as far as is known."""
        return len(self.healthy_worker_ids())

    def num_healthy_workers(self) -> int:
        """The same with the local worker."""
        return self.num_healthy_remote_workers() + (self._workers.local is not None)

    def num_remote_worker_restarts(self) -> int:
        """How often a remote worker was replaced."""
        return self._workers.fleet.restarts

    def add_workers(self, n: int | None = None, validate: bool = False, *, num_workers: int | None = None) -> None:
        """Add remote workers, and wait until they can be called.

        Args:
            n: how many.
            validate: also wait until they have answered that they are healthy.
            num_workers: another name of `n`.

        Raises:
            WorkerLate: some were not ready in time.
            Exception: what building one raised. In both cases none is added.
        """
        number = count("n" if num_workers is None else "num_workers", either("n", n, "num_workers", num_workers))
        before = set(self._workers.open().ids())
        self._workers.grow(number)
        if validate:
            added = [worker for worker in self.worker_ids() if worker not in before]
            self.foreach_worker("assert_healthy", local_worker=False, worker_ids=added)

    def remove_workers(self, ids: Sequence[int]) -> None:
        """End remote workers for good; what they have not delivered is lost.

        Raises:
            ValueError: there is no such worker.
        """
        workers = self._workers.open()
        workers.shrink(workers.addressed(ids))

    def reset(self, new_remote_workers: Sequence[Any]) -> None:
        """Raise: a set builds its own workers."""
        why = f"{len(new_remote_workers)} workers made elsewhere cannot be taken over: a set builds its own"
        raise NotImplementedError(f"{why}; give WorkerSet an env_creator and num_workers, or call add_workers(n)")

    def probe_unhealthy_workers(self, timeout_seconds: float | None = None) -> list[int]:
        """The ids of workers that came back since the last call.

        Nothing need be probed for them to come back; those on their way are waited for.

        Args:
            timeout_seconds: for how long; None: `config.env_runner_health_probe_timeout_s`.
        """
        timeout = seconds_to_wait(timeout_seconds, self.config.env_runner_health_probe_timeout_s)
        self._workers.wait_for(self._workers.open().ids(), timeout)
        self._workers.open()
        returned, self._workers.returned = self._workers.returned, []
        return sorted(set(returned))

    @with_options(NewPolicy)
    def add_policy(self, new: NewPolicy) -> None:  # noqa: D417  its fields are the arguments
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
        workers, policy_id = self._workers, new.policy_id
        if policy_id in (known := workers.policy_ids()):
            raise KeyError(f"policy_id={policy_id!r} is taken; there are {sorted(known)}")
        alone = replace(new, policy_mapping_fn=None, policies_to_train=None)
        if workers.local is not None:
            workers.local.add_policy(**vars(alone))
        try:
            workers.change({f"{POLICY}{policy_id}": vars(alone.for_others())})
            self._arrange(new.policy_mapping_fn, new.policies_to_train)
        except (WorkerLate, WorkerLost, FleetFailed):  # the others have it, and those that come back will
            raise
        except Exception:
            self._arrange(None, None, **{f"{POLICY}{policy_id}": {}})
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
        if policy_id not in (known := self._workers.policy_ids()):
            raise ValueError(f"policy_id={policy_id!r} is unknown; there are {sorted(known)}")
        self._arrange(policy_mapping_fn, policies_to_train, **{f"{POLICY}{policy_id}": {}})

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., str] | None = None) -> None:
        """Set in all workers, also later ones, which policy acts for whom in new episodes; None changes nothing.

        Raises:
            ValueError: it cannot be called.
        """
        self._arrange(policy_mapping_fn, None)

    def set_is_policy_to_train(self, is_policy_to_train: Any) -> None:
        """Set in all workers, also later ones, which policies learn.

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
        return policy_id in self._workers.ask_first("get_policies_to_train", batch=batch)

    def _arrange(self, mapping: Any, to_train: Any, **removed: Any) -> None:
        """Set who acts for whom and who learns, where it is not None, and remove policies: `POLICY{id}={}`."""
        check_arrangement(mapping, to_train)

        def here(local: Any) -> None:
            for policy_id in by_policy(removed, POLICY):
                local.remove_policy(policy_id=policy_id)
            local.set_policy_mapping_fn(mapping)
            if to_train is not None:
                local.set_is_policy_to_train(to_train)

        said = {key: value for key, value in ((MAPPING, mapping), (TO_TRAIN, to_train)) if value is not None}
        if removed or said:
            self._workers.change({**removed, **said}, here)

    def get_spaces(self) -> dict[str, Any]:
        """Spaces of observations and actions by policy id, and of the env under `"__env__"`."""
        spaces: dict[str, Any] = self._workers.ask_first("get_spaces")
        return spaces

    def events(self) -> list[Event]:
        """What has happened to workers since the last call: (time, worker, life, kind, text) each."""
        if not self._workers.stopped:
            self._workers.open(losses=False)
        events = self._workers.events
        return [events.popleft() for _ in range(len(events))]

    def stats(self, workers: str = "aggregate") -> dict[str, Any]:
        """Numbers and short strings on this set, under the names of collectors; asks nobody, never waits.

        Any thread may call it, also after `stop`. What has become of workers is known as of the last call of another
        method. Frames are env steps that `sample` has handed out.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.

        Raises:
            ValueError: another view.
        """
        return viewed(workers, *self._workers.stats())

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ask the workers to close their envs, then end them, however that goes; twice is fine.

        Args:
            timeout_s: how long they are waited for.

        Raises:
            ValueError: that is no number of seconds; nothing is stopped.
        """
        self._workers.stop(seconds("timeout_s", timeout_s))

    def _report_returned(self, worker_ids: list[int]) -> None:
        evaluation = self.config.in_evaluation
        self._callbacks.on_workers_recreated(worker_set=self, worker_ids=worker_ids, is_evaluation=evaluation)
        self._callbacks.on_env_runners_recreated(worker_set=self, worker_ids=worker_ids, is_evaluation=evaluation)

    env_runner_ids = worker_ids
    healthy_env_runner_ids = healthy_worker_ids
    num_remote_env_runners = num_remote_workers
    num_healthy_remote_env_runners = num_healthy_remote_workers
    num_healthy_env_runners = num_healthy_workers
    num_remote_env_runner_restarts = num_remote_worker_restarts
    probe_unhealthy_env_runners = probe_unhealthy_workers


EnvRunnerGroup = WorkerSet
