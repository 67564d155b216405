"""The host of envs that live in other processes.

    action leaves ─▶ shared memory ─▶ a process per share of the envs: their host steps them ─▶ shared memory ─▶ leaves

Each process runs the host that its envs would have in this one, so that the same seeds give the same data. A step is
one packet to each process and one back; all arrays are in memory that this process and its env processes share.

A process that dies, or takes too long, is a failure of its envs. It is started again before their next reset.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, starmap
from operator import attrgetter
from typing import Any, cast

from gymnasium import spaces

from swath.errors import EnvProcessLost, SwathError
from swath.keys import nest_entries
from swath.options import count
from swath.rollout.hosts.base import ArrayHost, ArraySpec, Ends, EnvRaised, Host, Infos, Transition
from swath.rollout.hosts.env_server import (
    CLOSE_TIMEOUT_S,
    NO_LIMIT,
    EnvProcess,
    EnvReport,
    Processes,
    StepMemory,
)
from swath.rollout.spaces import Array, Converter, Leaves
from swath.seeds import derive
from swath.workers.create import backend
from swath.workers.outcome import Error
from swath.workers.tickets import ProcessName

# Imported once, not in each process.
PRELOADED = ("swath.rollout.hosts.sources",)


def env_processes(
    number: int | None,
    timeout_s: float,
    initializer: Callable[[], Any] | None,
    info_reader: Callable[[ArraySpec], Any] | None = None,
) -> Processes | None:
    """Return the processes for an option `env_processes`; `None` for none.

    Raises:
        ValueError: a number below 1, or a time limit without processes.
    """
    if number is None:
        if timeout_s != Processes.timeout_s:
            raise ValueError(f"step_timeout_s={timeout_s!r} is for env processes; set env_processes, or leave it out")
        return None
    return Processes(count("env_processes", number), timeout_s, initializer, info_reader)


class ProcessInfos(Sequence[Mapping[str, Any]]):
    """The infos of one step of B envs, fetched from a process when they are first read, before the next step.

    Args:
        host: the envs.
        step: number of the step.
    """

    def __init__(self, host: ProcessHost, step: int) -> None:
        self._host, self._step = host, step
        self._fetched = dict[int, list[Mapping[str, Any]]]()

    def __len__(self) -> int:
        return self._host.spec.num_envs

    def __getitem__(self, env: Any) -> Any:
        if not 0 <= env < len(self):
            raise IndexError(env)
        index, number = self._host.place_of(env)
        if index not in self._fetched:
            self._fetched[index] = self._host.infos_of(index, self._step)
        return self._fetched[index][number]


class ProcessEnvs:
    """The properties and methods of envs in other processes.

    Args:
        run: calls a function with each env in its process.
        spec: properties of the envs.
        attributes: of the first env.

    Attributes:
        num_envs: B.
        observation_space: of one env.
        action_space: of one env.
        metadata: of the first env.
        render_mode: of the first env.
    """

    def __init__(self, run: Callable[[Any], list[Any]], spec: ArraySpec, attributes: Mapping[str, Any]) -> None:
        self.num_envs, self.observation_space, self.action_space = spec.num_envs, *_spaces_of(spec)
        self.metadata, self.render_mode = attributes["metadata"] or {}, attributes["render_mode"]
        self._name, self._run = attributes["name"], run

    def __str__(self) -> str:
        return f"{self._name} in other processes"

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        """Call a function with each env in its process, or with each vector env, and return the values.

        Raises:
            Exception: what the function raised.
        """
        return self._run(function)

    def get_attr(self, name: str) -> list[Any]:
        """Return an attribute of each env.

        Raises:
            AttributeError: an env lacks it.
        """
        return self._run(attrgetter(name))


class ProcessHost(ArrayHost):
    """B envs in P processes.

    Args:
        makes: builds the host of each process.
        options: of the processes.

    Raises:
        Exception: what building an env raised, with a note.
        ValueError: processes whose envs differ in their spaces.
    """

    spec: ArraySpec

    def __init__(self, makes: Sequence[Callable[[], Host]], options: Processes) -> None:
        super().__init__([], None)
        self._makes, self._options, self._lives = makes, options, [0] * len(makes)
        self._lock = threading.Lock()  # users may ask the envs while another thread steps them
        self._workers = backend("process", preload=PRELOADED, bare=options.initializer is not None)
        self._file = os.memfd_create("swath")
        self._n_steps, self._processes, described = 0, list[EnvProcess](), []
        self._begun = list[int]()  # numbers of the calls by which `send` has begun a step
        try:
            for index in range(len(makes)):
                self._processes.append(self._start(index))
            for index, process in enumerate(self._processes):
                process.begin()
                described.append(self.ask(index, "describe"))
            specs = [spec for spec, _ in described]
            self.spec = _joint_spec(specs)
            stops = [*accumulate(spec.num_envs for spec in specs)]
            # The envs of each process, and the process of each env with its number there.
            self._shares = dict(enumerate(starmap(range, pairwise([0, *stops]))))
            self._places = [(index, env - share.start) for index, share in self._shares.items() for env in share]
            self._n_envs, self._first = self.spec.num_envs, 0  # number of all envs, and the first one of this host
            self._info_reader = None if options.info_reader is None else options.info_reader(self.spec)
            self._memory = self._map_memory()
            self._converters = [Converter(leaf, "policy") for leaf in self.spec.action]
            for index in range(len(makes)):
                self._attach(index)
        except BaseException:
            self._release()
            raise
        self._read_limits()
        self._env = ProcessEnvs(self.map, self.spec, described[0][1])

    @property
    def num_processes(self) -> int:
        """Return P."""
        return len(self._shares)

    @property
    def has_lost(self) -> bool:
        """Tell whether a process is lost, which the next reset of its envs replaces."""
        return any(self._processes[index].loss is not None for index in self._shares)

    @property
    def env(self) -> ProcessEnvs:
        """Return an object with the properties of the envs."""
        return self._env

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, in a new process if theirs is lost."""
        calls = dict[int, tuple[Any, ...]]()
        for index, share in self._shares.items():
            share_seeds = None if seeds is None else [*seeds[share.start : share.stop]]
            if self._processes[index].loss is not None:
                self._restart(index)
                share_seeds = share_seeds or self._next_seeds(share)
            calls[index] = "reset_all", share_seeds
            self._processes[index].lost_episodes.clear()
        self._note_seeds(range(self.spec.num_envs), seeds)
        self._begin(calls, range(self.spec.num_envs))
        return [rows.copy() for rows in self._memory.observation]

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs, and return a copy of `base` with their first observations as rows."""
        seed_of = dict(zip(envs, seeds or [None] * len(envs), strict=True))
        by_process = self._group_by_process(envs)
        for index in by_process:
            if self._processes[index].loss is not None:
                self._replace(index)
        self._note_seeds(envs, seeds)
        calls = dict[int, tuple[Any, ...]]()
        for index, numbers in by_process.items():
            start, lost_episodes = self._shares[index].start, self._processes[index].lost_episodes
            for number in numbers:
                lost_episodes.pop(number, None)
            calls[index] = "reset", numbers, None if seeds is None else [seed_of[start + number] for number in numbers]
        resets_later = self._begin(calls, envs)
        reset_now = [env for env in envs if not resets_later[self._places[env][0]]]
        if not reset_now:
            return base
        observation = [leaf.copy() for leaf in base]
        for leaf, rows in zip(observation, self._memory.observation, strict=True):
            leaf[reset_now] = rows[reset_now]
        return observation

    def send(self, action: Leaves) -> None:
        """Begin a step of every env, which `step` completes."""
        self._owner.require_here("env processes")
        self._write(action)
        with self._lock:
            self._begun = [self._processes[index].send() for index in self._shares]

    def step(self, action: Leaves, only: int | None = None) -> Transition:
        """Step every env that is not retired, or the env `only`, also after an env has failed."""
        memory = self._memory
        if only is not None:
            self._write(action)
            index, number = self._places[only]
            answers = self._call({index: ("step", number)})
        else:
            if not self._begun:
                self.send(action)
            numbers, self._begun = self._begun, []
            with self._lock:
                answers = self._receive(self._shares, numbers, self._options.timeout_s)
        errors = dict[int, Exception]()
        for index, share in self._shares.items():
            for number, loss in self._processes[index].lost_episodes.items():
                errors[share.start + number] = loss
        for index, answer in answers.items():
            if answer is not None:
                errors |= self._errors(index, answer)
        ends = Ends.from_flags(memory.terminated, memory.truncated)
        if only is not None:
            ends = ends.without([env for env in range(self.spec.num_envs) if env != only])
            errors = {only: errors[only]} if only in errors else {}
        if errors:
            ends = ends.without([*errors])
        failed = sorted(errors.items())
        void = memory.void.nonzero()[0].tolist() if self.spec.next_step_autoreset else ()
        observation = [rows.copy() for rows in memory.observation]
        return Transition(observation, memory.reward.copy(), ends, void, failed, self._infos(answers))

    def seed_of(self, env: int) -> int | None:
        """Return the last seed of this env, or `None`."""
        return super().seed_of(self._first + env)

    def retire(self, envs: Sequence[int]) -> None:
        """Stop stepping these envs until `reset_all`, if possible."""
        self._call({index: ("retire", numbers) for index, numbers in self._group_by_process(envs).items()})

    def render(self, env: int) -> Array | None:
        """Return a frame of this env, or `None` if it does not render."""
        index, number = self._places[env]
        frame: Array | None = self.ask(index, "render", number)
        return frame

    def info_of(self, env: int) -> Mapping[str, Any]:
        """Return the info dict that came with the latest observation of this env."""
        index, number = self._places[env]
        info: Mapping[str, Any] = self.ask(index, "info_of", number)
        return info

    def ask(self, index: int, *call: Any) -> Any:
        """Call a method of the `EnvServer` of one process, and return the value.

        Raises:
            Exception: what the call raised.
        """
        answer = self._call({index: call})[index]
        if isinstance(answer, Error):
            raise answer.exception
        return answer

    def map(self, function: Callable[..., Any], arguments: Sequence[Any] | None = None) -> list[Any]:
        """Call a function with each env in its process, or with each vector env, and return the values.

        Args:
            function: called with an env.
            arguments: a second argument for each env; `None` for none.

        Raises:
            Exception: what the function raised.
            EnvProcessLost: a process has died.
        """
        values = list[Any]()
        for index, share in self._shares.items():
            share_arguments = None if arguments is None else arguments[share.start : share.stop]
            values += self.ask(index, "map", function, share_arguments)
        return values

    def replace_env(self, env: int, make: Callable[[], Any]) -> None:
        """Close this env and build another in its place, which has to be reset before it is stepped.

        Where its process is lost, another one builds all of its envs.

        Raises:
            Exception: what building it raised.
        """
        index, number = self._places[env]
        if self._processes[index].loss is not None:
            try:
                self._replace(index)
            except EnvRaised as raised:
                raise raised.cause from raised
        elif number not in self._processes[index].lost_episodes:  # a lost episode is not new
            self.ask(index, "replace_env", number, make)

    def place_of(self, env: int) -> tuple[int, int]:
        """Return the process of an env, and its number there."""
        return self._places[env]

    def infos_of(self, index: int, step: int) -> list[Mapping[str, Any]]:
        """Return the infos of a step of the envs of one process.

        Args:
            index: of the process.
            step: number of the step.

        Raises:
            SwathError: the envs have been stepped since.
        """
        if step != self._n_steps:
            raise SwathError("infos of env processes are kept until the next step; read them before")
        infos: list[Mapping[str, Any]] = self.ask(index, "infos")
        return infos

    def rebuild(self) -> Leaves:
        """End all processes, begin others, and an episode in every env.

        Raises:
            EnvRaised: building or resetting an env failed.
        """
        self._close_envs()
        for index in self._shares:
            self._processes[index].kill()
            self._restart(index)
        return self.reset_all()

    def close(self) -> None:
        """Close every env, end the processes, and raise the error of an env that failed to close.

        A second call does nothing.
        """
        if not self._closed and self._owner.is_here:
            self._closed = True
            answers = self._close_envs()
            self._release()
            for answer in answers:
                if isinstance(answer, Error) and not isinstance(answer.exception, EnvProcessLost):
                    raise answer.exception

    def halves(self) -> list[ProcessHost]:
        """Return two hosts, each of the envs of one half of the processes, which both may step at the same time.

        Only this host closes the processes.
        """
        indices, halves = [*self._shares], [copy.copy(self), copy.copy(self)]
        middle = len(indices) // 2
        halves[0].select_processes(indices[:middle])
        halves[1].select_processes(indices[middle:])
        return halves

    def select_processes(self, indices: Sequence[int]) -> None:
        """Keep the envs of some processes only, which follow one another."""
        start, stop = self._shares[indices[0]].start, self._shares[indices[-1]].stop
        n, limited = stop - start, bool(self.spec.limits)
        self._shares = {i: range(self._shares[i].start - start, self._shares[i].stop - start) for i in indices}
        self._places, self._first = self._places[start:stop], start
        self._memory = self._map_memory()
        self._memory.select_envs(start, stop)
        self.spec = replace(self.spec, num_envs=n, batch_shape=(n,), limits=[None] * n if limited else [])
        self._read_limits()

    def _map_memory(self) -> StepMemory:
        n_infos = 0 if self._info_reader is None else len(self._info_reader.keys)
        return StepMemory(self._file, self._n_envs, self.spec.observation, self.spec.action, n_infos)

    def _infos(self, answers: Mapping[int, Any]) -> Infos:
        """Return the infos of a step: complete ones, their entries, or an object that fetches them."""
        if self._options.sends_infos and len(answers) == len(self._shares):
            reports = [(answers[index], len(share)) for index, share in self._shares.items()]
            return [info for report, n in reports for info in getattr(report, "infos", ()) or [{}] * n]
        if self._info_reader is not None:
            return nest_entries(zip(self._info_reader.keys, [rows.copy() for rows in self._memory.infos], strict=True))
        return ProcessInfos(self, self._n_steps)

    def _write(self, action: Leaves) -> None:
        self._n_steps += 1
        for rows, leaf, convert in zip(self._memory.action, action, self._converters, strict=False):
            rows[...] = convert(leaf)

    def _start(self, index: int) -> EnvProcess:
        name = ProcessName(index, self._lives[index])
        return EnvProcess(self._workers, name, self._makes[index], self._file, self._options)

    def _restart(self, index: int) -> None:
        """Begin the next life of a process.

        Raises:
            EnvRaised: building an env failed.
        """
        self._lives[index] += 1
        try:
            process = self._processes[index] = self._start(index)
            process.begin()
            self._attach(index)
        except Exception as error:
            raise EnvRaised(self._shares[index].start, error) from error

    def _replace(self, index: int) -> None:
        """Begin the next life of a lost process, and an episode in its envs, whose running episodes are lost.

        Raises:
            EnvRaised: building or resetting an env failed.
        """
        loss, share = cast(Exception, self._processes[index].loss), self._shares[index]
        self._restart(index)
        self._processes[index].lost_episodes.update(dict.fromkeys(range(len(share)), loss))
        self._begin({index: ("reset_all", self._next_seeds(share))}, share)

    def _attach(self, index: int) -> None:
        self.ask(index, "attach", self._n_envs, self._shares[index].start + self._first, self._options)

    def _close_envs(self) -> list[Any]:
        return [*self._call(dict.fromkeys(self._shares, ("close",)), CLOSE_TIMEOUT_S).values()]

    def _release(self) -> None:
        for process in self._processes:
            process.kill()
        self._workers.close()
        os.close(self._file)

    def _call(self, calls: Mapping[int, tuple[Any, ...]], timeout_s: float | None = None) -> dict[int, Any]:
        """Call processes at the same time, and return their answers by index."""
        self._owner.require_here("env processes")
        with self._lock:
            numbers = [self._processes[index].send(*call) for index, call in calls.items()]
            return self._receive(calls, numbers, self._options.timeout_s if timeout_s is None else timeout_s)

    def _receive(self, indices: Iterable[int], numbers: Sequence[int], timeout_s: float) -> dict[int, Any]:
        """Receive the answers to calls of processes, by index of the process."""
        deadline, pairs = time.monotonic() + timeout_s, zip(indices, numbers, strict=True)
        return {index: self._processes[index].receive(number, deadline) for index, number in pairs}

    def _errors(self, index: int, answer: Any) -> dict[int, Exception]:
        """Return the errors of the envs of a process that failed.

        Raises:
            Exception: a call failed for another reason.
        """
        share = self._shares[index]
        if isinstance(answer, EnvReport):
            return {share.start + env: cast(Exception, error.exception) for env, error in answer.errors}
        if isinstance(answer, Error):
            if not isinstance(answer.exception, EnvProcessLost):
                raise answer.exception
            return dict.fromkeys(share, answer.exception)
        return {}

    def _begin(self, calls: Mapping[int, tuple[Any, ...]], envs: Sequence[int]) -> dict[int, Any]:
        """Call processes to begin episodes in these envs, and return their answers.

        Raises:
            EnvRaised: a reset failed.
        """
        answers = self._call(calls)
        for index, answer in answers.items():
            for env, error in self._errors(index, answer).items():
                if env in envs:  # a lost process fails others, too
                    raise EnvRaised(env, error) from error
        self._read_limits()
        return answers

    def _group_by_process(self, envs: Sequence[int]) -> dict[int, list[int]]:
        """Return the envs by process, as their numbers there."""
        by_process = defaultdict[int, list[int]](list)
        for env in envs:
            index, number = self._places[env]
            by_process[index].append(number)
        return dict(by_process)

    def _note_seeds(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> None:
        if seeds is not None and self.spec.seeding == "episode":
            pairs = zip(envs, seeds, strict=True)
            self._seeds.update({self._first + env: seed for env, seed in pairs if seed is not None})

    def _next_seeds(self, envs: Sequence[int]) -> list[int | None]:
        """Return seeds for envs in a new process, which follow from their last seeds."""
        last = [*map(self.seed_of, envs)]
        seeds = [None if seed is None else derive(seed, "next") for seed in last]
        self._note_seeds(envs, seeds)
        return seeds

    def _read_limits(self) -> None:
        if limits := cast(list[int | None], self.spec.limits):
            limits[:] = [None if limit == NO_LIMIT else limit for limit in self._memory.limits.tolist()]


def _spaces_of(spec: ArraySpec) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    return spec.observation_space, spec.action_space


def _forms_of(spec: ArraySpec) -> list[tuple[Any, ...]]:
    return [(leaf.key, leaf.shape, str(leaf.dtype)) for leaf in (*spec.observation, *spec.action)]


def _joint_spec(specs: Sequence[ArraySpec]) -> ArraySpec:
    """Return the properties of the envs of all processes together.

    Raises:
        ValueError: envs whose spaces differ, or several single envs without a dimension.
    """
    first, n = specs[0], sum(spec.num_envs for spec in specs)
    for index, spec in enumerate(specs):
        if _spaces_of(spec) != _spaces_of(first):
            difference = f"env process {index} has {_spaces_of(spec)}, env process 0 has {_spaces_of(first)}"
            raise ValueError(f"envs of one worker must agree in their spaces: {difference}")
        if (forms := _forms_of(spec)) != _forms_of(first):
            difference = f"env process {index} has {forms}, env process 0 has {_forms_of(first)}"
            raise ValueError(f"envs of one worker must agree in their entries: {difference}")
    if n > 1 and not first.batch_shape:
        raise ValueError(f"env_processes={len(specs)} for a single env; say with envs_per_worker how many to build")
    limits = list[int | None]([None] * n if first.limits else [])
    return replace(first, num_envs=n, batch_shape=first.batch_shape if n == 1 else (n,), limits=limits)
