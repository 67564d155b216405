"""Workers on a Ray cluster, each in an actor of its own.

    spawn ─▶ actor ◀─ swath_here, swath_build
    call  ─▶ swath_answer ─▶ future ─ done callback, in Ray's own thread ─▶ Board
    kill  ─▶ swath_end, never answered: its error is the actor's end

Small answers travel along, bodies of parcels stay in Ray's store. Ray is used as it is found in this process, joined or
started, and never shut down from here. What is called back must not call Ray: its thread is the one that would answer.
The end of an actor is known from the error of a call; that of an idle one, from the next call.
"""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from swath.errors import PayloadLost, SwathError
from swath.extras import need
from swath.workers.base import Backend, Handle, Job
from swath.workers.hosting import THREAD_SETTINGS, sending, travelling
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.packing import outcome_of
from swath.workers.ray.cluster import Cluster, asked, cause_in_words
from swath.workers.ray.values import ELSEWHERE, RayShared, fetched, packed, shared, unpacked
from swath.workers.ray.worker import RayWorker, Setup, public
from swath.workers.tickets import Board, Interrupted, Ticket


class RayHandle(Handle):
    """A worker in an actor.

    Args:
        job: how it is brought up; what is registered lasts until it is killed.
        board: where its tickets are settled.
        cluster: where it lives.
        options: what Ray is asked for.

    Attributes:
        actor: Ray's handle; the methods that the job makes public are called with `actor.method.remote(…)`.
    """

    def __init__(self, job: Job, board: Board, cluster: Cluster, options: Mapping[str, Any]) -> None:
        super().__init__(job, board)
        self.placed = Ticket(job.name, "place")
        self.options = options
        self.actor: Any = None
        self._ray: Any = need("ray", extra="ray", why="for workers on Ray")
        self._cluster = cluster
        self.opened(self.placed)

    def begin(self, setup: Setup) -> None:
        """Have the actor made and its object built, unless it is; learn when it is placed and built."""
        job = self.job
        if empty := self._cluster.empty():
            self.end(f"cannot be placed: {empty}")
            return
        try:
            if job.joins and job.registered is not None:
                self.actor = registered(*job.registered)
                self.settle(self.placed, Value(None))  # though it may be busy for long
            else:
                self.actor = _actor_class(job.public).options(**self.options).remote(setup)
        except Exception as error:  # noqa: BLE001  what Ray does not take is the answer to `ready`
            if not job.joins:
                self.settle(self.ready, Error(error))
            self.end(f"was not accepted by Ray: {error}")
        else:
            self._ask = self.actor.swath_answer.options(num_returns=2).remote
            self.actor.swath_here.remote().future().add_done_callback(self._here)
            self._await(self.ready, *self.actor.swath_build.options(num_returns=2).remote())

    def call(self, ticket: Ticket, args: Sequence[Any]) -> None:
        """Send a call."""
        wire = packed(args)
        if self.opened(ticket):
            if gone := self._cluster.gone():
                self.end(f"is lost: {gone}")
            else:
                self._await(ticket, *self._ask(ticket.method.encode(), wire))  # bytes need not be pickled

    def stop(self, why: str) -> None:
        """Have Ray kill the actor; its tickets are settled when Ray says that it is dead.

        A process that hangs so that it does not even see that is killed by Ray some seconds later.
        """
        if self.actor is None or self._cluster.gone():
            self.end(why)
        else:
            self._ray.kill(self.actor, no_restart=True)
            self.actor.swath_end.remote().future().add_done_callback(lambda future: self._over(future.exception()))

    def join(self, timeout: float) -> None:
        """Wait until Ray says so, but not for ever."""
        super().join(timeout)
        self.end("was killed")

    def _await(self, ticket: Ticket, reply: Any, body: Any) -> None:
        reply.future().add_done_callback(partial(self._answered, ticket, body))

    # In Ray's thread, or where Ray is gone

    def _answered(self, ticket: Ticket, body: Any, future: Any) -> None:
        error, exceptions = future.exception(), self._ray.exceptions
        if error is None:
            self.settle(ticket, self._outcome(future.result(), body))
        elif isinstance(error, exceptions.RayTaskError):
            self.settle(ticket, Error(error))
        elif isinstance(error, exceptions.ObjectLostError):
            self.settle(ticket, Error(PayloadLost(f"Ray lost what {ticket.method}() returned: {error}")))
        else:
            self._over(error)

    def _here(self, future: Any) -> None:
        if future.exception() is None:  # else it is over
            self.settle(self.placed, Value(None))

    def _over(self, error: BaseException) -> None:
        words = cause_in_words(error)
        if isinstance(error, self._ray.exceptions.ActorDiedError):
            self.end(f"died: {words}", exit=words)
        else:
            threading.Thread(target=self._put_down, args=(words,), daemon=True).start()

    def _put_down(self, words: str) -> None:
        """End a life of which Ray is not sure; in a thread that may call Ray."""
        self.kill(f"is lost: {words}")
        self.end(f"is lost: {words}", exit=words)

    def _outcome(self, answer: Any, large: Any) -> Outcome:
        head, small = pickle.loads(answer) if isinstance(answer, bytes) else answer  # noqa: S301  our own worker's
        body = large if small == ELSEWHERE else small
        load = None if body is None else partial(fetched, body, self._cluster.gone)
        return outcome_of(partial(unpacked, head, own=True), load)


class RayBackend(Backend):
    """Workers in Ray actors.

    Their methods run in the main thread of the actor. The death of an actor that is idle is seen with the next call.

    Args:
        init_config: keywords of `ray.init`, used if Ray is not up in this process; `None` joins a running cluster, or
            else starts one on this machine.
        workers: how many there will be; what they ask for by default depends on it.

    Attributes:
        cluster: where the workers live.

    Raises:
        ImportError: ray is not installed.
        ValueError: this process is a client of a cluster (`ray://`), not part of it.
    """

    close_s = 5.0

    def __init__(self, init_config: Mapping[str, Any] | None = None, workers: int = 1) -> None:
        super().__init__()
        self.cluster = Cluster(init_config)
        self._default = self.cluster.default_for(workers)

    @property
    def gone(self) -> str | None:
        """What became of the cluster, if nothing can live there any more; asks its head, which takes milliseconds."""
        try:
            return self.cluster.empty()
        except ConnectionError as error:
            return str(error)

    def wait(
        self, tickets: Sequence[Ticket], timeout: float | None = None, interrupted: Interrupted | None = None
    ) -> list[Ticket]:
        """The tickets that are done; see `Board.wait`. If Ray is gone nobody will call back: all are given up."""
        if gone := self.cluster.gone():
            for handle in self._handles:
                handle.end(f"is lost: {gone}")
        return super().wait(tickets, timeout, interrupted)

    def share(self, value: Any) -> RayShared:
        """Put the value into Ray's store, once; a small one travels along with the calls.

        Raises:
            SwathError: Ray is gone.
        """
        if gone := self.cluster.gone():
            raise SwathError(f"nothing can be shared: {gone}")
        return shared(value)

    def room(self, handle: RayHandle) -> tuple[str, str]:
        """The resources that the worker asks for, and those of the cluster."""
        return asked(handle.options), self.cluster.room()

    def close(self) -> None:
        """Kill all actors that are left, but for those that last."""
        for handle in self._handles:
            if handle.lasts:
                handle.end("was let go of: its backend is closed")
        super().close()

    def _begin(self, job: Job) -> RayHandle:
        options, setup = _options(job.resources or self._default), _setup(job)
        if job.registered is not None:
            name, namespace = job.registered
            options |= {"name": name, "namespace": namespace, "lifetime": "detached", "get_if_exists": True}
        handle = RayHandle(job, self, self.cluster, options)
        handle.begin(setup)
        return handle


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
