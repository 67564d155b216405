"""The Ray cluster that this process belongs to: joined or started, seen to be gone, its room in words."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from swath.errors import warn_of_no_effect
from swath.extras import need

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
        ValueError: this process is not part of the cluster, but a client of it.
    """

    def __init__(self, init_config: Mapping[str, Any] | None = None) -> None:
        self._ray: Any = need("ray", extra="ray", why="for workers on Ray")
        with _joining:
            if not self._ray.is_initialized():
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
