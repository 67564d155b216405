"""A sub-env that lives in a process of its own, as an env here.

    begin(action) of all ──▶ they step side by side ──▶ step(action) of each waits for its answer

One that died is started again by its next reset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym

from swath.rollout_workers.hosts.servant import Recipe
from swath.rollout_workers.multi_agent_env import MultiAgentEnv
from swath.workers.base import Backend, Job
from swath.workers.tickets import Name, Ticket

_FAREWELL_S = 10.0


class Line:
    """The way to a sub-env elsewhere.

    Args:
        backend: where it lives.
        recipe: how it is made.

    Raises:
        Exception: what its creator or its check raised.
    """

    def __init__(self, backend: Backend, recipe: Recipe) -> None:
        self._backend, self._recipe = backend, recipe
        self._life, self._open = -1, True
        self._start()

    def revive(self) -> None:
        """Start it again, if it died."""
        if self._handle.ended.done:
            self._start()

    def send(self, method: str, *args: Any) -> Ticket:
        """Ask for something."""
        return self._backend.call(self._handle, method, *args)

    def answer(self, ticket: Ticket) -> Any:
        """What came of it."""
        self._backend.wait([ticket])
        return ticket.value

    def asked(self, method: str, *args: Any) -> Any:
        """Ask, and wait for what comes of it."""
        return self.answer(self.send(method, *args))

    def close(self) -> None:
        """Close the env, and end its process."""
        if not self._open:
            return
        self._open = False
        try:
            ticket = self.send("close")
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
            self.answer(self._handle.ready)
        except BaseException:
            self._backend.kill(self._handle)
            raise


class RemoteEnv(gym.Env[Any, Any]):
    """What a sub-env elsewhere does.

    Args:
        line: the way to it.
        seen: what can be seen of it, by attribute.
    """

    def __init__(self, line: Line, seen: Mapping[str, Any]) -> None:
        self._line = line
        self._begun: Ticket | None = None
        for name, value in seen.items():
            setattr(self, name, value)

    def begin(self, action: Any) -> None:
        """Let it make a step, of which `step` tells."""
        self._begun = self._line.send("step", action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; in another process, if the last one died."""
        self._line.revive()
        observation, info = self._line.asked("reset", seed, options)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The step that was begun, or this one."""
        ticket = self._line.send("step", action) if self._begun is None else self._begun
        self._begun = None
        observation, reward, terminated, truncated, info = self._line.answer(ticket)
        return observation, reward, terminated, truncated, info

    def render(self) -> Any:
        """A frame."""
        return self._line.asked("render")

    def apply(self, func: Callable[..., Any], *args: Any) -> Any:
        """`func(env, …)`, over there."""
        return self._line.asked("apply", func, *args)

    def close(self) -> None:
        """Close it, and end its process."""
        self._line.close()


class RemoteAgents(RemoteEnv, MultiAgentEnv):
    """The same of one with several agents, as they were when it was made."""


def remote_env(backend: Backend, recipe: Recipe) -> RemoteEnv:
    """A sub-env that lives there.

    Raises:
        Exception: what its creator or its check raised.
        TypeError: it cannot be served elsewhere.
    """
    line = Line(backend, recipe)
    try:
        seen = line.asked("look")
    except BaseException:
        line.close()
        raise
    return (RemoteAgents if "agents" in seen else RemoteEnv)(line, seen)


def applied(env: Any, func: Callable[..., Any], *args: Any) -> Any:
    """`func(env, …)` where the env lives."""
    return env.apply(func, *args) if isinstance(env, RemoteEnv) else func(env, *args)
