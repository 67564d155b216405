"""The set of workers as users see it: how it grows and shrinks, what is known of it, its names of old."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swath.collect.counters import Counters, viewed
from swath.options import count
from swath.rollout_workers.worker_set.crew import Crew
from swath.rollout_workers.worker_set.group import seconds_to_wait
from swath.rollout_workers.worker_set.requests import Reply
from swath.rollout_workers.worker_set.resident import Call, Functions
from swath.rollout_workers.worker_set.tending import Tending


def facts_of(counters: Counters, version: int) -> dict[str, Any]:
    """Of what `sample` has handed out, with the newest version of the weights."""
    return {
        "frames": counters.frames,
        "batches": counters.batches,
        "fps": counters.fps,
        "seconds": counters.seconds,
        "seconds_waiting": counters.seconds_waiting,
        "policy_version": version,
    }


def facts_of_workers(crew: Crew, *, stopped: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the remote workers: of all together, and by worker."""
    standings = {worker: each for worker, each in crew.fleet.standings().items() if worker not in crew.removed}
    versions, newest = crew.known_versions(), crew.channel.version
    oldest = min(versions.values(), default=0)
    facts = {
        "policy_version_min": oldest,
        "staleness": max(0, newest - oldest),
        "workers": len(standings),
        "workers_alive": 0 if stopped else len(crew.up()),
        "restarts": crew.fleet.restarts,
        "workers_lost": sum(standing.phase == "gone" for standing in standings.values()),
        "late": len(crew.fleet.late),
        "fragments_lost": crew.fragments_lost,
    }
    of_workers: dict[str, Any] = {}
    for worker, standing in standings.items():
        version = versions.get(worker, 0)
        of_workers |= {
            f"worker_{worker}/frames": crew.frames[worker],
            f"worker_{worker}/life": standing.life,
            f"worker_{worker}/state": "closed" if stopped else standing.words,
            f"worker_{worker}/policy_version": version,
            f"worker_{worker}/staleness": max(0, newest - version),
        }
    return facts, of_workers


class WorkerSet(Tending):
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

    Raises:
        ValueError: there is nothing to make envs with, no such backend, or it cannot give what the config asks for.
        RuntimeError: the backend needs a package that is not installed.
        WorkerLate: a worker was not ready in time.
        Exception: what building a worker raised. Nothing is left of the others then.
    """

    def add_workers(self, n: int, validate: bool = False) -> None:
        """Add remote workers, and wait until they can be called.

        Args:
            n: how many.
            validate: also wait until they have said that they are healthy.

        Raises:
            WorkerLate: some were not ready in time.
            Exception: what building one raised. In both cases none is added.
        """
        count("n", n)
        crew = self._remote()
        before = set() if crew is None else set(crew.ids())
        self._number = len(before) + n
        if crew is None:
            self._engage(n)
            self._begin_with_weights()
        else:
            crew.add(n)
        if validate:
            assert self._crew is not None
            added = [worker for worker in self._crew.ids() if worker not in before]
            self.foreach_worker("assert_healthy", local_worker=False, worker_ids=added)

    def remove_workers(self, ids: Sequence[int]) -> None:
        """End remote workers for good; what they have not delivered is lost.

        Raises:
            ValueError: there is no such worker.
        """
        crew = self._remote()
        for worker in self._addressed(crew, ids):
            assert crew is not None
            crew.retire(worker)
            self._requests.forget(worker)
            self._fragments.forget(worker)

    def reset(self, new_remote_workers: Sequence[Any]) -> None:
        """Raise: a set builds its own workers."""
        raise NotImplementedError(
            f"{len(new_remote_workers)} workers made elsewhere cannot be taken over: a set builds its own; "
            "give WorkerSet an env_creator and num_workers, or call add_workers(n)"
        )

    def probe_unhealthy_workers(self, timeout_seconds: float | None = None) -> list[int]:
        """The ids of workers that came back since the last call.

        Nothing need be probed for them to come back; those on their way are waited for.

        Args:
            timeout_seconds: for how long; None: `config.env_runner_health_probe_timeout_s`.
        """
        timeout = seconds_to_wait(timeout_seconds, self._config.env_runner_health_probe_timeout_s)
        crew = self._remote()
        if crew is not None:
            crew.wait_for(crew.ids(), timeout)
            crew.wait_settled(timeout)
        returned, self._returned = self._returned, []
        return sorted(set(returned))

    def stats(self, workers: str = "aggregate") -> dict[str, Any]:
        """Numbers and short strings on this set, under the names of collectors; asks nobody, never waits.

        Any thread may call it, also after `stop`. What has become of workers is known as of the last call of another
        method. Frames are env steps that `sample` has handed out.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.

        Raises:
            ValueError: another view.
        """
        crew, stopped = self._crew, self._stopped
        if crew is None:
            version = getattr(self._local_env_runner, "policy_version", 0)
            return viewed(workers, facts_of(self._counters, version), {})
        facts, of_workers = facts_of_workers(crew, stopped=stopped)
        return viewed(workers, {**facts_of(self._counters, crew.channel.version), **facts}, of_workers)

    def get_spaces(self) -> dict[str, Any]:
        """Spaces of observations and actions by policy id, and of the env under `"__env__"`."""
        if (local := self._local_env_runner) is not None:
            spaces: dict[str, Any] = local.get_spaces()
        else:
            spaces = self._of_first(Call("get_spaces", {}))
        return spaces

    def local_worker(self) -> Any:
        """Worker 0, or None."""
        return self._local_env_runner

    @property
    def local_env_runner(self) -> Any:
        """Worker 0, or None."""
        return self._local_env_runner

    def worker_ids(self) -> list[int]:
        """Ids of the remote workers that live or are coming back."""
        return [] if self._crew is None else self._crew.ids()

    def healthy_worker_ids(self) -> list[int]:
        """Ids of the remote workers that can be called, as far as is known."""
        crew = self._looked_after()
        return [] if crew is None else crew.up()

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
        return 0 if self._crew is None else self._crew.fleet.restarts

    def foreach_env_runner(
        self,
        func: Functions,
        *,
        local_env_runner: bool = True,
        remote_worker_ids: Sequence[int] | None = None,
        **others: Any,
    ) -> list[Any]:
        """Another name of `foreach_worker`."""
        return self.foreach_worker(func, local_worker=local_env_runner, worker_ids=remote_worker_ids, **others)

    def foreach_env_runner_async(
        self, func: Functions, tag: Any = None, *, remote_worker_ids: Sequence[int] | None = None, **others: Any
    ) -> int:
        """Another name of `foreach_worker_async`."""
        return self.foreach_worker_async(func, tag=tag, worker_ids=remote_worker_ids, **others)

    def foreach_env_runner_async_fetch_ready(
        self, func: Functions, tag: Any = None, *, remote_worker_ids: Sequence[int] | None = None, **others: Any
    ) -> list[Reply]:
        """Another name of `foreach_worker_async_fetch_ready`."""
        return self.foreach_worker_async_fetch_ready(func, tag=tag, worker_ids=remote_worker_ids, **others)

    env_runner_ids = worker_ids
    healthy_env_runner_ids = healthy_worker_ids
    num_remote_env_runners = num_remote_workers
    num_healthy_remote_env_runners = num_healthy_remote_workers
    num_healthy_env_runners = num_healthy_workers
    num_remote_env_runner_restarts = num_remote_worker_restarts
    probe_unhealthy_env_runners = probe_unhealthy_workers


EnvRunnerGroup = WorkerSet
