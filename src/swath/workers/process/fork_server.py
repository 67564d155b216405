"""A single-threaded process that has imported the modules of workers, and forks a worker on request.

    driver ─ preload, start ───────▶ fork server ─ forks, reaps ─▶ worker
    driver ◀─ pid, exit ──────────── the worker's own socket

A fork takes milliseconds, a fresh interpreter seconds. All backends of a driver share one server, and a bare one, which
imports nothing, for workers with an initializer that runs before torch is imported. Workers are processes of
`multiprocessing`. Its "forkserver" method breaks promises of this library:

- It runs the program's main module again in each worker, so that programs need a guard.
- It ends when its pipe is closed, and workers and forks of the driver have the pipe open, too: a worker that hangs, or
  a fork, keeps the server and all workers alive when the driver was killed.
- A process has only one, which belongs to the program, and its imports are fixed before it starts.
- A failed import ends it, and workers write to the streams that the driver had when it started the server.

All sockets carry packets (`SOCK_SEQPACKET`): a message, and the descriptors that come with it, arrive whole or not at
all. The connections of `multiprocessing` send a message in pieces, so that Ctrl-C can leave both sides out of step.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import io
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from weakref import WeakSet

from swath.owner import Owner
from swath.workers.hosting import THREAD_SETTINGS, run_and_capture, run_serialized
from swath.workers.outcome import Error

_POLL_DRIVER_S = 1.0
_SEND_TIMEOUT_S = 60.0
_MAX_MESSAGE_BYTES = 1 << 17
_MAX_FDS = 8
_PR_SET_PDEATHSIG = 1
_VARIABLES = {
    **dict.fromkeys(THREAD_SETTINGS, "1"),  # no library starts threads before the forks
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # no import touches the CUDA driver, which does not survive forks
}


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a new connection that carries packets."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class ForkServer:
    """The driver's side of the server. Used by any thread.

    Args:
        bare: whether the server imports nothing.

    Attributes:
        bare: the argument.
        users: the backends that use the server.
    """

    def __init__(self, *, bare: bool) -> None:
        self.bare = bare
        self.users = WeakSet[object]()
        self._owner = Owner()
        self._lock = threading.Lock()
        self._sock, server_sock = socket_pair()
        self._sock.settimeout(_SEND_TIMEOUT_S)
        start = f"import sys; sys.path[:] = {_module_path()}; from {__name__} import ServerProcess; ServerProcess"
        with server_sock:
            self._process = subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-c", f"{start}({server_sock.fileno()}).run({self._owner.pid})"],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_VARIABLES},
                pass_fds=[server_sock.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal interrupts the driver alone
            )

    @property
    def usable(self) -> bool:
        """Return whether the server runs and belongs to this process: a fork of the driver must start its own."""
        return self._owner.is_here and self._process.poll() is None

    def end(self) -> str:
        """Kill the server, wait for its end, and describe how it ended."""
        self._process.kill()
        with self._lock:
            self._sock.close()
        return describe_exit(self._process.wait())

    def send(self, method: str, *args: object, fds: Sequence[int] = ()) -> None:
        """Call a method of `ServerProcess`, without waiting for it."""
        lost = BrokenPipeError, ConnectionResetError, TimeoutError
        with self._lock, contextlib.suppress(*lost):  # the thread that follows the worker notices
            if self._sock.fileno() >= 0:
                socket.send_fds(self._sock, [pickle.dumps((method, *args))], fds)


def join(user: object, preload: Sequence[str]) -> ForkServer:
    """Return the server of this process; start it if none runs.

    Args:
        user: a backend, which uses the server until it leaves.
        preload: modules to import for later workers; without any, the bare server is returned.
    """
    bare = not preload
    with _lock:
        server = _servers.get(bare)
        if server is None or not server.usable:
            server = _servers[bare] = ForkServer(bare=bare)
        server.users.add(user)
    server.send("preload", list(preload), _module_path())
    return server


def leave(user: object, server: ForkServer) -> bool:
    """Stop using a server; return whether it has no users left, and must be ended. A second call does nothing."""
    with _lock:
        server.users.discard(user)
        if not server.users and _servers.get(server.bare) is server:
            del _servers[server.bare]
        return not server.users


def kill_group(pid: int) -> None:
    """Kill a worker and all processes that it has started."""
    for kill in (os.killpg, os.kill):  # it is in its own group as soon as it runs
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def describe_exit(exit: int | str) -> str:  # noqa: A002  the field's name
    """Describe an exit code, or minus the number of a signal; words stay."""
    if not isinstance(exit, int):
        return exit
    return f"was killed by {signal.Signals(-exit).name}" if exit < 0 else f"ended with exit code {exit}"


class ServerProcess:
    """The server's own side: answers the driver, which sends names of methods.

    Args:
        fd: a socket to the driver.
    """

    def __init__(self, fd: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if sys.stderr is not None:
            faulthandler.enable()
        self._pid = os.getpid()
        self._sock = socket.socket(fileno=fd)
        self._workers: dict[int, tuple[ForkProcess, int, socket.socket]] = {}  # keys are descriptors of the processes

    def run(self, driver: int) -> None:
        """Fork and reap workers until the driver is gone, then kill the rest.

        The sentinels of `multiprocessing` do not help: they stay open while a process that a worker has forked lives.
        """
        while os.getppid() == driver:
            ready = wait([self._sock, *self._workers], _POLL_DRIVER_S)
            for ended in self._workers.keys() & set(ready):
                self._reap(ended)
            if self._sock in ready:
                message, fds, flags, _ = socket.recv_fds(
                    self._sock, _MAX_MESSAGE_BYTES, _MAX_FDS, socket.MSG_CMSG_CLOEXEC
                )
                if not message:
                    break
                if flags & socket.MSG_CTRUNC:
                    _refuse(fds)
                    continue
                method, *args = pickle.loads(message)  # noqa: S301  our own driver wrote it
                getattr(self, method)(*args, *fds)
        for _, pid, _ in self._workers.values():
            kill_group(pid)
        for process, _, _ in self._workers.values():
            process.join()

    def preload(self, modules: Sequence[str], path: Sequence[str]) -> None:
        """Import these modules, which are found on this path."""
        sys.path[:] = path
        for module in modules:
            with contextlib.suppress(Exception):  # the worker that needs the module raises it again
                import_module(module)
        gc.collect()
        gc.freeze()  # workers share this memory: their collections must not touch it

    def start(self, number: int, name: str, fd: int, *fds: int) -> None:
        """Fork a worker.

        Args:
            number: number of the ticket for the build.
            name: name of the process.
            fd: descriptor of its socket.
            *fds: descriptors of a file with its start-up data, two arenas, standard output and error, and of the job's
                files.
        """
        sock = socket.socket(fileno=fd)
        process = ForkProcess(target=self._run_worker, args=(number, sock, *fds), name=name)
        try:
            process.start()
        except OSError as error:
            with sock:
                _report(sock, f"could not be forked: {error}")
        else:
            assert process.pid is not None
            self._workers[os.pidfd_open(process.pid)] = process, process.pid, sock
            _report(sock, process.pid)
        for other_fd in fds:
            os.close(other_fd)

    def _reap(self, ended: int) -> None:
        process, pid, sock = self._workers.pop(ended)
        os.close(ended)
        kill_group(pid)  # before the system can reuse the number
        process.join()
        with sock:
            _report(sock, process.exitcode or 0)

    def _run_worker(self, number: int, sock: socket.socket, setup: int, *fds: int) -> None:
        os.setsid()  # killed with the processes that it starts; Linux gives each session its share of a busy machine
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the server's death kills it
        if os.getppid() != self._pid:
            os._exit(1)
        self._sock.close()
        for ended, (_, _, other) in self._workers.items():
            os.close(ended)
            other.close()
        driver_arena, worker_arena, output, errors, *others = fds
        for standard, fd in enumerate((output, errors), start=1):
            os.dup2(fd, standard)
            os.close(fd)
        _serve(number, sock, setup, (driver_arena, worker_arena), others)


def _refuse(fds: Sequence[int]) -> None:
    """Report that a worker cannot be forked, because descriptors are missing; the first one is its socket."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for fd in fds[:1]:
        with socket.socket(fileno=fd) as sock:
            _report(
                sock,
                f"could not be forked: the process that forks has no file descriptors left (RLIMIT_NOFILE={limit})",
            )
    for fd in fds[1:]:
        os.close(fd)


def _serve(number: int, sock: socket.socket, setup: int, arenas: tuple[int, int], fds: list[int]) -> None:
    """Set the process up as a worker and serve calls until the driver disconnects."""
    with open(setup, "rb") as stream:
        environment, name, threads, initializer, build = pickle.load(stream)  # noqa: S301  our own driver wrote it
    outcome = run_and_capture(_set_environment, *environment)
    if not isinstance(outcome, Error):
        outcome = run_serialized(initializer)
    from swath.workers.packing import initialize_process  # noqa: PLC0415  imports torch: after the initializer
    from swath.workers.process.worker import WorkerServer, inherited_fds  # noqa: PLC0415  the same

    inherited_fds[:] = fds
    initialize_process(threads)
    with sock, contextlib.suppress(ConnectionError):
        WorkerServer(sock, arenas, name).run(number, outcome, build)


def _set_environment(
    settings: dict[str, str], path: list[str], argv: list[str], directory: str, start_method: str | None, authkey: bytes
) -> None:
    """Give this process the caller's variables, paths, arguments and working directory."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # output appears before a worker is killed
    os.environ.clear()
    os.environ.update(settings)
    sys.path[:] = path
    sys.argv[:] = argv
    os.chdir(directory)
    multiprocessing.set_start_method(start_method, force=True)
    multiprocessing.current_process().authkey = authkey


def _report(sock: socket.socket, event: int | str) -> None:
    with contextlib.suppress(BrokenPipeError):  # the driver is gone
        sock.send(pickle.dumps(event))


def _module_path() -> list[str]:
    """Return the search path of modules, with the working directory in full."""
    return [str(part) or str(Path.cwd()) for part in sys.path]


_lock = threading.Lock()
_servers: dict[bool, ForkServer] = {}  # keys: whether the server is bare
