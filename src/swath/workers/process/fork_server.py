"""A process of one thread that has imported what workers need, and forks one whenever it is asked to.

    driver ─ preload, start ───────▶ fork server ─ forks, reaps ─▶ worker
    driver ◀─ pid, exit ──────────── the worker's own socket

A fork takes milliseconds where a fresh interpreter takes seconds. All backends of a driver share one server, and a
bare one, in which nothing is imported, where something is to run before torch is imported. Workers are processes of
`multiprocessing`. The server is not the one of its "forkserver" method, which breaks promises of ours:

- It runs the program's main module again in each worker, so that programs need a guard.
- It ends when all that have its pipe have ended, and workers and forks of the driver have it, too: a worker that hangs,
  or such a fork, keeps the server and all workers alive when the driver was killed.
- There is one for each process, which belongs to the program, and what it imports is said before it starts.
- A module that cannot be imported early ends it, and workers write where the driver wrote when it was started.

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
from swath.workers.hosting import THREAD_SETTINGS, attempted, ran
from swath.workers.outcome import Error

_LOOK_FOR_DRIVER_S = 1.0
_SEND_S = 60.0
_LONGEST = 1 << 17
_MOST_FDS = 8
_PR_SET_PDEATHSIG = 1
_VARIABLES = {
    **dict.fromkeys(THREAD_SETTINGS, "1"),  # no library starts threads before the forks
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # no import touches the CUDA driver, which does not survive forks
}


def packets() -> tuple[socket.socket, socket.socket]:
    """Both ends of a new connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class ForkServer:
    """The server as its driver sees it. Used by any thread.

    Args:
        bare: whether nothing is ever imported in it.

    Attributes:
        bare: likewise.
        users: backends that use it.
    """

    def __init__(self, *, bare: bool) -> None:
        self.bare = bare
        self.users = WeakSet[object]()
        self._owner = Owner()
        self._lock = threading.Lock()
        self._sock, theirs = packets()
        self._sock.settimeout(_SEND_S)
        begin = f"import sys; sys.path[:] = {_module_path()}; from {__name__} import Serving; Serving"
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  ourselves
                [sys.executable, "-c", f"{begin}({theirs.fileno()}).run({self._owner.pid})"],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **_VARIABLES},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is the driver's
            )

    @property
    def usable(self) -> bool:
        """Whether it is ours, and has not ended. A fork of the driver must begin its own."""
        return self._owner.is_here and self._process.poll() is None

    def end(self) -> str:
        """Kill the server, and wait for that; how it ended, in words."""
        self._process.kill()
        with self._lock:
            self._sock.close()
        return in_words(self._process.wait())

    def ask(self, method: str, *args: object, fds: Sequence[int] = ()) -> None:
        """Have a method of `Serving` called."""
        gone = BrokenPipeError, ConnectionResetError, TimeoutError
        with self._lock, contextlib.suppress(*gone):  # seen by whoever waits for the worker
            if self._sock.fileno() >= 0:
                socket.send_fds(self._sock, [pickle.dumps((method, *args))], fds)


def join(user: object, preload: Sequence[str]) -> ForkServer:
    """The server of this process, begun if there is none that lives.

    Args:
        user: until it leaves.
        preload: modules that it imports for workers to come; none: it is the one in which nothing is ever imported.
    """
    bare = not preload
    with _lock:
        server = _servers.get(bare)
        if server is None or not server.usable:
            server = _servers[bare] = ForkServer(bare=bare)
        server.users.add(user)
    server.ask("preload", list(preload), _module_path())
    return server


def leave(user: object, server: ForkServer) -> bool:
    """A backend uses it no longer; whether nobody does, so that it is to be ended. Twice is fine."""
    with _lock:
        server.users.discard(user)
        if not server.users and _servers.get(server.bare) is server:
            del _servers[server.bare]
        return not server.users


def kill_group(pid: int) -> None:
    """Kill a worker and all that it has started."""
    for kill in (os.killpg, os.kill):  # it is in its own group as soon as it runs
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def in_words(exit: int | str) -> str:  # noqa: A002  the field's name
    """An exit code, minus a signal's number, or words."""
    if not isinstance(exit, int):
        return exit
    return f"was killed by {signal.Signals(-exit).name}" if exit < 0 else f"ended with exit code {exit}"


class Serving:
    """What runs in the server. The driver asks by the names of its methods.

    Args:
        fd: a socket to the driver.
    """

    def __init__(self, fd: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if sys.stderr is not None:
            faulthandler.enable()
        self._pid = os.getpid()
        self._sock = socket.socket(fileno=fd)
        self._workers: dict[int, tuple[ForkProcess, int, socket.socket]] = {}  # by descriptors of their processes

    def run(self, driver: int) -> None:
        """Fork and reap until the driver is gone; then kill what is left.

        The sentinels of `multiprocessing` are no help: they stay open while a process lives that a worker has forked.
        """
        while os.getppid() == driver:
            ready = wait([self._sock, *self._workers], _LOOK_FOR_DRIVER_S)
            for ended in self._workers.keys() & set(ready):
                self._reap(ended)
            if self._sock in ready:
                message, fds, flags, _ = socket.recv_fds(self._sock, _LONGEST, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
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
        """Import these modules, which are found there."""
        sys.path[:] = path
        for module in modules:
            with contextlib.suppress(Exception):  # it is raised again in the worker that needs it
                import_module(module)
        gc.collect()
        gc.freeze()  # a worker's collections leave alone what it shares with this process

    def start(self, number: int, name: str, fd: int, *fds: int) -> None:
        """Fork a worker.

        Args:
            number: of the request to build it.
            name: of the process.
            fd: its socket.
            *fds: a file that says what it is to be, two arenas, standard output and error.
        """
        sock = socket.socket(fileno=fd)
        process = ForkProcess(target=self._become_worker, args=(number, sock, *fds), name=name)
        try:
            process.start()
        except OSError as error:
            with sock:
                _say(sock, f"could not be forked: {error}")
        else:
            assert process.pid is not None
            self._workers[os.pidfd_open(process.pid)] = process, process.pid, sock
            _say(sock, process.pid)
        for each in fds:
            os.close(each)

    def _reap(self, ended: int) -> None:
        process, pid, sock = self._workers.pop(ended)
        os.close(ended)
        kill_group(pid)  # what it has left, while its number is not given anew
        process.join()
        with sock:
            _say(sock, process.exitcode or 0)

    def _become_worker(self, number: int, sock: socket.socket, setup: int, *fds: int) -> None:
        os.setsid()  # killed with all that it starts; and Linux gives each session its share of a busy machine
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # be killed when the server dies
        if os.getppid() != self._pid:
            os._exit(1)
        self._sock.close()
        for ended, (_, _, other) in self._workers.items():
            os.close(ended)
            other.close()
        arena, own_arena, *streams = fds
        for standard, fd in enumerate(streams, start=1):
            os.dup2(fd, standard)
            os.close(fd)
        _work(number, sock, setup, (arena, own_arena))


def _refuse(fds: Sequence[int]) -> None:
    """Say that a worker cannot be forked, since not all of its descriptors could be received; the first is a socket."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for fd in fds[:1]:
        with socket.socket(fileno=fd) as sock:
            _say(
                sock,
                f"could not be forked: the process that forks has no file descriptors left (RLIMIT_NOFILE={limit})",
            )
    for fd in fds[1:]:
        os.close(fd)


def _work(number: int, sock: socket.socket, file: int, arenas: tuple[int, int]) -> None:
    """Be a worker until nobody asks any more."""
    with open(file, "rb") as stream:
        surroundings, name, threads, before, build = pickle.load(stream)  # noqa: S301  our own driver wrote it
    settled = attempted(_settle_in, *surroundings)
    outcome = settled if isinstance(settled, Error) else ran(before)
    from swath.workers.packing import begin_process  # noqa: PLC0415  imports torch, which `before` comes before
    from swath.workers.process.worker import WorkerServer  # noqa: PLC0415  likewise

    begin_process(threads)
    with sock, contextlib.suppress(ConnectionError):
        WorkerServer(sock, arenas, name).run(number, outcome, build)


def _settle_in(
    settings: dict[str, str], path: list[str], argv: list[str], directory: str, start_method: str | None, authkey: bytes
) -> None:
    """Look like the caller."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # what a worker says is seen before it is killed
    os.environ.clear()
    os.environ.update(settings)
    sys.path[:] = path
    sys.argv[:] = argv
    os.chdir(directory)
    multiprocessing.set_start_method(start_method, force=True)
    multiprocessing.current_process().authkey = authkey


def _say(sock: socket.socket, news: int | str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody is there to read it
        sock.send(pickle.dumps(news))


def _module_path() -> list[str]:
    """Where modules are found, also for processes that begin elsewhere."""
    return [str(part) or str(Path.cwd()) for part in sys.path]


_lock = threading.Lock()
_servers: dict[bool, ForkServer] = {}  # by whether they are bare
