"""Workers on Ray that are found by their names, also by drivers that come later, and that last until they are killed.

spawn_lasting(job, name) ─▶ actor ◀─ found(name) ─ adopt(actor) ─ another driver
                call_aside ─▶ answered while another call is being answered
"""

from __future__ import annotations

from typing import Any

from swath.extras import need
from swath.workers.base import Job
from swath.workers.ray.backend import RayBackend
from swath.workers.ray.handle import RayHandle
from swath.workers.tickets import Ticket


class LastingBackend(RayBackend):
    """Workers in Ray actors, some of which outlive their driver. Closing it leaves those as they are."""

    def spawn_lasting(self, job: Job, name: str, namespace: str) -> RayHandle:
        """Begin a worker's life under a name; or join that which has it already, begun by another driver."""
        given = {"name": name, "namespace": namespace, "lifetime": "detached", "get_if_exists": True}
        return self._actors.spawn(job, given)

    def adopt(self, actor: Any, job: Job) -> RayHandle:
        """What is held of an actor that was found; of the job only the name counts."""
        return self._actors.adopt(actor, job)

    def found(self, name: str, namespace: str) -> Any:
        """The actor of that name; `None` if there is none."""
        ray: Any = need("ray", extra="ray", why="for workers on Ray")
        try:
            return ray.get_actor(name, namespace=namespace)
        except ValueError:
            return None

    def mark(self, name: str, namespace: str, *, ended: bool) -> None:
        """Tell whoever holds that actor, on the whole cluster, whether it was ended for good."""
        if ended:
            _store("put")(_mark_of(name, namespace), b"ended")
        else:
            _store("del")(_mark_of(name, namespace))

    def is_over(self, name: str, namespace: str) -> bool:
        """Whether it was ended for good, and not lost."""
        return bool(_store("exists")(_mark_of(name, namespace)))

    def call_aside(self, handle: RayHandle, method: str, *args: Any) -> Ticket:
        """Send a call that is answered in a thread of its own, once the worker is built."""
        return self._actors.call(handle, method, args, aside=True)


def _mark_of(name: str, namespace: str) -> bytes:
    return f"swath ended {namespace}/{name}".encode()


def _store(verb: str) -> Any:
    """A function of the store in which Ray keeps a few bytes for all drivers of a cluster."""
    return getattr(need("ray.experimental.internal_kv", extra="ray", why="for workers on Ray"), f"_internal_kv_{verb}")
