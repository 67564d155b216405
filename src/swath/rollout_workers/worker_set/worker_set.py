"""The set of workers as users see it.

Workers          how they are begun and end, what they are to know
  └─ Calls          functions that are called in them
       └─ Sampling     batches out, weights and filters in
            └─ WorkerSet  policies, and what is known of workers
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from swath.errors import FleetFailed, WorkerLate, WorkerLost
from swath.group.stats import viewed
from swath.nearest import with_options
from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.worker.options import NewPolicy, check_arrangement
from swath.rollout_workers.worker_set.actor import FILTER, MAPPING, POLICY, TO_TRAIN, WEIGHTS, by_policy, take_policies
from swath.rollout_workers.worker_set.group import Event
from swath.rollout_workers.worker_set.sampling import Sampling
from swath.rollout_workers.worker_set.workers import TIMEOUT_S
from swath.workers.tickets import Name

COUNTED = ("frames", "batches", "fps", "seconds", "seconds_waiting")


class WorkerSet(Sampling):
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

    def num_remote_workers(self) -> int:
        """How many remote workers live or are coming back."""
        return len(self.worker_ids())

    def num_healthy_remote_workers(self) -> int:
        """How many remote workers can be called, as far as is known."""
        return len(self.healthy_worker_ids())

    def num_healthy_workers(self) -> int:
        """The same with the local worker."""
        return self.num_healthy_remote_workers() + (self._local_env_runner is not None)

    def num_remote_worker_restarts(self) -> int:
        """How often a remote worker was replaced."""
        return self._group.fleet.restarts

    def get_spaces(self) -> dict[str, Any]:
        """Spaces of observations and actions by policy id, and of the env under `"__env__"`."""
        spaces: dict[str, Any] = self._ask_first("get_spaces")
        return spaces

    def events(self) -> list[Event]:
        """What has happened to workers since the last call: (time, worker, life, kind, text) each."""
        if not self._stopped:
            self._open(losses=False)
        events = self._group.events
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
        group = self._group
        standings = {w: each for w, each in group.fleet.standings().items() if w not in group.removed}
        newest = group.channel.version if standings else getattr(self._local_env_runner, "policy_version", 0)
        facts = {name: getattr(self._counters, name) for name in COUNTED} | {"policy_version": newest}
        of_workers: dict[str, Any] = {}
        for worker, standing in standings.items():
            version = group.version_of(Name(worker, standing.life))
            own = {"frames": group.frames[worker], "life": standing.life, "policy_version": version}
            state = {"state": "closed" if self._stopped else standing.words, "staleness": max(0, newest - version)}
            of_workers |= {f"worker_{worker}/{name}": fact for name, fact in {**own, **state}.items()}
        if standings:
            oldest = min(group.known_versions().values(), default=0)
            facts |= {
                "policy_version_min": oldest,
                "staleness": max(0, newest - oldest),
                "workers": len(standings),
                "workers_alive": 0 if self._stopped else len(group.fleet.up),
                "restarts": group.fleet.restarts,
                "workers_lost": sum(standing.phase == "gone" for standing in standings.values()),
                "late": len(group.fleet.late),
                "fragments_lost": group.fragments_lost,
            }
        return viewed(workers, facts, of_workers)

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
        key = f"{POLICY}{new.policy_id}"
        if new.policy_id in (known := self._policy_ids()):
            raise KeyError(f"policy_id={new.policy_id!r} is taken; there are {sorted(known)}")
        alone = replace(new, policy_mapping_fn=None, policies_to_train=None)
        if self._local_env_runner is not None:
            self._local_env_runner.add_policy(**vars(alone))
        try:
            self._share({key: vars(alone.for_others())})
            self._update_free()
            self._arrange(new.policy_mapping_fn, new.policies_to_train)
        except (WorkerLate, WorkerLost, FleetFailed):  # the others have it, and those that come back will
            raise
        except Exception:
            self._arrange(None, None, **{key: {}})
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
        if policy_id not in (known := self._policy_ids()):
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
        return policy_id in self._ask_first("get_policies_to_train", batch=batch)

    def _policy_ids(self) -> set[str]:
        """Of the policies that all workers have."""
        self._open()
        if self._local_env_runner is not None:
            return set(self._local_env_runner.policy_map)
        return {pid for pid, how in {**self.config.policies, **by_policy(self._shared, POLICY)}.items() if how}

    def _arrange(self, mapping: Any, to_train: Any, **removed: Any) -> None:
        """Set who acts for whom and who learns, where it is not None, and remove policies: `POLICY{id}={}`."""
        check_arrangement(mapping, to_train)
        told = {key: value for key, value in ((MAPPING, mapping), (TO_TRAIN, to_train)) if value is not None}
        changes = {**removed, **told}
        if not changes:
            return
        self._open()
        self._share(changes)
        for policy_id in by_policy(removed, POLICY):
            self._seen.pop(policy_id, None)
            self._shared.pop(f"{FILTER}{policy_id}", None)
            self._group.channel.withdraw([f"{WEIGHTS}{policy_id}", f"{FILTER}{policy_id}"])
        if self._local_env_runner is not None:
            take_policies(self._local_env_runner, changes)
        self._update_free()

    def _update_free(self) -> None:
        """Have workers that are free take what is new; others do before they do anything else."""
        group = self._group
        group.update([worker for worker in group.fleet.up if group.is_free(worker)], TIMEOUT_S)

    env_runner_ids = Sampling.worker_ids
    healthy_env_runner_ids = Sampling.healthy_worker_ids
    num_remote_env_runners = num_remote_workers
    num_healthy_remote_env_runners = num_healthy_remote_workers
    num_healthy_env_runners = num_healthy_workers
    num_remote_env_runner_restarts = num_remote_worker_restarts
    probe_unhealthy_env_runners = Sampling.probe_unhealthy_workers


EnvRunnerGroup = WorkerSet
