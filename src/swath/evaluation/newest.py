"""Which rollout is the newest that was asked of a `RayEvalWorker`, in an actor of its own.

    handle ─ announce ─▶ Newest ─ other_than: answered when another is the newest ─▶ actor that plays

The actor that plays is busy in the main thread of its process and can be asked nothing meanwhile. This module imports
nothing heavy.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, NamedTuple

from swath.extras import need


class Token(NamedTuple):
    """Names one rollout that was asked for.

    Attributes:
        asker: which handle.
        number: counts what that handle has asked for.
    """

    asker: str
    number: int


class Newest:
    """The actor. It answers many at once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._newest: Token | None = None
        self._changed = asyncio.Condition()

    async def announce(self, token: Token | None) -> None:
        """This rollout is asked for now, unless its handle has asked for another since. `None`: no other is."""
        async with self._changed:
            if token is None:
                self._newest = None
            elif token.number > self._numbers.get(token.asker, 0):
                self._numbers[token.asker] = token.number
                self._newest = token
            self._changed.notify_all()

    async def other_than(self, token: Token) -> Token | None:
        """Wait until this rollout is not the newest; which is."""
        await self.announce(token)
        async with self._changed:
            await self._changed.wait_for(lambda: self._newest != token)
            return self._newest


def begun(name: str, namespace: str, *, lasts: bool) -> Any:
    """The actor of that name, begun if there is none; Ray begins it anew, and asks it again, if it dies.

    Args:
        name: its own.
        namespace: of the name.
        lasts: whether it outlives this driver.
    """
    ray: Any = need("ray", extra="ray", why="for RayEvalWorker")
    options = {"name": name, "namespace": namespace, "lifetime": "detached" if lasts else None, "get_if_exists": True}
    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Newest).options(**options).remote()


def superseded(name: str, namespace: str, token: Token) -> Future[Token | None]:
    """Done when another rollout is the newest, or none; with that one."""
    ray: Any = need("ray", extra="ray", why="for RayEvalWorker")
    done: Future[Token | None] = ray.get_actor(name, namespace=namespace).other_than.remote(token).future()
    return done
