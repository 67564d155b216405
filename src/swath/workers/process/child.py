"""What a forked worker does: settles in, builds its object, answers calls until nobody can ask any more."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import pickle
import random
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch

from swath.workers.hosting import THREAD_SETTINGS, Hosted, attempted
from swath.workers.outcome import Error, Outcome, Value, frozen
from swath.workers.packing import Parcel, pack
from swath.workers.process import sharing
from swath.workers.process.blocks import Lender
from swath.workers.process.cargo import given, introduced, lent, taken
from swath.workers.process.messages import Reply, Request, Setup
from swath.workers.process.wire import Ended, Wire, close_all

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


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
        _flush()
        os._exit(code)


class _Desk:
    """Answers requests.

    Args:
        wire: to the driver.
        hosted: the worker's object.
    """

    def __init__(self, wire: Wire, hosted: Hosted) -> None:
        self._wire = wire
        self._hosted = hosted
        self._lender = Lender()
        self._known: set[int] = set()

    def answer(self, body: bytes, fds: list[int]) -> None:
        """Carry out a request and reply."""
        request: Request = pickle.loads(body)  # noqa: S301  our own driver wrote it
        rest = iter(fds)
        sharing.here.learn(request.fresh, rest)
        sharing.here.forget(request.gone)
        self._lender.returned.extend(request.returned)
        self.reply(request.serial, self._outcome(request, rest))

    def reply(self, serial: int, outcome: Outcome) -> None:
        """Send what became of a request."""
        fds: list[int] = []
        encoded = attempted(self._encoded, serial, outcome, fds)
        if isinstance(encoded, Error):
            close_all(fds)
            fds, encoded = [], Value(Reply(serial, frozen(encoded.exception)))
        _flush()
        self._wire.send(pickle.dumps(encoded.value), fds)

    def _outcome(self, request: Request, fds: Iterator[int]) -> Outcome:
        given_args = attempted(taken, request.args, fds)
        if isinstance(given_args, Error):
            return given_args
        return self._hosted.answer(request.method, given_args.value)

    def _encoded(self, serial: int, outcome: Outcome, fds: list[int]) -> Reply:
        if isinstance(outcome, Error):
            return Reply(serial, frozen(outcome.exception))
        if not isinstance(outcome.value, Parcel):
            return Reply(serial, given(pack(outcome.value), fds))
        return self._parcel(serial, outcome.value, fds)

    def _parcel(self, serial: int, parcel: Parcel, fds: list[int]) -> Reply:
        head, body = pack(parcel.head), pack(parcel.body)
        value = given(head, fds)
        loan, block = lent(body, self._lender)
        fresh, fresh_fds = introduced([block] if block else [], self._known)
        fds[:0] = fresh_fds
        return Reply(serial, value, loan, fresh, self._lender.gone(self._known))


def _serve(wire: Wire) -> None:
    first = wire.receive()
    setup: Setup = pickle.loads(first.body)  # noqa: S301  our own driver wrote it
    hosted = Hosted(setup.name)
    desk = _Desk(wire, hosted)
    desk.reply(0, _built(setup, hosted, iter(first.fds)))
    while True:
        try:
            frame = wire.receive()
        except Ended:
            return
        desk.answer(*frame)


def _built(setup: Setup, hosted: Hosted, fds: Iterator[int]) -> Outcome:
    settled = attempted(_settle_in, setup)
    if isinstance(settled, Error):
        return settled
    before = attempted(taken, setup.before, fds)
    if isinstance(before, Error):
        return before
    return hosted.build(before.value, lambda: taken(setup.build, fds))


def _leave_nursery(nursery: int, not_mine: Iterable[int]) -> None:
    os.setpgid(0, 0)
    _die_with(nursery)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd in not_mine:
        with contextlib.suppress(OSError):  # a kqueue is not inherited
            os.close(fd)


def _die_with(parent: int) -> None:
    """Be killed when the nursery dies, where the system can do so."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _settle_in(setup: Setup) -> None:
    """Look like the caller: its directory, paths, variables; but random states of one's own."""
    if sys.platform == "linux":
        _prctl(_PR_SET_NAME, f"swath-w{setup.name.worker}".encode())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # what a worker says is seen before it is killed
    os.environ.clear()
    os.environ.update(setup.environ)
    os.environ.update(dict.fromkeys(THREAD_SETTINGS, str(setup.threads)))
    sys.path[:] = setup.path
    sys.argv[:] = setup.argv
    os.chdir(setup.cwd)
    torch.set_num_threads(setup.threads)
    random.seed()
    np.random.seed()  # noqa: NPY002  users draw from it
    torch.seed()


def _prctl(option: int, value: Any) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _exit_code(error: SystemExit) -> int:
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)  # noqa: T201  as the interpreter does
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or the user has closed it
                stream.flush()
