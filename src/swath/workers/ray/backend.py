"""Workers on a Ray cluster, one actor each; the cluster is joined or started, and its loss is noticed.

    spawn ─▶ actor ◀─ swath_ping, swath_build
    call  ─▶ swath_answer ─▶ future ─ done callback, in Ray's own thread ─▶ TicketMonitor
    kill  ─▶ swath_end, never answered: its error reports the actor's end

Small answers travel in messages, bodies of parcels stay in Ray's store. This module uses Ray if it is up in this
process, else joins or starts a cluster, and never shuts Ray down. Callbacks must not call Ray: they run in the thread
that would answer. The death of an actor shows as the error of a call; an idle one's, at the next call.
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
from swath.extras import import_extra
from swath.workers.base import Backend, Handle, Job
from swath.workers.hosting import THREAD_SETTINGS, pickling, serialize_function
from swath.workers.outcome import Error, Outcome, Value
from swath.workers.packing import unpack_reply
from swath.workers.ray.values import SEPARATE, RayShared, fetch_body, pack, share, unpack_copy
from swath.workers.ray.worker import RayWorker, Setup, public
from swath.workers.registered import with_registry
from swath.workers.tickets import Interrupted, Ticket

A = TypeVar("A")

_joining = threading.Lock()
_DEFAULT_MEMORY = 2 * 2**30
_ANSWER_S = 10.0
_TRIES = 6


def _require_reachable(address: str) -> None:
    """Raise at once if no cluster is at `host:port`: `ray.init` would try for minutes, then end the process."""
    host, colon, port = address.rpartition(":")
    if not (colon and port.isdecimal()) or "://" in address:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
    except OSError as error:
        remedy = "start it with `ray start --head`, or unset RAY_ADDRESS: Swath then starts one on this machine"
        raise ConnectionError(f"no Ray cluster answers at {address} ({error}); {remedy}") from error


def in_lasting_thread(start: Callable[[], Any]) -> None:
    """Start processes in a thread that does not end: Ray's processes end with the thread that started them.

    Raises:
        BaseException: starting them raised it.
    """
    if threading.current_thread() is threading.main_thread():
        start()
        return
    started: Future[Any] = Future()

    def start_and_stay() -> None:
        _run_into(started, start)
        if started.exception() is None:
            threading.Event().wait()

    threading.Thread(target=start_and_stay, name="swath keeps Ray", daemon=True).start()
    started.result()


def ask_head(question: Callable[[], A]) -> A:
    """Ask the head of the cluster; Ray itself waits without end for an answer that was lost.

    Raises:
        ConnectionError: it did not answer six questions within 60 s.
    """
    for _ in range(_TRIES):
        answer: Future[A] = Future()
        threading.Thread(target=_run_into, args=(answer, question), name="swath asks Ray", daemon=True).start()
        if wait([answer], _ANSWER_S).done:
            return answer.result()
    raise ConnectionError(
        f"the head of the Ray cluster has not answered for {_TRIES * _ANSWER_S:g} s; "
        "see in its logs whether gcs_server is up, and whether this process forks: Ray loses answers then"
    )


def _run_into(future: Future[A], function: Callable[[], A]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # noqa: BLE001  raised by `future.result`
        future.set_exception(error)


def _describe_death(error: BaseException) -> str:
    """Return Ray's reason for an actor's end, without the actor's data and general advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    reason = " ".join(lines[1:] if len(lines) > 1 else lines)
    return reason.partition(" Some common causes include")[0]


def _amount(name: str, value: Any) -> str:
    if name == "memory" and isinstance(value, int | float):
        return f"{value / 2**30:.1f} GiB"
    return f"{value:g}" if isinstance(value, int | float) else repr(value)


class RayHandle(Handle):
    """A worker in an actor.

    Args:
        job: its start-up data; a registered worker lasts until it is killed.
        backend: settles its tickets, and knows whether Ray is lost.
        options: Ray's, for the actor.
        setup: start-up data of its process.

    Attributes:
        actor: Ray's handle; call the public methods of the job with `actor.method.remote(…)`.
    """

    def __init__(self, job: Job, backend: RayBackend, options: Mapping[str, Any], setup: Setup) -> None:
        super().__init__(job, backend)
        self.placed = Ticket(job.name, "place")
        self.options = options
        self.actor: Any = None
        self._ray: Any = import_extra("ray", extra="ray", purpose="for workers on Ray")
        self._backend = backend
        self.add_ticket(self.placed)
        self._create_actor(setup)

    def _create_actor(self, setup: Setup) -> None:
        """Create the actor, or join it, and build its object."""
        job = self.job
        if reason := self._backend.unusable_reason:
            self.end(f"cannot be placed: {reason}")
            return
        try:
            if job.joins and job.registered is not None:
                self.actor = registered(*job.registered)
                self.settle(self.placed, Value(None))  # the constructor may still take long
            else:
                self.actor = _actor_class(job.public).options(**self.options).remote(setup)
        except Exception as error:  # noqa: BLE001  Ray's refusal is the answer to `ready`
            if not job.joins:
                self.settle(self.ready, Error(error))
            self.end(f"was not accepted by Ray: {error}")
        else:
            self._answer = self.actor.swath_answer.options(num_returns=2).remote
            self.actor.swath_ping.remote().future().add_done_callback(self._on_ping)
            self._settle_later(self.ready, *self.actor.swath_build.options(num_returns=2).remote())

    def call(self, ticket: Ticket, args: Sequence[Any]) -> None:
        """Send a call."""
        packed = pack(args)
        if self.add_ticket(ticket):
            if reason := self._backend.loss_reason():
                self.end(f"is lost: {reason}")
            else:
                self._settle_later(ticket, *self._answer(ticket.method.encode(), packed))  # bytes need not be pickled

    def stop(self, reason: str) -> None:
        """Kill the actor by Ray; its tickets are settled when Ray reports its death.

        Ray itself kills a process that hangs so that it cannot exit, some seconds later.
        """
        if self.actor is None or self._backend.loss_reason():
            self.end(reason)
        else:
            self._ray.kill(self.actor, no_restart=True)
            self.actor.swath_end.remote().future().add_done_callback(lambda future: self._on_death(future.exception()))

    def join(self, timeout: float) -> None:
        """Wait until Ray reports the death, for a limited time."""
        super().join(timeout)
        self.end("was killed")

    def _settle_later(self, ticket: Ticket, reply: Any, body: Any) -> None:
        reply.future().add_done_callback(partial(self._on_reply, ticket, body))

    # In Ray's thread, or where Ray is lost

    def _on_reply(self, ticket: Ticket, body: Any, future: Any) -> None:
        error, exceptions = future.exception(), self._ray.exceptions
        if error is None:
            self.settle(ticket, self._outcome(future.result(), body))
        elif isinstance(error, exceptions.RayTaskError):
            self.settle(ticket, Error(error))
        elif isinstance(error, exceptions.ObjectLostError):
            self.settle(ticket, Error(PayloadLost(f"Ray lost what {ticket.method}() returned: {error}")))
        else:
            self._on_death(error)

    def _on_ping(self, future: Any) -> None:
        if future.exception() is None:  # otherwise the actor is dead
            self.settle(self.placed, Value(None))

    def _on_death(self, error: BaseException) -> None:
        reason = _describe_death(error)
        if isinstance(error, self._ray.exceptions.ActorDiedError):
            self.end(f"died: {reason}", exit=reason)
        else:
            threading.Thread(target=self._kill_unreachable, args=(reason,), daemon=True).start()

    def _kill_unreachable(self, reason: str) -> None:
        """End a life that Ray cannot reach but does not call dead; runs in a thread that may call Ray."""
        self.kill(f"is lost: {reason}")
        self.end(f"is lost: {reason}", exit=reason)

    def _outcome(self, answer: Any, large: Any) -> Outcome:
        head, small = pickle.loads(answer) if isinstance(answer, bytes) else answer  # noqa: S301  our own worker's
        body = large if small == SEPARATE else small
        load = None if body is None else partial(fetch_body, body, self._backend.loss_reason)
        return unpack_reply(partial(unpack_copy, head), load)


class RayBackend(Backend):
    """Runs workers in Ray actors.

    Their methods run in the main thread of the actor. The death of an idle actor is noticed at the next call.

    Args:
        init_config: keywords of `ray.init`, used if Ray is not up in this process; `None` joins a running cluster, or
            else starts one on this machine, without a dashboard.
        workers: number of workers, which decides their default resources.

    Raises:
        ImportError: ray is not installed.
        ConnectionError: no cluster answers at the address that is to be joined.
        ValueError: this process is a client of a cluster (`ray://`), not part of it.
    """

    close_s = 5.0

    def __init__(self, init_config: Mapping[str, Any] | None = None, workers: int = 1) -> None:
        super().__init__()
        self._ray: Any = import_extra("ray", extra="ray", purpose="for workers on Ray")
        with _joining:
            if not self._ray.is_initialized():
                _require_reachable(str((init_config or {}).get("address") or os.environ.get("RAY_ADDRESS", "")))
                in_lasting_thread(partial(self._ray.init, **{"include_dashboard": False, **(init_config or {})}))
            elif init_config is not None:
                warn_of_no_effect("ray_init_config", "Ray is up in this process; leave it out, or do not call ray.init")
        if import_extra("ray.util.client", extra="ray", purpose="for workers on Ray").ray.is_connected():
            raise ValueError(
                "this process is a client of a Ray cluster (ray://…), which cannot read arrays where they lie; "
                "run it on a machine of the cluster, as `ray job submit` does"
            )
        self._session = self._current_session()
        self._default = self.default_resources(workers)

    def loss_reason(self) -> str | None:
        """Return why workers cannot be reached any more, or `None`. Takes microseconds."""
        if not self._ray.is_initialized():
            return "Ray was shut down in this process"
        if self._current_session() != self._session:
            return "Ray was restarted in this process"
        return None

    @property
    def unusable_reason(self) -> str | None:
        """Return why no worker can live on the cluster any more, or `None`; asks its head, which takes milliseconds."""
        if reason := self.loss_reason():
            return reason
        try:
            is_alive = any(node["Alive"] for node in ask_head(self._ray.nodes))
        except ConnectionError as error:
            return str(error)
        return None if is_alive else "no node of the Ray cluster is alive"

    def default_resources(self, workers: int) -> dict[str, Any]:
        """Return the default resources of each of so many workers, which leave the machine some memory."""
        total = ask_head(self._ray.cluster_resources)
        options: dict[str, Any] = {"num_cpus": 1}
        if total.get("GPU", 0) > 0:
            options["num_gpus"] = 0.2
        if total.get("memory", 0) >= workers * _DEFAULT_MEMORY:
            options["memory"] = _DEFAULT_MEMORY
        return options

    def wait(
        self, tickets: Sequence[Ticket], timeout: float | None = None, interrupted: Interrupted | None = None
    ) -> list[Ticket]:
        """Wait for tickets, see `TicketMonitor.wait`; if Ray is lost all workers end."""
        if reason := self.loss_reason():
            for handle in self._handles:
                handle.end(f"is lost: {reason}")
        return super().wait(tickets, timeout, interrupted)

    def share(self, value: Any) -> RayShared:
        """Put the value into Ray's store, once; a small one travels in messages.

        Raises:
            Closed: this process is a fork of the one that started the workers.
            SwathError: Ray is lost.
        """
        self.owner.require_here("these workers")
        if reason := self.loss_reason():
            raise SwathError(f"nothing can be shared: {reason}")
        return share(value)

    def describe_resources(self, handle: RayHandle) -> tuple[str, str]:
        """Describe the resources that the worker needs, and the free ones of the cluster."""
        needed = ", ".join(f"{name}={_amount(name, value)}" for name, value in handle.options.items())
        if reason := self.unusable_reason:
            return needed, f"nothing: {reason}"
        free, total = ask_head(self._ray.available_resources), ask_head(self._ray.cluster_resources)
        names = [name for name in sorted(total) if not name.startswith("node:") and name != "object_store_memory"]
        amounts = [f"{_amount(name, free.get(name, 0))} of {_amount(name, total[name])} {name}" for name in names]
        return needed, ", ".join(amounts)

    def close(self) -> None:
        """Kill all actors except for registered ones."""
        for handle in self._handles if self.owner.is_here else ():
            if handle.outlives_backend:
                handle.end("was let go of: its backend is closed")
        super().close()

    def _start(self, job: Job) -> RayHandle:
        options, setup = _options(job.resources or {**self._default, "num_cpus": job.threads}), _setup(job)
        if job.registered is not None:
            name, namespace = job.registered
            options |= {"name": name, "namespace": namespace, "lifetime": "detached", "get_if_exists": True}
        return RayHandle(job, self, options, setup)

    def _current_session(self) -> tuple[str, str]:
        context = self._ray.get_runtime_context()
        return context.get_node_id(), context.get_job_id()


def registered(name: str, namespace: str) -> Any:
    """Return the actor that is registered under this name.

    Raises:
        ValueError: there is none.
    """
    return import_extra("ray", extra="ray", purpose="for workers on Ray").get_actor(name, namespace=namespace)


@cache
def _actor_class(public_methods: tuple[str, ...]) -> Any:
    """Return the class of actors with these methods; one each, since Ray keeps every class that it has created."""
    kind = type("SwathWorker", (RayWorker,), {name: public(name) for name in public_methods})
    ray = import_extra("ray", extra="ray", purpose="for workers on Ray")
    return ray.remote(max_restarts=0, max_task_retries=0)(kind)


_FIXED = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1, "concurrency_groups": None, "lifetime": None}
"""Options of actors that have one possible value."""


def _options(resources: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of an actor, and return those to pass to Ray.

    Raises:
        ValueError: an option would give the worker's life, or the order of its calls, to Ray; or would let Ray end a
            node when the worker ends.
    """
    if (memory := resources.get("object_store_memory")) is not None:  # Ray gives back more than it took, and aborts
        raise ValueError(
            f"object_store_memory={memory!r} cannot be given to a worker on Ray: when an actor with that option ends, "
            "Ray ends its whole node; set the size of the store, ray_init_config={'object_store_memory': …}, or for a "
            "cluster that is up `ray start --object-store-memory`"
        )
    for option, default in _FIXED.items():
        if (value := resources.get(option, default)) != default:
            raise ValueError(
                f"{option}={value!r} cannot be given to a worker on Ray, which answers one call after another, is "
                "replaced by Swath when it dies (restarts), and ends with its driver; leave it out"
            )
    return {name: value for name, value in resources.items() if name not in (*_FIXED, "object_store_memory")}


def _setup(job: Job) -> Setup:
    set_by_user = (job.resources.get("runtime_env") or {}).get("env_vars") or {}
    variables = {name: str(job.threads) for name in THREAD_SETTINGS if name not in set_by_user}
    initializer = serialize_function(job.initializer)
    with pickling(f"build={job.build!r}", "Ray"):
        build = pack(with_registry(job.build))
    path = [entry or str(Path.cwd()) for entry in sys.path]
    return Setup(job.name, path, variables, job.threads, initializer, build)
