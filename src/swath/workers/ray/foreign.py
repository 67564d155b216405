"""Ray actors made elsewhere as workers: any with `apply(func, *args)` that gives `func(what_lives_there, *args)`.

ForeignBackend ─ apply(answer, method, Wire) ─▶ actor ─▶ a desk for the object that `host` makes of what lives there

Their deaths are seen when they are called. They outlive the backend.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from swath.workers.base import Job
from swath.workers.outcome import Value
from swath.workers.ray.backend import RayBackend
from swath.workers.ray.desk import Desk
from swath.workers.ray.handle import RayHandle
from swath.workers.ray.messages import Reply, Wire
from swath.workers.tickets import Name

_desks: weakref.WeakKeyDictionary[Any, Desk] = weakref.WeakKeyDictionary()
"""In an actor: of what lives there."""


class ForeignBackend(RayBackend):
    """Workers that somebody else has made.

    Args:
        actors: Ray's handles, of the workers from 1.
        host: makes the object whose methods are called, over there, of what lives in the actor.
    """

    def __init__(self, actors: Sequence[Any], host: Callable[[Any], Any]) -> None:
        super().__init__()
        self._foreign = list(actors)
        self._host = host

    def spawn(self, job: Job) -> RayHandle:
        """Take a worker's actor over.

        Raises:
            ValueError: there is no such actor; it cannot be made anew.
        """
        worker, life = job.name
        if life or not 1 <= worker <= len(self._foreign):
            raise ValueError(
                f"worker {worker} (life {life}) cannot be begun: Ray actors made elsewhere are not made anew"
            )
        answer = partial(_answer, self._host, job.name)
        return self._actors.take_over(self._foreign[worker - 1], job, answer)


def adopting(name: Name) -> Job:
    """Stands for how such a worker is begun."""
    return Job(object, name)


def _answer(host: Callable[[Any], Any], name: Name, living: Any, method: str | None, wire: Wire) -> Reply | bytes:
    """What a method of the object answers; with none, what came of making the object."""
    if method is None:
        _desks[living] = Desk(name)
        answer, _ = _desks[living].build(Value(None), lambda: lambda: host(living))
        return answer
    return _desks[living].whole(method, wire)
