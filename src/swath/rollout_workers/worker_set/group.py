"""What a set of workers consists of, how it is built and how it ends; its methods are in the modules beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, Self

from swath.collect.counters import Counters
from swath.errors import Closed, WorkerLate, warn
from swath.nearest import spelled
from swath.options import seconds
from swath.rollout_workers.callbacks import callbacks_of
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.config.registry import creator_of
from swath.rollout_workers.filters.sharing import copies_of
from swath.rollout_workers.worker.arguments import thawed
from swath.rollout_workers.worker.worker import RolloutWorker
from swath.rollout_workers.worker_set.asking import publish, spread
from swath.rollout_workers.worker_set.crew import Crew, Terms
from swath.rollout_workers.worker_set.deaths import Event
from swath.rollout_workers.worker_set.fragments import Fragments
from swath.rollout_workers.worker_set.places import Place, open_place, place, require_place, resources, survival
from swath.rollout_workers.worker_set.recipe import Recipe
from swath.rollout_workers.worker_set.requests import Requests
from swath.rollout_workers.worker_set.resident import Call
from swath.workers.base import Job
from swath.workers.tickets import Name

_STOPPED = "the set was stopped; build another WorkerSet"
PATIENCE_S = 300.0
"""How long a call is waited for if nobody says."""


def seconds_to_wait(timeout_seconds: float | None, otherwise: float = PATIENCE_S) -> float:
    """How long a caller waits; None: as `otherwise`.

    Raises:
        ValueError: it is no number of seconds.
    """
    return otherwise if timeout_seconds is None else seconds("timeout_seconds", timeout_seconds)


class Group:
    """A fleet, a channel, at most one local worker; its arguments are those of `WorkerSet`."""

    worker_class: Callable[..., Any] | None = None
    """What workers are; None: `RolloutWorker`."""

    @spelled
    def __init__(
        self,
        *,
        env_creator: Callable[..., Any] | None = None,
        validate_env: Callable[..., Any] | None = None,
        default_policy_class: type | None = None,
        config: AlgorithmConfig | Mapping[str, Any] | None = None,
        num_workers: int | None = None,
        backend: str | None = None,
        local_worker: bool = True,
        logdir: str | None = None,
        num_env_runners: int | None = None,
        local_env_runner: bool | None = None,
        _setup: bool = True,
    ) -> None:
        require_place(backend)
        self._config = _own(config, _one_of_two(num_workers, num_env_runners))
        self._wants_local = _wants_local(local_worker, local_env_runner)
        creator = _creator(env_creator, self._config) if _setup else env_creator
        kind = self.worker_class or RolloutWorker
        self._recipe = Recipe(kind, creator, validate_env, default_policy_class, self._config, logdir)
        self._backend = backend
        self._crew: Crew | None = None
        self._local_env_runner: Any = None
        self._begun = self._stopped = False
        self._callbacks = callbacks_of(self._config)
        self._requests = Requests(self._config.max_requests_in_flight_per_env_runner)
        self._fragments = Fragments(self._steps_of)
        self._filters: dict[str, Any] = {}
        self._counters = Counters()
        self._returned: list[int] = []
        self._version = 0
        self._number = self._config.num_env_runners
        self._place: Place = "process"
        if _setup:
            try:
                self._set_up()
            except BaseException:
                self.stop(0.0)
                raise
        self._begun = True
        self._counters.seconds_waiting = 0.0
        self._counters.start_clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        if self._stopped:
            return f"<{type(self).__name__}: stopped>"
        local = "a local worker" if self._local_env_runner is not None else "no local worker"
        remote = "" if self._crew is None else f"; {self._crew.fleet!r}, version {self._crew.channel.version}"
        return f"<{type(self).__name__}: {local}{remote}>"

    @property
    def config(self) -> AlgorithmConfig:
        """The settings by which workers are built, also those to come: to be read, not changed."""
        return self._config

    def events(self) -> list[Event]:
        """What has happened to workers since the last call: (time, worker, life, kind, text) each."""
        if self._crew is not None and not self._stopped:
            self._crew.tend()
        return [] if self._crew is None else self._crew.events.drain()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ask the workers to close their envs, then end them, however that goes; twice is fine.

        Args:
            timeout_s: how long they are waited for.

        Raises:
            ValueError: that is no number of seconds; nothing is stopped.
        """
        patience = seconds("timeout_s", timeout_s)
        if self._stopped:
            return
        self._stopped = True
        try:
            if self._local_env_runner is not None:
                self._local_env_runner.stop()
        finally:
            if self._crew is not None:
                for error in self._crew.close(patience):
                    warn(f"a worker raised when it was closed: {error!r}")

    def _looked_after(self) -> Crew | None:
        """The remote workers, if there are any; losses are not raised."""
        if self._stopped:
            raise Closed(_STOPPED)
        if self._crew is not None:
            self._crew.tend()
        return self._crew

    def _set_up(self) -> None:
        number = self._number
        wants_local = self._wants_local or not number
        needs_spaces = bool(number) and not (
            self._config.create_local_env_runner or self._config.create_env_on_local_worker
        )
        if wants_local and not needs_spaces:
            self._local_env_runner = self._recipe.worker(0, number)
        if number:
            self._engage(number)
        if wants_local and needs_spaces:
            spaces = self._of_first(Call("get_spaces", {}))
            self._local_env_runner = self._recipe.worker(0, number, spaces=spaces)
        if number:
            self._begin_with_weights()

    def _engage(self, number: int) -> None:
        """Have remote workers begin, and wait for them unless the config says not to."""
        self._place = place(self._backend, self._config)
        waits = self._config.validate_env_runners_after_construction
        survives = survival(self._config, self._place)
        terms = Terms(
            self._job, survives, self._config, self._told_of_return, self._filters_to_begin_with, self._counters
        )
        self._crew = Crew(open_place(self._place), terms, begun=0 if waits else number)
        if waits:
            self._crew.add(number)
        else:
            self._crew.tend()

    def _begin_with_weights(self) -> None:
        assert self._crew is not None
        if (local := self._local_env_runner) is not None:
            publish(self._crew, local.get_weights(), local.policy_version)
        else:
            publish(self._crew, self._of_first(Call("get_weights", {})), 0)
        if self._config.validate_env_runners_after_construction:
            spread(self._crew, self._crew.up(), self._config.env_runner_restore_timeout_s)

    def _job(self, name: Name) -> Job:
        number = max(name.worker, self._number)
        return self._recipe.job(name, number, resources(self._place, self._config), apart=self._place != "inline")

    def _remote(self) -> Crew | None:
        """The remote workers, if there are any, looked after.

        Raises:
            Closed: the set was stopped.
            FleetFailed: too few are left, or too many died in a row.
            WorkerLost: one died, and that is not borne.
        """
        if self._stopped:
            raise Closed(_STOPPED)
        if self._crew is not None:
            self._crew.require_borne()
        return self._crew

    def _of_first(self, call: Call) -> Any:
        """What the first remote worker that can be called answers."""
        crew = self._remote()
        assert crew is not None
        patience = self._config.env_runner_restore_timeout_s
        until = monotonic() + patience
        while not crew.up() and (left := until - monotonic()) > 0:
            crew.wait([], left)
        if not crew.up():
            raise _late(crew.ids(), "are not ready", patience)
        ticket = crew.send(crew.up()[0], "run", *call)
        if crew.wait_all([ticket], monotonic() + patience):
            raise _late([ticket.name.worker], "have not answered", patience)
        error = crew.error_of(ticket)
        if error is not None:
            raise error
        return ticket.value

    def _steps_of(self, worker: int) -> int:
        """Env steps of a fragment, as far as they can be told beforehand."""
        length = self._config.get_rollout_fragment_length(worker)
        return length * self._config.num_envs_per_env_runner

    def _filters_to_begin_with(self) -> Mapping[str, Any] | None:
        """Those of all workers, for one that comes when they may have seen something."""
        local = self._local_env_runner
        if not self._begun:
            return None
        return copies_of(self._filters) or None if local is None else local.get_filters()

    def _told_of_return(self, workers: list[int]) -> None:
        self._returned += workers
        evaluation = self._config.in_evaluation
        self._callbacks.on_workers_recreated(worker_set=self, worker_ids=workers, is_evaluation=evaluation)
        self._callbacks.on_env_runners_recreated(worker_set=self, worker_ids=workers, is_evaluation=evaluation)


def _one_of_two(num_workers: int | None, num_env_runners: int | None) -> int | None:
    """What is given by either name."""
    if None not in (num_workers, num_env_runners) and num_workers != num_env_runners:
        raise ValueError(
            f"num_workers={num_workers!r} and num_env_runners={num_env_runners!r} are two names of one number; "
            "give one of them"
        )
    return num_env_runners if num_workers is None else num_workers


def _wants_local(local_worker: bool, local_env_runner: bool | None) -> bool:
    """Whether there is to be a local worker, by either name."""
    if local_env_runner and not local_worker:
        raise ValueError(
            f"local_worker={local_worker!r} and local_env_runner={local_env_runner!r} are two names of one thing; "
            "give one of them"
        )
    return local_worker if local_env_runner is None else local_env_runner


def _own(config: AlgorithmConfig | Mapping[str, Any] | None, number: int | None) -> AlgorithmConfig:
    own = thawed(config)
    if number is not None:
        own.env_runners(num_env_runners=number)
    own.validate()
    return own


def _late(workers: list[int], what: str, patience: float) -> WorkerLate:
    why = f"workers {workers} {what} after env_runner_restore_timeout_s={patience:g}"
    return WorkerLate(why, workers=tuple(workers), deadline=patience)


def _creator(given: Callable[..., Any] | None, config: AlgorithmConfig) -> Callable[..., Any]:
    if given is not None:
        return given
    if config.env is None:
        raise ValueError("there is nothing to make envs with: give env_creator, or a config with environment(env=…)")
    return creator_of(config.env)
