"""A scheme's own channel on a Ray cluster: a small actor that holds the newest weights."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass
from typing import Any

from swath.extras import need
from swath.weight_update.mail import EVERYONE, PATIENCE_S, Address, Letter, Post
from swath.weights.register import Register
from swath.workers.garbage import apart

_ONE = "model"
_START_S = 60.0


class _Office:
    """What the actor is: the newest weights, as references to Ray's object store."""

    def __init__(self) -> None:
        self._register: Register[Any] = Register()
        self._change = asyncio.Condition()

    async def live(self) -> None:
        """Answered when the actor ends."""
        await asyncio.Event().wait()

    async def put(self, post: Post) -> None:
        """Make these the newest."""
        stored = {who: _ray().put(snapshot) for who, snapshot in post.items()}
        async with self._change:
            if EVERYONE in stored:
                self._register.put({_ONE: stored[EVERYONE]})
            each = {who: {_ONE: reference} for who, reference in stored.items() if who != EVERYONE}
            if each:
                self._register.put_each(each)
            self._change.notify_all()

    async def newest(self, worker: int, after: int, timeout: float) -> tuple[int, list[Any]] | None:
        """Serial number and reference of what is meant for a reader, if it is newer than what it has seen."""

        def news() -> bool:
            return self._register.newest(worker).serial > after

        async with self._change:
            if not news():
                try:
                    await asyncio.wait_for(self._change.wait_for(news), timeout)
                except TimeoutError:
                    return None
            return self._register.newest(worker).serial, [self._register.meant(worker)[_ONE]]


class RayChannel:
    """A scheme's own channel; all processes of the cluster reach it. See `OwnChannel`."""

    def __init__(self) -> None:
        ray = _ray()
        self._actor = ray.remote(num_cpus=0, max_concurrency=1000)(_Office).remote()
        self._life = self._actor.live.remote()
        self._finalizer = weakref.finalize(self, apart, _end, self._actor, self._life)

    @property
    def address(self) -> Address:
        """Where it is."""
        return RayAddress(self._actor)

    def put(self, post: Post) -> None:
        """Make these the newest."""
        _ray().get(self._actor.put.remote(dict(post)), timeout=_START_S)

    def close(self) -> None:
        """End the actor, and wait until it is gone. Twice is fine."""
        if self._finalizer.detach() is not None:
            _end(self._actor, self._life)


@dataclass(frozen=True)
class RayAddress:
    """Where a channel is on the cluster.

    Attributes:
        actor: its handle.
    """

    actor: Any

    def reader(self) -> RayReader:
        """Reads it from here."""
        return RayReader(self.actor)


class RayReader:
    """Reads a channel of the cluster. See `Reader`."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def newest(self, worker: int, after: int, timeout: float) -> Letter | None:
        """What is meant for a reader, if it is newer than what it has seen."""
        ray = _ray()
        try:
            found = ray.get(self._actor.newest.remote(worker, after, timeout), timeout=timeout + _START_S)
            return None if found is None else Letter(found[0], ray.get(found[1][0], timeout=_START_S))
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise RuntimeError(
                f"the weights of this scheme cannot be reached ({error}): the actor that holds them has ended with the "
                "scheme that made it, or the cluster does not answer"
            ) from error

    def close(self) -> None:
        """Nothing is held."""


def _end(actor: Any, life: Any) -> None:
    """Kill the actor and wait until it is gone."""
    ray = _ray()
    if ray.is_initialized():
        ray.kill(actor)
        ray.wait([life], timeout=PATIENCE_S)


def _ray() -> Any:
    return need("ray", extra="ray", why="for a RayWeightSyncScheme without a collector")
