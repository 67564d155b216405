"""What a forked worker does: settles in, runs what is to run first, builds its object, answers until nobody asks.

Imports nothing heavy: what runs first may say how torch and numpy are to be imported.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import NoReturn

from swath.workers.first import ran
from swath.workers.hosting import THREAD_SETTINGS, attempted
from swath.workers.outcome import Error
from swath.workers.process.messages import Setup
from swath.workers.process.wire import Ended, Wire, flush

_PR_SET_PDEATHSIG = 1


def live(fds: Sequence[int], nursery: int, not_mine: Iterable[int]) -> NoReturn:
    """Be a worker, from just after the fork to the end of the process.

    Args:
        fds: its end of its wire; then, perhaps, where standard output and error go.
        nursery: the process that forked it.
        not_mine: descriptors of the nursery.
    """
    code = 1
    try:
        _leave_nursery(nursery, not_mine)
        for standard, fd in enumerate(fds[1:], start=1):
            os.dup2(fd, standard)
            os.close(fd)
        _serve(Wire(socket.socket(fileno=fds[0]), patient=True))
        code = 0
    except SystemExit as error:
        code = _exit_code(error)
    except BaseException:  # noqa: BLE001  there is nobody above to tell
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def _serve(wire: Wire) -> None:
    first = wire.receive()
    setup: Setup = pickle.loads(first.body)  # noqa: S301  our own driver wrote it
    settled = attempted(_settle_in, setup)
    before = settled if isinstance(settled, Error) else ran(setup.before)
    from swath.workers.process.desk import Desk  # noqa: PLC0415  imports torch and numpy, which `before` comes before

    desk = Desk(wire, setup)
    desk.build(before, iter(first.fds))
    while True:
        try:
            frame = wire.receive()
        except Ended:
            return
        desk.answer(*frame)


def _leave_nursery(nursery: int, not_mine: Iterable[int]) -> None:
    os.setsid()  # killed with all that it starts; and Linux gives each session its share of a busy machine
    _die_with(nursery)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in not_mine:
        with contextlib.suppress(OSError):  # a kqueue is not inherited
            os.close(fd)


def _die_with(parent: int) -> None:
    """Be killed when the nursery dies, where the system can do so."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def _settle_in(setup: Setup) -> None:
    """Look like the caller: its directory, paths, variables."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # what a worker says is seen before it is killed
    os.environ.clear()
    os.environ.update(setup.environ)
    os.environ.update(dict.fromkeys(THREAD_SETTINGS, str(setup.threads)))
    sys.path[:] = setup.path
    sys.argv[:] = setup.argv
    os.chdir(setup.cwd)
    multiprocessing.current_process().authkey = setup.authkey


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)  # noqa: T201  as the interpreter does
    return 1
