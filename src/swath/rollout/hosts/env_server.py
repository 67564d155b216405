"""An env process, from both sides: it steps its share of the envs, as the host of all envs asks.

EnvProcess ─▶ call ─▶ method of EnvServer ─▶ the host of the share ─▶ rows in shared memory ─▶ None, or what failed
"""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from swath.errors import BadAnswer, EnvProcessLost, WorkerLost
from swath.rollout.hosts.base import ArrayHost, ArraySpec, EnvRaised, Host, first_env
from swath.rollout.hosts.results import info_of
from swath.rollout.spaces import Array, Leaf, Leaves
from swath.workers.base import Backend, Job
from swath.workers.outcome import Error
from swath.workers.tickets import ProcessName

NO_LIMIT = -1
_ALIGNMENT = 64

START_TIMEOUT_S = 300.0
CLOSE_TIMEOUT_S = 10.0


class StepMemory:
    """Actions and results of one step of B envs, in shared memory.

    Args:
        fd: of its file, which grows to the size that is needed.
        num_envs: B.
        observation: leaves of one env's observation.
        action: leaves of one env's action.
        n_infos: how many entries of infos are read.

    Attributes:
        observation: leaves `[B, …]`.
        action: leaves `[B, …]`.
        infos: float32 `[B]` each.
        reward: float64 `[B]`.
        terminated: bool `[B]`.
        truncated: bool `[B]`.
        void: bool `[B]`: the row is no transition.
        limits: int64 `[B]`: step limits of running episodes; -1 for none.
    """

    def __init__(
        self, fd: int, num_envs: int, observation: Sequence[Leaf], action: Sequence[Leaf], n_infos: int
    ) -> None:
        forms = [(leaf.shape, leaf.dtype) for leaf in (*observation, *action)]
        kinds = *[np.float32] * n_infos, np.float64, np.bool_, np.bool_, np.bool_, np.int64
        forms += [((), np.dtype(kind)) for kind in kinds]
        starts, end = [], 0
        for shape, dtype in forms:
            starts.append(end)
            size = num_envs * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        if os.fstat(fd).st_size < end:
            os.ftruncate(fd, end)
        memory = mmap.mmap(fd, end)
        arrays = [
            np.ndarray((num_envs, *shape), dtype, memory, start)
            for (shape, dtype), start in zip(forms, starts, strict=True)
        ]
        n, m = len(observation), len(observation) + len(action)
        self.observation, self.action, self.infos = arrays[:n], arrays[n:m], arrays[m:-5]
        self.reward, self.terminated, self.truncated, self.void, self.limits = arrays[-5:]

    def select_envs(self, first: int, stop: int) -> None:
        """Keep the rows of some envs only."""
        envs, leaves = slice(first, stop), (self.observation, self.action, self.infos)
        self.observation, self.action, self.infos = ([rows[envs] for rows in group] for group in leaves)
        self.reward, self.terminated, self.truncated = self.reward[envs], self.terminated[envs], self.truncated[envs]
        self.void, self.limits = self.void[envs], self.limits[envs]


@dataclass(frozen=True)
class EnvReport:
    """What a process reports of its envs after a call.

    Attributes:
        errors: index within the process and error of each env that raised.
        infos: one per env; empty if none was asked for.
    """

    errors: Sequence[tuple[int, Error]]
    infos: Sequence[Mapping[str, Any]] = ()


class EnvServer:
    """Steps the envs of one process, as their host asks.

    Args:
        make_host: builds the host that the envs have in this process.

    Raises:
        TypeError: the host has no arrays.
    """

    def __init__(self, make_host: Callable[[], Host]) -> None:
        host = make_host()
        if not isinstance(host, ArrayHost) or host.spec.of_tensors:
            kind = type(first_env(host.env)).__name__
            host.close()
            kinds = "envs of gymnasium and PettingZoo, vector envs of arrays and TorchRL's envs with a plan"
            raise TypeError(f"env_processes are for {kinds}, not for {kind}")
        self._host = host
        self._memory: StepMemory | None = None
        self._leaves = [np.zeros((host.spec.num_envs, *leaf.shape), leaf.dtype) for leaf in host.spec.observation]
        self._info, self._info_reader, self._sends_infos = cast(Any, ()), cast(Any, None), False

    def serve(self) -> None:
        """Answer calls until the caller is gone; a step is a call without a method."""
        from swath.workers.process.lane import Lane  # noqa: PLC0415  on Linux only
        from swath.workers.process.worker import inherited_fds  # noqa: PLC0415  the same

        lane = Lane(socket.socket(fileno=inherited_fds[0]))
        with suppress(ConnectionError):
            while True:
                number, call = lane.receive()
                method, *args = call or ("step",)
                try:
                    answer = getattr(self, method)(*args)
                except EnvRaised as raised:
                    answer = EnvReport([(raised.env, Error(raised.cause))])
                except Exception as error:  # noqa: BLE001  the caller raises it
                    answer = Error(error)
                try:
                    lane.send(number, answer)
                except TypeError as error:
                    lane.send(number, Error(error))

    def describe(self) -> tuple[ArraySpec, dict[str, Any]]:
        """Return properties of the envs, and attributes of the first."""
        env = first_env(self._host.env)
        attributes = {name: getattr(env, name, None) for name in ("metadata", "render_mode")}
        return self._host.spec, {**attributes, "name": str(env)}

    def attach(self, num_envs: int, first: int, options: Processes) -> None:
        """Use the memory of all B envs, of which this process has some.

        Args:
            num_envs: B.
            first: index of the first env of this process.
            options: of the processes.
        """
        from swath.workers.process.worker import inherited_fds  # noqa: PLC0415  on Linux only

        spec, self._sends_infos = self._host.spec, options.sends_infos
        self._info_reader = None if options.info_reader is None else options.info_reader(spec)
        n_infos = 0 if self._info_reader is None else len(self._info_reader.keys)
        self._memory = StepMemory(inherited_fds[1], num_envs, spec.observation, spec.action, n_infos)
        self._memory.select_envs(first, first + spec.num_envs)
        self._write_limits()

    def reset_all(self, seeds: Sequence[int | None] | None) -> None:
        """Begin an episode in every env."""
        self._write_observation(self._host.reset_all(seeds))

    def reset(self, envs: Sequence[int], seeds: Sequence[int | None] | None) -> bool:
        """Begin an episode in these envs; return whether that happens within the next step."""
        leaves = self._host.reset(envs, self._leaves, seeds)
        if leaves is self._leaves:
            return True
        self._write_observation(leaves)
        return False

    def step(self, only: int | None = None) -> EnvReport | None:
        """Step every env, or one; return errors and infos, or `None` if there are none."""
        memory = self._memory
        assert memory is not None
        transition = self._host.step([rows.copy() for rows in memory.action], only)  # envs may keep their action
        self._info = transition.info
        errors = [(env, Error(error)) for env, error in transition.failed]
        if transition.ends.lacks_final is not None:
            message = "episodes ended without infos['final_obs'], and env processes do not mark rows without them"
            error = BadAnswer(f"{message}; have the vector env send them, or leave env_processes out")
            errors = [(env, Error(error)) for env in range(self._host.spec.num_envs)]
        if errors and not self._host.spec.steps_singly:
            return EnvReport(errors)
        self._leaves = transition.observation
        for rows, leaf in zip(memory.observation, transition.observation, strict=True):
            rows[...] = leaf
        memory.reward[...], ends = transition.reward, transition.ends
        memory.terminated[...] = memory.truncated[...] = memory.void[...] = False
        if len(ends.envs):
            memory.terminated[ends.envs], memory.truncated[ends.envs] = ends.terminated, ends.truncated
        if transition.void:
            memory.void[transition.void] = True
        if self._info_reader is not None:
            for rows, values in zip(memory.infos, self._info_reader.read(transition.info, ends), strict=True):
                rows[...] = values
        infos = self.infos() if self._sends_infos else []
        return EnvReport(errors, infos) if errors or any(infos) else None

    def retire(self, envs: Sequence[int]) -> None:
        """Stop stepping these envs."""
        self._host.retire(envs)

    def render(self, env: int) -> Array | None:
        """Return a frame of this env."""
        return self._host.render(env)

    def infos(self) -> list[Mapping[str, Any]]:
        """Return the infos of the last step, one per env."""
        return [info_of(self._info, env) for env in range(self._host.spec.num_envs)]

    def info_of(self, env: int) -> Mapping[str, Any]:
        """Return the info dict that came with the latest observation of this env."""
        return self._host.info_of(env)

    def map(self, function: Callable[..., Any], arguments: Sequence[Any] | None = None) -> list[Any]:
        """Call a function with each env and its argument, or with the vector env, and return the values."""
        env = self._host.env
        envs = env if isinstance(env, list) else [env]
        return [*(map(function, envs) if arguments is None else map(function, envs, arguments))]

    def replace_env(self, env: int, make: Callable[[], Any]) -> None:
        """Close this env and build another in its place."""
        cast(Any, self._host).replace_env(env, make)

    def close(self) -> None:
        """Close the envs."""
        self._host.close()

    def _write_observation(self, leaves: Leaves) -> None:
        assert self._memory is not None
        self._leaves = leaves
        for rows, leaf in zip(self._memory.observation, leaves, strict=True):
            rows[...] = leaf
        self._write_limits()

    def _write_limits(self) -> None:
        if self._memory is not None and self._host.spec.limits:
            limits = self._host.spec.limits
            self._memory.limits[...] = [NO_LIMIT if limit is None else limit for limit in limits]


# The caller's side


@dataclass(frozen=True)
class Processes:
    """The processes that envs live in.

    Attributes:
        number: P.
        timeout_s: most seconds that the envs of one process may take for a step or a reset, together.
        initializer: runs first in each process; `None` for nothing.
        info_reader: returns a reader of entries of infos for properties of envs; `None` for no entries.
        sends_infos: whether every step brings the infos of all envs along; else they are fetched when they are read.
    """

    number: int
    timeout_s: float = 300.0
    initializer: Callable[[], Any] | None = None
    info_reader: Callable[[ArraySpec], Any] | None = None
    sends_infos: bool = False


class EnvProcess:
    """One life of an env process, as the host calls it.

    Args:
        workers: starts the process.
        name: of this life.
        make_host: builds the host of its envs.
        memory: a file that all env processes of a host share.
        options: of the processes.

    Attributes:
        loss: why it cannot be called; `None` while it lives.
        lost_episodes: envs, by number in the process, whose episode was lost with the last process and that have not
            been reset since, with the reason.
    """

    def __init__(
        self, workers: Backend, name: ProcessName, make_host: Callable[[], Host], memory: int, options: Processes
    ) -> None:
        from swath.workers.process.fork_server import socket_pair  # noqa: PLC0415  on Linux only
        from swath.workers.process.lane import Lane  # noqa: PLC0415  the same

        self.loss: EnvProcessLost | None = None
        self.lost_episodes = dict[int, Exception]()
        self._workers, self._timeout_s, self._number = workers, options.timeout_s, 0
        self._answers = dict[int, Any]()  # received before they were asked for
        sock, process_sock = socket_pair()
        self._lane = Lane(sock)
        with process_sock:
            fds = process_sock.fileno(), memory
            self._handle = workers.spawn(
                Job(partial(EnvServer, make_host), name, initializer=options.initializer, fds=fds)
            )

    def begin(self) -> None:
        """Wait until the envs are built, and have them serve.

        Raises:
            Exception: what building an env raised.
            EnvProcessLost: the process died, or was not ready in time.
        """
        if not self._workers.wait([self._handle.ready], START_TIMEOUT_S):
            self._note_loss(f"was killed: its envs were not built within {START_TIMEOUT_S:g} s")
        elif isinstance(self._handle.ready.error, WorkerLost):
            self._note_loss()
        if (error := self.loss or self._handle.ready.error) is not None:
            self.kill()
            raise error
        self._workers.call(self._handle, "serve")

    def send(self, *call: Any) -> int:
        """Send a call, a method of `EnvServer` and its arguments; without any, a step. Return its number."""
        self._number += 1
        if not call:
            self._answers.clear()
        if self.loss is None:
            with suppress(ConnectionError, TimeoutError):  # `receive` notices
                self._lane.send(self._number, call or None)
        return self._number

    def receive(self, number: int, deadline: float) -> Any:
        """Receive the answer to a call; an `Error` if the process died, or did not answer in time.

        Args:
            number: of the call.
            deadline: in seconds of `time.monotonic`.
        """
        while self.loss is None:
            if number in self._answers:
                return self._answers.pop(number)
            try:
                received, answer = self._lane.receive(deadline)
            except TimeoutError:
                self._note_loss(f"was killed: a call of its envs took longer than step_timeout_s={self._timeout_s:g}")
            except ConnectionError:
                self._note_loss()
            else:
                if received == number:
                    return answer
                self._answers[received] = answer  # answers an earlier step, or an abandoned call
        return Error(self.loss)

    def kill(self) -> None:
        """Kill the process."""
        if self.loss is None:
            self._note_loss("was ended")

    def _note_loss(self, kill_reason: str | None = None) -> None:
        """Wait for the end of the process, killed for a reason if it does not end by itself, and note how it ended."""
        if kill_reason is not None:
            self._handle.kill(kill_reason)
        self._workers.wait([self._handle.ended], CLOSE_TIMEOUT_S)
        self.loss = EnvProcessLost(str(self._handle.ended.error or f"{self._handle.name} does not answer"))
        self._lane.close()
