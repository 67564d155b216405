"""An object in an actor of Ray, and how it is reached from any process of the cluster's machines.

    Reach ─ apply(function, *args) ─▶ actor ─▶ Held: function(object, *args) ─▶ what it returns, or raises, over here

One blocking round trip per call, with a deadline; arrays travel as buffers. A reach travels, too: where Ray is not up,
it joins the cluster.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle

from swath.errors import PayloadLost, WorkerLate, WorkerLost
from swath.extras import need
from swath.workers.ray.cluster import Cluster, told
from swath.workers.ray.freight import packed, replied
from swath.workers.ray.handle import asking_whole

ITSELF = "swath: the object itself"
"""Stands for the object among what its methods return; it never leaves its actor."""


class Held:
    """Lives in the actor; used by one thread at a time.

    Args:
        build: makes the object.
        at_once: now; otherwise at its first use.
    """

    def __init__(self, build: Callable[[], Any], *, at_once: bool) -> None:
        self._build = build
        self._object: list[Any] = [build()] if at_once else []
        self._iterators: dict[int, Iterator[Any]] = {}
        self._begun = 0

    def apply(self, function: Callable[..., Any], args: Sequence[Any]) -> Any:
        """Call the function with the object and these arguments."""
        held = self._there()
        value = function(held, *args)
        return ITSELF if value is held else value

    def iterate(self, over: Sequence[int]) -> int:
        """Begin to iterate, and forget iterations that are over; a number for `advance`."""
        for number in over:
            self._iterators.pop(number, None)
        self._begun += 1
        self._iterators[self._begun] = iter(self._there())
        return self._begun

    def advance(self, number: int) -> list[Any]:
        """The next item in a list; an empty one at the end."""
        for item in self._iterators.get(number, ()):
            return [item]
        self._iterators.pop(number, None)
        return []

    def _there(self) -> Any:
        if not self._object:
            self._object.append(self._build())
        return self._object[0]


class Reach:
    """Reaches a `Held`. Any thread may call.

    Args:
        actor: that holds it.
        cluster: where it is.
        what: it is, in messages.
        patience: seconds that a call may take.

    Attributes:
        lost: whether a call has found that the actor is gone.
    """

    def __init__(self, actor: Any, cluster: Cluster, what: str, patience: float) -> None:
        self.what = what
        self.lost = False
        self._patience = patience
        self._address = cluster.address
        self._frozen = cloudpickle.dumps(actor)
        self._ask: Any = asking_whole(actor)
        self._cluster: Cluster | None = cluster

    def __getstate__(self) -> dict[str, Any]:
        """Without what is this process's own."""
        return {**self.__dict__, "_ask": None, "_cluster": None}

    def apply(self, said: str, function: Callable[..., Any], *args: Any) -> Any:
        """What the function makes of the object and these arguments, over there.

        Args:
            said: what is asked, in messages.
            function: travels by cloudpickle.
            *args: likewise.

        Raises:
            WorkerLost: the actor, or Ray, is gone.
            WorkerLate: no answer in time; it may still come to pass over there.
            Exception: what the function raised, as its own type.
        """
        return self.ask(said, "apply", function, args)

    def ask(self, said: str, method: str, *args: Any) -> Any:
        """What a method of `Held` returns; see `apply`."""
        ray = need("ray", extra="ray", why=f"to reach {self.what}")
        reply, _ = self._here()(method, packed(args))
        try:
            return replied(ray.get(reply, timeout=self._patience))[1]
        except ray.exceptions.GetTimeoutError:
            raise WorkerLate(
                f"{self.what} has not answered {said} within {self._patience:g} s; it may still do what was asked",
                workers=(0,),
                deadline=self._patience,
            ) from None
        except ray.exceptions.RayActorError as error:
            raise self._lost(told(error)) from None
        except ray.exceptions.ObjectLostError as error:
            raise PayloadLost(f"Ray lost what {said} returned: {told(error)}") from None

    def _here(self) -> Any:
        """Calls the actor from this process."""
        if self._cluster is None:
            self._cluster = Cluster.joined(self._address)
        if gone := self._cluster.gone():
            raise self._lost(gone)
        if self._ask is None:
            self._ask = asking_whole(pickle.loads(self._frozen))  # noqa: S301  made above
        return self._ask

    def _lost(self, why: str) -> WorkerLost:
        self.lost = True
        return WorkerLost(f"{self.what} is lost with all that was in it: {why}", exit=why)
