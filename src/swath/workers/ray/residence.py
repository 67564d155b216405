"""An actor of one's own with one object in it: begun, waited for, reached, ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from swath.errors import Closed, PlacementFailed
from swath.workers.base import Handle, Job
from swath.workers.ray.backend import RayBackend
from swath.workers.ray.held import Held, Reach
from swath.workers.tickets import Name

ANSWER_S = 60.0
PLACEMENT_S = 300.0


@dataclass(frozen=True)
class Tenancy:
    """What is to be held, and where.

    Attributes:
        build: makes the object, in the actor.
        what: it is, in messages.
        resources: options of `ray.remote()`.
        init_config: keywords of `ray.init()`, used if Ray is not up in this process.
        delayed: return at once, and build the object at its first use.
    """

    build: Callable[[], Any]
    what: str
    resources: Mapping[str, Any]
    init_config: Mapping[str, Any] | None = None
    delayed: bool = False


class Residence:
    """Holds an object in an actor, until it is closed or collected as garbage. Any thread may use it.

    Args:
        asked: what and where.

    Attributes:
        reach: reaches the object, also from elsewhere.

    Raises:
        ImportError: Ray is not installed.
        TypeError: what builds the object cannot be pickled.
        PlacementFailed: the cluster has no room, or the actor was not ready in time.
        Exception: what building the object raised; nothing is left.
    """

    def __init__(self, asked: Tenancy) -> None:
        self._backend = RayBackend(asked.init_config)
        self._what, self._closed = asked.what, False
        threads = max(1, int(asked.resources.get("num_cpus") or 1))
        build = partial(Held, asked.build, at_once=not asked.delayed)
        try:
            handle = self._backend.spawn(Job(build, Name(0, 0), threads=threads, resources=asked.resources))
            if not asked.delayed:
                self._await(handle)
            elif handle.ready.done:
                handle.ready.value  # noqa: B018  it raises what Ray did not take
        except BaseException:
            self._backend.close()
            raise
        self._handle = handle
        self.reach = Reach(handle.actor, self._backend.cluster, asked.what, ANSWER_S)

    @property
    def alive(self) -> bool:
        """Whether the object can be reached, as far as is known. Asks nobody."""
        if self._closed or self.reach.lost:
            return False
        self._backend.wait([self._handle.ended], 0.0)
        return not self._handle.ended.done

    def require_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self._closed:
            raise Closed(f"{self._what} was shut down, and is gone with all that was in it; make another one")

    def close(self, timeout: float) -> None:
        """End the actor, and wait so many seconds until Ray says that it is over. Twice is fine."""
        self._closed = True
        self._backend.kill(self._handle)
        self._backend.wait([self._handle.ended], timeout)
        self._backend.close()

    def _await(self, handle: Handle) -> None:
        if not self._backend.wait([handle.ready], PLACEMENT_S):
            asked, available = self._backend.room(handle)
            raise PlacementFailed(
                f"{self._what} was not ready after {PLACEMENT_S:g} s: it asks for {asked}; there is {available}",
                asked=asked,
                available=available,
            )
        handle.ready.value  # noqa: B018  it raises what building raised
