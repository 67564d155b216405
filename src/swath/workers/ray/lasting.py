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

    def call_aside(self, handle: RayHandle, method: str, *args: Any) -> Ticket:
        """Send a call that is answered in a thread of its own, once the worker is built."""
        return self._actors.call(handle, method, args, aside=True)
