"""A sub-env that lives in a process of its own, as an env here.

    begin(action) of all ──▶ they step side by side ──▶ step(action) of each waits for its answer

One that died is started again by its next reset.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from swath.rollout_workers.hosts.servant import Recipe
from swath.workers.base import Backend, Job
from swath.workers.tickets import Name, Ticket

_FAREWELL_S = 10.0


class RemoteEnv(gym.Env[Any, Any]):
    """What a sub-env elsewhere does.

    Args:
        backend: where it lives.
        recipe: how it is made.

    Raises:
        Exception: what its creator or its check raised.
    """

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self._backend, self._recipe = backend, recipe
        self._life, self._open, self._pending = -1, True, Ticket(Name(0, 0), "none")
        self._stepping = False
        self._start()
        seen = self._asked("look")
        self.observation_space, self.action_space = seen["observation_space"], seen["action_space"]
        self.metadata, self.render_mode, self.spec = seen["metadata"], seen["render_mode"], seen["spec"]

    def begin(self, action: Any) -> None:
        """Let it make a step, of which `step` tells."""
        self._pending, self._stepping = self._send("step", action), True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; in another process, if the last one died."""
        if self._handle.ended.done:
            self._start()
        observation, info = self._asked("reset", seed, options)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """The step that was begun, or this one."""
        ticket = self._pending if self._stepping else self._send("step", action)
        self._stepping = False
        observation, reward, terminated, truncated, info = self._answer(ticket)
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        """A frame."""
        return self._asked("render")

    def apply(self, func: Callable[..., Any], *args: Any) -> Any:
        """`func(env, …)`, over there."""
        return self._asked("apply", func, *args)

    def close(self) -> None:
        """Close it, and end its process."""
        if not self._open:
            return
        self._open = False
        try:
            ticket = self._send("close")
            self._backend.wait([ticket], _FAREWELL_S)
            if ticket.done and not self._handle.ended.done:
                ticket.value  # noqa: B018  raises what `close` has raised
        finally:
            self._backend.kill(self._handle)

    def _start(self) -> None:
        self._life += 1
        name = Name(self._recipe.context.vector_index, self._life)
        self._handle = self._backend.spawn(Job(self._recipe, name))
        try:
            self._answer(self._handle.ready)
        except BaseException:
            self._backend.kill(self._handle)
            raise

    def _send(self, method: str, *args: Any) -> Ticket:
        return self._backend.call(self._handle, method, *args)

    def _asked(self, method: str, *args: Any) -> Any:
        return self._answer(self._send(method, *args))

    def _answer(self, ticket: Ticket) -> Any:
        self._backend.wait([ticket])
        return ticket.value


def applied(env: Any, func: Callable[..., Any], *args: Any) -> Any:
    """`func(env, …)` where the env lives."""
    return env.apply(func, *args) if isinstance(env, RemoteEnv) else func(env, *args)
