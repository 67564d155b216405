"""The envs of a worker: they are made one by one, each with its context, and stepped by one host for the sampler.

With `env_processes` each process makes its share, and the host of all is a `ProcessHost`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count, pairwise
from typing import Any, Self, TypeAlias

import gymnasium as gym

from swath.errors import note_source
from swath.options import Restarts
from swath.rollout.episodes.statistics import LIFE_BITS, WORKER_BITS
from swath.rollout.failures import VoidRows
from swath.rollout.hosts.base import ArrayHost, close_on_failure, first_env
from swath.rollout.hosts.env_server import Processes
from swath.rollout.hosts.gymnasium import EnvListHost, MultiAgentHost
from swath.rollout.hosts.parallel import ProcessHost
from swath.rollout.hosts.vector import VectorHost, is_vector_env
from swath.rollout_workers.callbacks import listener
from swath.rollout_workers.config.policy_spec import env_space
from swath.rollout_workers.env_runner import EnvContext
from swath.rollout_workers.metrics import COUNTERS, MetricsLog, PerfStats
from swath.rollout_workers.multi_agent_env import MultiAgentEnv, as_multi_agent
from swath.rollout_workers.vector_env import OwnVectorHost, VectorEnv
from swath.rollout_workers.worker.setup import Seeds

SERVED = (
    "a gymnasium Env, a MultiAgentEnv or PettingZoo env, a swath.rollout_workers.VectorEnv, a gymnasium VectorEnv, "
    "EnvPool or ALE vector env, or None; a TorchRL EnvBase goes to a swath.Collector"
)

LONGEST_DELAY = 5.0
"""Most seconds before a sub-env is rebuilt, unless the first delay is longer."""

Check: TypeAlias = Callable[[Any, EnvContext], Any]
"""Looks at a sub-env that was made, and its context; raises to refuse it."""


class Envs:
    """The envs of a worker, as callbacks see them: checked, and all closed if the creator fails.

    Args:
        worker: the `RolloutWorker`.
        validate: `f(env, EnvContext)`, which raises to refuse; None refuses nothing.

    Attributes:
        worker: the `RolloutWorker`.
        is_empty: the creator made no env; then the other attributes are missing.
        contexts: by number of the sub-env; copies for all but the first sub-env of a vector env.
        host: steps the envs.
        num_envs: number of sub-envs.
        has_agents: the sub-envs have several agents.
        observation_space: of one sub-env, before preprocessing.
        action_space: of one sub-env, before preprocessing.
        failures: handles envs that raise.
        log: keeps the metrics of episodes.
        timer: times the steps.
        counts: what was sampled and discarded, by `COUNTERS`.
        episode_ids: the next ids of episodes, never used before.
        unroll_ids: the next ids of chunks, never used before.

    Raises:
        TypeError: the creator returns another object, or envs with spaces of another kind.
        ValueError: envs that differ in their spaces, or the same env twice.
        Exception: what the creator, the check or a callback raised, as its own type with a note.
        EnvProcessLost: a process of sub-envs died.
    """

    def __init__(self, worker: Any, validate: Check | None) -> None:
        self.worker, self._checks = worker, [] if validate is None else [validate]
        self.log, self.timer, self.counts = MetricsLog(), PerfStats(), dict.fromkeys(COUNTERS, 0)
        self.contexts: dict[int, EnvContext] = {}
        opened: list[Any] = []  # envs, or the host of envs in processes
        with close_on_failure(opened):
            if worker.config.env_processes is not None:
                opened.append(self._process_host(worker.config.env_processes))
            else:
                _add_envs(opened, self._make, range(worker.config.num_envs_per_env_runner))
            self.is_empty = not opened
            if not opened:
                return
            self.host = opened[0] if isinstance(opened[0], ProcessHost) else self._host_of(opened)
            first = self.first
            self.has_agents = isinstance(first, MultiAgentEnv)
            self.observation_space, self.action_space = env_space(first, "observation"), env_space(first, "action")
            self.num_envs, self.stop = self.host.spec.num_envs, self.host.close
            self._rebuilds = [0] * self.num_envs
            for number in {*range(self.num_envs)}.difference(self.contexts):
                self.contexts[number] = self._context(number)
            rebuild = self._rebuild if isinstance(self.host, EnvListHost | MultiAgentHost | ProcessHost) else None
            self.failures = VoidRows(self._restarts(), rebuild, self._next_seed)
            first_id = (worker.worker_index << WORKER_BITS) + (worker.life << LIFE_BITS)
            self.episode_ids, self.unroll_ids = count(first_id), count(first_id)
            self.failures.set_seeds(None if worker.seeds is None else worker.seeds.env_seeds(self.num_envs))

    @property
    def first(self) -> Any:
        """Return sub-env 0 as the creator made it, or the vector env, or a view of envs in processes."""
        return first_env(self.host.env)

    @property
    def vector_env(self) -> Self:
        """Return these envs, under RLlib's name for those that a view is of."""
        return self

    def get_sub_environments(self) -> list[Any]:
        """Return the sub-envs, or the vector env if it shows none, or a view of envs in processes."""
        env = self.host.env
        if isinstance(env, list):
            return list(env)
        sub_envs = env.get_sub_environments() if isinstance(env, VectorEnv) else getattr(env, "envs", ())
        return list(sub_envs) if sub_envs and isinstance(sub_envs, list | tuple) else [env]

    envs = property(get_sub_environments)

    def map(self, func: Callable[..., Any], *, with_contexts: bool = False) -> list[Any]:
        """Return `func(sub_env)`, or `func(sub_env, context)`, of each sub-env, called where the sub-envs are."""
        contexts = [self.contexts[env] for env in range(self.num_envs)] if with_contexts else None
        if isinstance(self.host, ProcessHost):
            return self.host.map(func, contexts)
        return [*(map(func, self.envs) if contexts is None else map(func, self.envs, contexts))]

    def _restarts(self) -> Restarts | None:
        """Return how often envs that raise are rebuilt; None if that is not allowed."""
        config = self.worker.config
        if not config.restart_failed_sub_environments:
            return None
        delay, max_restarts = config.delay_between_sub_environment_restarts_s, config.max_num_sub_environment_restarts
        return Restarts(max_restarts, backoff_s=delay, backoff_max_s=max(LONGEST_DELAY, delay))

    def _rebuild(self, env: int) -> None:
        host: Any = self.host
        make = partial(self._make, env)
        if isinstance(host, ProcessHost):
            make = partial(make_sub_env, self.worker.env_creator, self._checks, self.contexts[env])
        host.replace_env(env, make)

    def _next_seed(self, env: int) -> int | None:
        """Count a rebuild of an env and return its new seed."""
        self._rebuilds[env] += 1
        seeds: Seeds | None = self.worker.seeds
        return None if seeds is None else seeds.rebuilt_env_seed(env, self.num_envs, self._rebuilds[env])

    def _context(self, number: int) -> EnvContext:
        context: EnvContext = self.worker.env_context.copy_with_overrides(vector_index=number)
        return context

    def _make(self, number: int) -> Any:
        """Make and check the sub-env of this number; return None if the creator makes none."""
        worker, context = self.worker, self._context(number)

        def announce(env: Any, context: EnvContext) -> None:
            worker.callbacks.on_sub_environment_created(
                worker=worker, env_runner=worker, sub_environment=env, env_context=context, env_index=number
            )

        env = make_sub_env(worker.env_creator, [*self._checks, announce], context)
        self.contexts[number] = context
        return env

    def _process_host(self, n_processes: int) -> ProcessHost:
        """Return the host of sub-envs in processes, each with as many as the others or one more.

        Raises:
            ValueError: a callback wants the sub-envs.
        """
        worker, config, event = self.worker, self.worker.config, "on_sub_environment_created"
        if listener(worker.callbacks, event) is not None:
            advice = "check them by validate_env, which runs there, or leave env_processes out"
            raise ValueError(f"env_processes={n_processes} keep sub-envs from the callback {event}; {advice}")
        n_envs = config.num_envs_per_env_runner
        stops = [n_envs * index // n_processes for index in range(n_processes + 1)]
        makes = [
            partial(_share_host, worker.env_creator, self._checks, worker.env_context, range(*share))
            for share in pairwise(stops)
        ]
        return ProcessHost(makes, Processes(n_processes, config.step_timeout_s, sends_infos=True))

    def _host_of(self, envs: list[Any]) -> ArrayHost:
        """Return a host for the envs."""
        first = envs[0]
        if isinstance(first, MultiAgentEnv):
            return MultiAgentHost(envs)
        if isinstance(first, VectorEnv):
            return OwnVectorHost(first, lambda: self._make(0))
        if is_vector_env(first):
            return VectorHost(first, lambda: [self._make(0)], exact=True)
        return EnvListHost(envs, exact=True)


def make_sub_env(creator: Callable[[EnvContext], Any], checks: Sequence[Check], context: EnvContext) -> Any:
    """Make the sub-env of a context and check it; return None if the creator makes none."""
    envs: list[Any] = []
    place = f"the making of sub-env {context.vector_index} of worker {context.worker_index}"
    with note_source(place), close_on_failure(envs):
        env = as_multi_agent(creator(context))
        if env is not None:
            envs.append(env)
            for check in checks:
                check(env, context)
        return env


def _add_envs(envs: list[Any], make: Callable[[int], Any], numbers: Iterable[int]) -> None:
    """Append the numbered sub-envs, or the one vector env; nothing if the creator makes none.

    Raises:
        TypeError: the creator returns another object, or envs of several kinds.
        ValueError: it returns the same env twice.
    """
    for number in numbers:
        env = make(number)
        if env is None and not envs:
            return
        if any(env is other for other in envs):
            raise ValueError("env_creator returned the same env twice; it must make a new one at each call")
        is_vector, is_first = isinstance(env, VectorEnv) or is_vector_env(env), not envs
        if hasattr(env, "close"):  # refused envs are closed, too
            envs.append(env)
        if not isinstance(env, gym.Env) and not (is_vector and is_first):
            after = "" if is_first else f" for vector_index={number}, after {envs[0]}; make envs of one kind"
            raise TypeError(f"env_creator made {env!r}{after or f'; it must make {SERVED}'}")
        if is_vector:
            return


def _share_host(
    creator: Callable[[EnvContext], Any], checks: Sequence[Check], base: EnvContext, numbers: range
) -> EnvListHost:
    """Make the sub-envs of one env process, and return their host.

    Raises:
        TypeError: the creator makes no gymnasium env of one agent.
    """
    envs: list[Any] = []
    with close_on_failure(envs):
        contexts = {number: base.copy_with_overrides(vector_index=number) for number in numbers}
        _add_envs(envs, lambda number: make_sub_env(creator, checks, contexts[number]), numbers)
        first = envs[0] if envs else None
        if first is None or isinstance(first, MultiAgentEnv | VectorEnv) or is_vector_env(first):
            result = "None" if first is None else f"{first} ({type(first).__name__})"
            advice = "leave env_processes out, and take more workers"
            raise TypeError(f"env_processes step gymnasium envs of one agent, and env_creator made {result}; {advice}")
        return EnvListHost(envs, exact=True)
