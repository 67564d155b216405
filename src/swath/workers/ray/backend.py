"""Workers on a Ray cluster, each in an actor of its own.

    spawn ─▶ actor: before ─▶ build ─▶ object ◀─ call: one after another
      │                                  └─▶ answer: small ones travel along, bodies of parcels stay in Ray's store
      └─ wait: a condition that Ray's callbacks notify; nobody polls

Ray is used as it is found in this process, joined or started, and never shut down from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from swath.errors import SwathError
from swath.workers.base import Backend, Handle, Job, Watched
from swath.workers.garbage import GarbageWatch
from swath.workers.ray.actors import RayActors, RayHandle
from swath.workers.ray.cluster import Cluster, asked
from swath.workers.ray.values import RayShared
from swath.workers.tickets import Ticket


class RayBackend(Backend):
    """Workers in Ray actors.

    Their methods run in the main thread of the actor. The death of an actor that is idle is seen with the next call.

    Args:
        init_config: keywords of `ray.init`, used if Ray is not up in this process; `None` joins a running cluster, or
            else starts one on this machine.
        workers: how many there will be; what they ask for by default depends on it.

    Raises:
        ImportError: ray is not installed.
        ValueError: this process is a client of a cluster (`ray://`), not part of it.
    """

    def __init__(self, init_config: Mapping[str, Any] | None = None, workers: int = 1) -> None:
        cluster = Cluster(init_config)
        self._actors = RayActors(cluster, cluster.default_for(workers))
        super().__init__()
        self._board = self._actors.board
        self._watch = GarbageWatch(
            self, self._actors.close, at_exit=False
        )  # Ray ends the actors of a driver that exits

    @property
    def cluster(self) -> Cluster:
        """Where the workers live."""
        return self._actors.cluster

    def spawn(self, job: Job) -> RayHandle:
        """Begin a worker's life and return at once; it starts when Ray has room for it.

        Raises:
            TypeError: `before` or `build` cannot be pickled.
            ValueError: `resources` has an option that would take the worker's life out of our hands.
            Closed: the backend is closed.
        """
        return self._actors.spawn(job)

    @property
    def gone(self) -> str | None:
        """What became of the cluster, if nothing can live there any more; asks its head, which takes milliseconds."""
        try:
            return self._actors.cluster.empty()
        except ConnectionError as error:
            return str(error)

    def call(self, handle: Handle, method: str, *args: Any) -> Ticket:
        """Send a call and return at once.

        Raises:
            TypeError: an argument cannot be pickled.
        """
        assert isinstance(handle, RayHandle)
        return self._actors.call(handle, method, args)

    def wait(
        self,
        tickets: Sequence[Ticket],
        timeout: float | None = None,
        interrupted: Callable[[], bool] | None = None,
    ) -> list[Ticket]:
        """The tickets that are done; see `Board.wait`."""
        self._actors.look()
        return super().wait(tickets, timeout, interrupted)

    def share(self, value: Any) -> RayShared:
        """Put the value into Ray's store, once; a small one travels along with the calls.

        Raises:
            SwathError: Ray is gone.
        """
        if gone := self._actors.cluster.gone():
            raise SwathError(f"nothing can be shared: {gone}")
        return RayShared(value)

    def watched(self, size: int) -> Watched:
        """There is no such memory.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"workers on Ray cannot watch {size} numbers: they may not see memory of this process")

    def kill(self, handle: Handle) -> None:
        """Have Ray kill the actor; its tickets are settled when Ray says that it is dead.

        A process that hangs so that it cannot even be told is killed by Ray some seconds later.
        """
        assert isinstance(handle, RayHandle)
        self._actors.kill(handle)

    def room(self, handle: Handle) -> tuple[str, str]:
        """The resources that the worker asks for, and those of the cluster."""
        assert isinstance(handle, RayHandle)
        return asked(handle.options), self._actors.cluster.room()

    def close(self) -> None:
        """Kill all actors that are left. Happens by itself when the backend is collected, or the interpreter ends."""
        try:
            self._actors.close()
        finally:
            self._watch.end()
