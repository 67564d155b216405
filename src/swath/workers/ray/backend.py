"""Workers on a Ray cluster, each in an actor of its own; the cluster is joined or started, and seen to be gone.

    spawn ─▶ actor ◀─ swath_here, swath_build
    call  ─▶ swath_answer ─▶ future ─ done callback, in Ray's own thread ─▶ TicketMonitor
    kill  ─▶ swath_end, never answered: its error is the actor's end

Small answers travel along, bodies of parcels stay in Ray's store. Ray is used as it is found in this process, joined or
started, and never shut down from here. What is called back must not call Ray: its thread is the one that would answer.
The end of an actor is known from the error of a call; that of an idle one, from the next call.
"""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from swath.errors import PayloadLost, SwathError, warn_of_no_effect
from swath.extras import need
from swath.workers.base import Backend, Handle, Job
from swath.workers.hosting import THREAD_SETTINGS, sending, travelling
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.packing import outcome_of
from swath.workers.ray.values import ELSEWHERE, RayShared, fetched, packed, shared, unpacked
from swath.workers.ray.worker import RayWorker, Setup, public
from swath.workers.registered import Registered
from swath.workers.tickets import Interrupted, Ticket, TicketMonitor

A = TypeVar("A")

_joining = threading.Lock()
_MEMORY = 2 * 2**30
_ANSWER_S = 10.0
_TRIES = 6


class Cluster:
    """What workers live on.

    Args:
        init_config: keywords of `ray.init`, used if Ray is not up in this process; `None` joins a running cluster, or
            else starts one on this machine, without a dashboard.

    Raises:
        ConnectionError: nobody answers at the address of the cluster that is to be joined.
        ValueError: this process is not part of the cluster, but a client of it.
    """

    def __init__(self, init_config: Mapping[str, Any] | None = None) -> None:
        self._ray: Any = need("ray", extra="ray", why="for workers on Ray")
        with _joining:
            if not self._ray.is_initialized():
                _require_reachable(str((init_config or {}).get("address") or os.environ.get("RAY_ADDRESS", "")))
                in_lasting_thread(partial(self._ray.init, **{"include_dashboard": False, **(init_config or {})}))
            elif init_config is not None:
                warn_of_no_effect("ray_init_config", "Ray is up in this process; leave it out, or do not call ray.init")
        if need("ray.util.client", extra="ray", why="for workers on Ray").ray.is_connected():
            raise ValueError(
                "this process is a client of a Ray cluster (ray://…), which cannot read arrays where they lie; "
                "run it on a machine of the cluster, as `ray job submit` does"
            )
        self._session = self._present()

    def gone(self) -> str | None:
        """Why workers cannot be reached any more, if so. Costs microseconds."""
        if not self._ray.is_initialized():
            return "Ray was shut down in this process"
        if self._present() != self._session:
            return "Ray was started anew in this process"
        return None

    def empty(self) -> str | None:
        """Why nothing can be placed any more, if so."""
        if gone := self.gone():
            return gone
        alive = any(node["Alive"] for node in answer_of(self._ray.nodes))
        return None if alive else "no node of the Ray cluster is alive"

    def default_for(self, workers: int) -> dict[str, Any]:
        """What each of so many workers asks for if nothing else is said: not the machine's last memory."""
        total = answer_of(self._ray.cluster_resources)
        options: dict[str, Any] = {"num_cpus": 1}
        if total.get("GPU", 0) > 0:
            options["num_gpus"] = 0.2
        if total.get("memory", 0) >= workers * _MEMORY:
            options["memory"] = _MEMORY
        return options

    def room(self) -> str:
        """What is free, in words."""
        if empty := self.empty():
            return f"nothing: {empty}"
        free, total = answer_of(self._ray.available_resources), answer_of(self._ray.cluster_resources)
        names = [name for name in sorted(total) if not name.startswith("node:") and name != "object_store_memory"]
        return ", ".join(f"{_amount(name, free.get(name, 0))} of {_amount(name, total[name])} {name}" for name in names)

    def _present(self) -> tuple[str, str]:
        context = self._ray.get_runtime_context()
        return context.get_node_id(), context.get_job_id()


def _require_reachable(address: str) -> None:
    """Raise at once if nobody is at `host:port`: `ray.init` would try for minutes, then end the process."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()) or "://" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except OSError as error:
        way_out = "start it with `ray start --head`, or unset RAY_ADDRESS: Swath then starts one on this machine"
        raise ConnectionError(f"no Ray cluster answers at {address} ({error}); {way_out}") from error


def in_lasting_thread(start: Callable[[], Any]) -> None:
    """Start what lives no longer than the thread that starts it, as Ray's own processes do: in one that does not end.

    Raises:
        BaseException: what starting it raised.
    """
    if threading.current_thread() is threading.main_thread():
        start()
        return
    begun: Future[Any] = Future()

    def keep() -> None:
        _put(start, begun)
        if begun.exception() is None:
            threading.Event().wait()

    threading.Thread(target=keep, name="swath keeps Ray", daemon=True).start()
    begun.result()


def answer_of(question: Callable[[], A]) -> A:
    """What the head of the cluster answers; Ray itself would wait without end for an answer that got lost.

    Raises:
        ConnectionError: there was none in 60 s, although it was asked six times.
    """
    for _ in range(_TRIES):
        answer: Future[A] = Future()
        threading.Thread(target=_put, args=(question, answer), name="swath asks Ray", daemon=True).start()
        if wait([answer], _ANSWER_S).done:
            return answer.result()
    raise ConnectionError(
        f"the head of the Ray cluster has not answered for {_TRIES * _ANSWER_S:g} s; "
        "see in its logs whether gcs_server is up, and whether this process forks: Ray loses answers then"
    )


def _put(question: Callable[[], A], answer: Future[A]) -> None:
    try:
        answer.set_result(question())
    except BaseException as error:  # noqa: BLE001  raised where it is waited for
        answer.set_exception(error)


def asked(options: Mapping[str, Any]) -> str:
    """What a worker asks for, in words."""
    return ", ".join(f"{name}={_amount(name, value)}" for name, value in options.items())


def cause_in_words(error: BaseException) -> str:
    """What Ray says of an actor's end, without the actor's data and the general advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    said = " ".join(lines[1:] if len(lines) > 1 else lines)
    return said.partition(" Some common causes include")[0]


def _amount(name: str, value: Any) -> str:
    if name == "memory" and isinstance(value, int | float):
        return f"{value / 2**30:.1f} GiB"
    return f"{value:g}" if isinstance(value, int | float) else repr(value)


class RayHandle(Handle):
    """A worker in an actor.

    Args:
        job: how it is brought up; what is registered lasts until it is killed.
        monitor: where its tickets are settled.
        cluster: where it lives.
        options: what Ray is asked for.

    Attributes:
        actor: Ray's handle; the methods that the job makes public are called with `actor.method.remote(…)`.
    """

    def __init__(self, job: Job, monitor: TicketMonitor, cluster: Cluster, options: Mapping[str, Any]) -> None:
        super().__init__(job, monitor)
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
        """The tickets that are done; see `TicketMonitor.wait`. If Ray is gone, all are given up."""
        if gone := self.cluster.gone():
            for handle in self._handles:
                handle.end(f"is lost: {gone}")
        return super().wait(tickets, timeout, interrupted)

    def share(self, value: Any) -> RayShared:
        """Put the value into Ray's store, once; a small one travels along with the calls.

        Raises:
            Closed: this process is a fork of the one that began the workers.
            SwathError: Ray is gone.
        """
        self.owner.require_here("these workers")
        if gone := self.cluster.gone():
            raise SwathError(f"nothing can be shared: {gone}")
        return shared(value)

    def room(self, handle: RayHandle) -> tuple[str, str]:
        """The resources that the worker asks for, and those of the cluster."""
        return asked(handle.options), self.cluster.room()

    def close(self) -> None:
        """Kill all actors that are left, but for those that last."""
        for handle in self._handles if self.owner.is_here else ():
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
        ValueError: an option would take the worker's life, or the order of its calls, out of our hands; or would have
            Ray end a whole node when the worker ends.
    """
    if (room := resources.get("object_store_memory")) is not None:  # Ray gives back more than it took, and aborts
        raise ValueError(
            f"object_store_memory={room!r} cannot be given to a worker on Ray: when an actor with that option ends, "
            "Ray ends its whole node; set the size of the store, ray_init_config={'object_store_memory': …}, or for a "
            "cluster that is up `ray start --object-store-memory`"
        )
    for option, only in _OURS.items():
        if (given := resources.get(option, only)) != only:
            raise ValueError(
                f"{option}={given!r} cannot be given to a worker on Ray, which answers one call after another, is "
                "replaced by Swath when it dies (restarts), and ends with its driver; leave it out"
            )
    return {name: value for name, value in resources.items() if name not in (*_OURS, "object_store_memory")}


def _setup(job: Job) -> Setup:
    given = (job.resources.get("runtime_env") or {}).get("env_vars") or {}
    variables = {name: str(job.threads) for name in THREAD_SETTINGS if name not in given}
    before = travelling(job.before)
    with sending(f"build={job.build!r}", "Ray"):
        build = packed(Registered.here(job.build))
    path = [entry or str(Path.cwd()) for entry in sys.path]
    return Setup(job.name, path, variables, job.threads, before, build)
