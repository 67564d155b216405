"""The actors of one Ray backend: how they begin, are called and end.

    spawn ─▶ actor ◀─ swath_here, swath_build, swath_live (never answered: its error is the actor's end)
    call  ─▶ swath_answer ─▶ future ─ done callback, in Ray's own thread ─▶ Board

What is called back must not call Ray: its thread is the one that would answer. Nor is a lock held while Ray is called.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from swath.errors import Closed, PayloadLost
from swath.extras import need
from swath.workers.base import Job
from swath.workers.first import travelling
from swath.workers.hosting import THREAD_SETTINGS, Loss, sending
from swath.workers.message import Reply
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.ray.cluster import Cluster, told
from swath.workers.ray.handle import RayHandle
from swath.workers.ray.messages import Setup
from swath.workers.ray.values import fetched, packed, replied
from swath.workers.ray.worker import RayWorker, public
from swath.workers.tickets import Board, Received, Ticket

_CLOSE_S = 5.0
_THREADS = {"here": 1, "life": 1, "aside": 1}
"""Of an actor, beside the one that answers calls. What is said aside waits until the worker is built; that it is here
is answered at once."""


class RayActors:
    """All of a Ray backend but what users hold: callbacks know this, and not the backend.

    Args:
        cluster: where they live.
        default: what Ray is asked for by jobs that do not say.
    """

    def __init__(self, cluster: Cluster, default: Mapping[str, Any]) -> None:
        self.board = Board()
        self.cluster = cluster
        self._default = default
        self._ray: Any = need("ray", extra="ray", why="for workers on Ray")
        self._lock = threading.Lock()
        self._handles: set[RayHandle] = set()
        self._closed = False
        self._classes: dict[tuple[str, ...], Any] = {}

    def spawn(self, job: Job, registered: Mapping[str, Any] | None = None) -> RayHandle:
        """See `Backend.spawn`; with options that register the actor it lasts until it is killed."""
        setup = _setup(job)
        handle = RayHandle(job, {**_options(job.resources or self._default), **(registered or {})})
        handle.lasts = registered is not None
        self._hold(handle)
        if empty := self.cluster.empty():
            self._end(handle, f"cannot be placed: {empty}")
        else:
            self._begin(handle, setup)
        return handle

    def adopt(self, actor: Any, job: Job) -> RayHandle:
        """What is held of an actor that lasts, and that another process has begun."""
        handle = RayHandle(job, {})
        handle.lasts, handle.actor = True, actor
        self._hold(handle)
        self._attend(handle)
        return handle

    def call(self, handle: RayHandle, method: str, args: Sequence[Any], *, aside: bool = False) -> Ticket:
        """See `Backend.call`; what is said aside does not wait for other calls to be answered."""
        wire = packed(args)
        ticket = Ticket(handle.name, method)
        if ended := handle.opened(ticket):
            self.board.settle(ticket, ended.error())
        elif gone := self.cluster.gone():
            self._end(handle, f"is lost: {gone}")
        else:
            ask = handle.aside if aside else handle.whole if handle.light else handle.ask
            self._await(handle, ticket, ask(method.encode(), wire))  # bytes need not be pickled
        return ticket

    def look(self) -> None:
        """Give up what nobody will call back about."""
        if gone := self.cluster.gone():
            for handle in self._left():
                self._end(handle, f"is lost: {gone}")

    def kill(self, handle: RayHandle, why: str = "was killed") -> None:
        """See `Backend.kill`."""
        handle.killed = handle.killed or why
        if handle.ended.done:
            return
        if handle.actor is None or self.cluster.gone():
            self._end(handle, why)
        else:
            self._ray.kill(handle.actor, no_restart=True)

    def close(self) -> None:
        """Kill all that is left, and wait until Ray says so, but not for ever."""
        with self._lock:
            self._closed = True
        why = "was ended: its backend is closed"
        for handle in self._left():
            if handle.lasts:
                self._end(handle, "was let go of: its backend is closed")
            else:
                self.kill(handle, why)
        until = time.monotonic() + _CLOSE_S
        for handle in self._left():
            self.board.wait([handle.ended], max(0.0, until - time.monotonic()))
            self._end(handle, why)

    def _left(self) -> list[RayHandle]:
        with self._lock:
            return list(self._handles)

    def _hold(self, handle: RayHandle) -> None:
        with self._lock:
            if self._closed:
                raise Closed("no worker can be spawned: the backend is closed")
            self._handles.add(handle)

    def _begin(self, handle: RayHandle, setup: Setup) -> None:
        try:
            handle.actor = self._class(handle.job.public).options(**handle.options).remote()
        except Exception as error:  # noqa: BLE001  what Ray does not take is the answer to `ready`
            self._settle(handle, handle.ready, Error(error))
            self._end(handle, f"was not accepted by Ray: {error}")
            return
        self._attend(handle, setup)

    def _attend(self, handle: RayHandle, setup: Setup | None = None) -> None:
        """Learn when it is up and when it ends; have it built, unless others do."""
        actor = handle.actor
        handle.ask, handle.whole = actor.swath_answer.options(num_returns=2).remote, actor.swath_whole.remote
        handle.aside = actor.swath_aside.options(num_returns=2, concurrency_group="aside").remote
        here = actor.swath_here.options(concurrency_group="here").remote()
        here.future().add_done_callback(partial(self._placed, handle))
        built = None if setup is None else actor.swath_build.options(num_returns=2).remote(setup)
        if built is None or handle.lasts:
            built = actor.swath_ready.options(num_returns=2, concurrency_group="aside").remote()
        self._await(handle, handle.ready, built)
        life = actor.swath_live.options(concurrency_group="life").remote()
        life.future().add_done_callback(lambda future: self._ended(handle, future.exception()))
        if handle.ended.done:  # closed meanwhile
            self._ray.kill(handle.actor, no_restart=True)

    def _await(self, handle: RayHandle, ticket: Ticket, references: Any) -> None:
        reply, body = references if isinstance(references, list) else (references, None)
        reply.future().add_done_callback(partial(self._answered, handle, ticket, body))

    def _class(self, names: tuple[str, ...]) -> Any:
        if names not in self._classes:  # Ray keeps each class that an actor was made of
            kind = type("SwathWorker", (RayWorker,), {name: public(name) for name in names})
            options = {"max_restarts": 0, "max_task_retries": 0, "concurrency_groups": _THREADS}
            self._classes[names] = self._ray.remote(**options)(kind)
        return self._classes[names]

    # In Ray's thread, or where Ray is gone

    def _answered(self, handle: RayHandle, ticket: Ticket, body: Any, future: Any) -> None:
        error = future.exception()
        if error is None:
            self._settle(handle, ticket, self._outcome(handle, future.result(), body))
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            self._settle(handle, ticket, Error(error))
        elif isinstance(error, self._ray.exceptions.ObjectLostError):
            self._settle(handle, ticket, Error(PayloadLost(f"Ray lost what {ticket.method}() returned: {error}")))
        else:
            self._ended(handle, error)

    def _placed(self, handle: RayHandle, future: Any) -> None:
        if future.exception() is None:  # else its end will tell
            self._settle(handle, handle.placed, Value(None))

    def _ended(self, handle: RayHandle, error: BaseException) -> None:
        if isinstance(error, self._ray.exceptions.ActorDiedError):
            self._end(handle, handle.killed or f"died: {told(error)}", exit=told(error))
        else:
            threading.Thread(target=self._put_down, args=(handle, told(error)), daemon=True).start()

    def _put_down(self, handle: RayHandle, words: str) -> None:
        """End a life of which Ray is not sure; in a thread that may call Ray."""
        self.kill(handle, f"is lost: {words}")
        self._end(handle, f"is lost: {words}", exit=words)

    def _end(self, handle: RayHandle, how: str, exit: str | None = None) -> None:  # noqa: A002  the field's name
        loss = Loss(handle.name, how, exit)
        with self._lock:
            self._handles.discard(handle)
        if self.board.settle(handle.ended, loss.error()):  # first: whoever is answered that it is lost finds it ended
            for ticket in handle.end(loss):
                self.board.settle(ticket, loss.error())

    def _settle(self, handle: RayHandle, ticket: Ticket, outcome: Outcome) -> None:
        handle.answered(ticket)
        self.board.settle(ticket, outcome)

    def _outcome(self, handle: RayHandle, answer: Reply | bytes, body: Any) -> Outcome:
        try:
            reply, value = replied(answer)
        except BaseException as error:  # noqa: BLE001  whatever users' classes do when they are rebuilt
            return Error(error)
        if not reply.parcel:
            return Value(value)
        handle.light = isinstance(reply.body, bytes)
        return Value(Received(value, partial(fetched, reply.body or body, self.cluster.gone)))


def _options(resources: Mapping[str, Any]) -> dict[str, Any]:
    """What Ray is asked for.

    Raises:
        ValueError: an option would take the worker's life, or the order of its calls, out of our hands.
    """
    for option, (only, instead) in _OURS.items():
        if (given := resources.get(option, only)) != only:
            raise ValueError(f"{option}={given!r} cannot be given to a worker on Ray: {instead}")
    return {name: value for name, value in resources.items() if name not in _OURS}


_OURS = {
    "max_restarts": (0, "Swath replaces workers that die; use restarts"),
    "max_task_retries": (0, "Swath asks again for what was lost; use restarts"),
    "max_concurrency": (1, "calls of a worker are answered one after another; leave it out"),
    "concurrency_groups": (None, "calls of a worker are answered one after another; leave it out"),
    "lifetime": (None, "workers end when their driver ends; leave it out"),
}


def _setup(job: Job) -> Setup:
    given = (job.resources.get("runtime_env") or {}).get("env_vars") or {}
    variables = {name: str(job.threads) for name in THREAD_SETTINGS if name not in given}
    before = travelling(job.before)
    with sending(f"build={job.build!r}", "Ray"):
        build = packed(job.build)
    path = [entry or str(Path.cwd()) for entry in sys.path]
    return Setup(job.name, path, variables, job.threads, before, build)
