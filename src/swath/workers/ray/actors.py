"""The actors of one Ray backend: how they begin, are called and end.

    spawn ─▶ actor ◀─ swath_here, swath_build
    call  ─▶ swath_answer ─▶ future ─ done callback, in Ray's own thread ─▶ Board
    kill  ─▶ swath_end, never answered: its error is the actor's end

What is called back must not call Ray: its thread is the one that would answer. Nor is a lock held while Ray is called.
The end of an actor is known from the error of a call; that of an idle one, from the next call.
"""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from swath.errors import Closed, PayloadLost
from swath.extras import need
from swath.workers.base import Handle, Job
from swath.workers.first import travelling
from swath.workers.hosting import THREAD_SETTINGS, sending
from swath.workers.message import outcome_of
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.ray.cluster import Cluster, cause_in_words
from swath.workers.ray.values import ELSEWHERE, fetched, packed, unpacked
from swath.workers.ray.worker import RayWorker, Setup, public
from swath.workers.tickets import Board, Ticket

_CLOSE_S = 5.0


class RayHandle(Handle):
    """An actor, and the calls that it has not answered.

    Args:
        job: how it is brought up.
        options: what Ray is asked for.

    Attributes:
        actor: Ray's handle; the methods that the job makes public are called with `actor.method.remote(…)`.
        ask: calls its object by a method's name and packed arguments; gives references to the reply and a large body.
        killed: why we end it, if we do.
    """

    actor: Any = None
    ask: Any = None
    killed: str | None = None

    def __init__(self, job: Job, board: Board, options: Mapping[str, Any]) -> None:
        super().__init__(job, board)
        self.placed = Ticket(job.name, "place")
        self.options = options
        self.opened(self.placed)


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

    def spawn(self, job: Job) -> RayHandle:
        """See `Backend.spawn`; what is registered lasts until it is killed."""
        options, setup = _options(job.resources or self._default), _setup(job)
        if job.registered is not None:
            name, namespace = job.registered
            options |= {"name": name, "namespace": namespace, "lifetime": "detached", "get_if_exists": True}
        handle = self._held(RayHandle(job, self.board, options))
        if empty := self.cluster.empty():
            self._end(handle, f"cannot be placed: {empty}")
            return handle
        try:
            if job.joins and job.registered is not None:
                handle.actor = registered(*job.registered)
                handle.settle(handle.placed, Value(None))  # though it may be busy for long
            else:
                handle.actor = _actor_class(job.public).options(**options).remote(setup)
        except Exception as error:  # noqa: BLE001  what Ray does not take is the answer to `ready`
            if not job.joins:
                handle.settle(handle.ready, Error(error))
            self._end(handle, f"was not accepted by Ray: {error}")
        else:
            self._attend(handle)
        return handle

    def call(self, handle: RayHandle, method: str, args: Sequence[Any]) -> Ticket:
        """See `Backend.call`."""
        wire = packed(args)
        ticket = Ticket(handle.name, method)
        if handle.opened(ticket):
            if gone := self.cluster.gone():
                self._end(handle, f"is lost: {gone}")
            else:
                self._await(handle, ticket, handle.ask(method.encode(), wire))  # bytes need not be pickled
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
            end = handle.actor.swath_end.remote()
            end.future().add_done_callback(lambda future: self._ended(handle, future.exception()))

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

    def _held(self, handle: RayHandle) -> RayHandle:
        with self._lock:
            if self._closed:
                raise Closed("no worker can be spawned: the backend is closed")
            self._handles.add(handle)
        return handle

    def _attend(self, handle: RayHandle) -> None:
        """Have it built, unless it is; learn when it is placed and built."""
        actor = handle.actor
        handle.ask = actor.swath_answer.options(num_returns=2).remote
        actor.swath_here.remote().future().add_done_callback(partial(self._placed, handle))
        self._await(handle, handle.ready, actor.swath_build.options(num_returns=2).remote())
        if handle.ended.done:  # closed meanwhile
            self._ray.kill(actor, no_restart=True)

    def _await(self, handle: RayHandle, ticket: Ticket, references: Any) -> None:
        reply, body = references
        reply.future().add_done_callback(partial(self._answered, handle, ticket, body))

    # In Ray's thread, or where Ray is gone

    def _answered(self, handle: RayHandle, ticket: Ticket, body: Any, future: Any) -> None:
        error = future.exception()
        if error is None:
            handle.settle(ticket, self._outcome(future.result(), body))
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            handle.settle(ticket, Error(error))
        elif isinstance(error, self._ray.exceptions.ObjectLostError):
            handle.settle(ticket, Error(PayloadLost(f"Ray lost what {ticket.method}() returned: {error}")))
        else:
            self._ended(handle, error)

    def _placed(self, handle: RayHandle, future: Any) -> None:
        if future.exception() is None:  # else its end will tell
            handle.settle(handle.placed, Value(None))

    def _ended(self, handle: RayHandle, error: BaseException) -> None:
        if isinstance(error, self._ray.exceptions.ActorDiedError):
            self._end(handle, handle.killed or f"died: {cause_in_words(error)}", exit=cause_in_words(error))
        else:
            threading.Thread(target=self._put_down, args=(handle, cause_in_words(error)), daemon=True).start()

    def _put_down(self, handle: RayHandle, words: str) -> None:
        """End a life of which Ray is not sure; in a thread that may call Ray."""
        self.kill(handle, f"is lost: {words}")
        self._end(handle, f"is lost: {words}", exit=words)

    def _end(self, handle: RayHandle, how: str, exit: str | None = None) -> None:  # noqa: A002  the field's name
        with self._lock:
            self._handles.discard(handle)
        handle.end(how, exit)

    def _outcome(self, answer: Any, large: Any) -> Outcome:
        head, small = pickle.loads(answer) if isinstance(answer, bytes) else answer  # noqa: S301  our own worker's
        body = large if small == ELSEWHERE else small
        return outcome_of(
            partial(unpacked, head, own=True), None if body is None else partial(fetched, body, self.cluster.gone)
        )


def registered(name: str, namespace: str) -> Any:
    """The actor that is registered under this name.

    Raises:
        ValueError: there is none.
    """
    return need("ray", extra="ray", why="for workers on Ray").get_actor(name, namespace=namespace)


@cache
def _actor_class(names: tuple[str, ...]) -> Any:
    """With these public methods; made once, since Ray keeps each class that an actor was made of."""
    kind = type("SwathWorker", (RayWorker,), {name: public(name) for name in names})
    return need("ray", extra="ray", why="for workers on Ray").remote(max_restarts=0, max_task_retries=0)(kind)


_OURS = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1, "concurrency_groups": None, "lifetime": None}


def _options(resources: Mapping[str, Any]) -> dict[str, Any]:
    """What Ray is asked for.

    Raises:
        ValueError: an option would take the worker's life, or the order of its calls, out of our hands.
    """
    for option, only in _OURS.items():
        if (given := resources.get(option, only)) != only:
            raise ValueError(
                f"{option}={given!r} cannot be given to a worker on Ray, which answers one call after another, is "
                "replaced by Swath when it dies (restarts), and ends with its driver; leave it out"
            )
    return {name: value for name, value in resources.items() if name not in _OURS}


def _setup(job: Job) -> Setup:
    given = (job.resources.get("runtime_env") or {}).get("env_vars") or {}
    variables = {name: str(job.threads) for name in THREAD_SETTINGS if name not in given}
    before = travelling(job.before)
    with sending(f"build={job.build!r}", "Ray"):
        build = packed(job.build)
    path = [entry or str(Path.cwd()) for entry in sys.path]
    return Setup(job.name, path, variables, job.threads, before, build)
