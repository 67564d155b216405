"""What an env returned where it is not what its API promises, in one message.

```
error over what the env returned ──▶ explained ──▶ BadAnswer: which call, of which class, where, what, and the API's
error out of the env's own code  ──▶ explained ──▶ itself
```
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from reprlib import repr as brief
from traceback import walk_tb
from types import FrameType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from swath.errors import BadAnswer

PLAIN = (TimeLimit, OrderEnforcing, PassiveEnvChecker)
"""Wrappers that return what they wrap returned, or next to it."""

EXPLAINED = (TypeError, ValueError, AttributeError, LookupError)
"""What reading an answer may raise."""

MOST_ENTRIES = 6
"""Of a tuple, that are told."""

UNKNOWN: Any = object()
"""In the place of an answer: the env has not returned yet, or it is not known what."""


class Promise(NamedTuple):
    """A method of an env's API.

    Attributes:
        call: its name.
        form: what has it, takes and returns.
    """

    call: str
    form: str


def explained(error: Exception, promise: Promise, env: Any, answer: Any = UNKNOWN) -> Exception:
    """The error if it came out of the env, else a `BadAnswer` that tells what the env returned and what it should.

    Args:
        error: raised by a host, or by what that has called.
        promise: what was called.
        env: of which env; wrappers that only pass its answer on are left out.
        answer: what it returned.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    if not isinstance(error, EXPLAINED) or not all(map(_is_between, frames[1:])):
        return error
    subject = _subject(_answering(env, promise.call, frames), promise.call)
    returned = len(frames) == 1 and answer is not UNKNOWN
    return BadAnswer(f"{subject}{f' returned {described(answer)}' if returned else _said(error)}; {promise.form}")


def _said(error: Exception) -> str:
    return f": no entry {error}" if isinstance(error, KeyError) else f": {error}"


def described(answer: Any) -> str:
    """An answer in a few words, whatever it is."""
    try:
        return _described(answer)
    except Exception:  # noqa: BLE001  an object of the user's may raise whatever it is asked
        return type(answer).__name__


def _described(answer: Any) -> str:
    if isinstance(answer, tuple):
        rest = ", …" if len(answer) > MOST_ENTRIES else ""
        return f"a tuple of {len(answer)}: ({', '.join(map(described, answer[:MOST_ENTRIES]))}{rest})"
    if isinstance(answer, Mapping):
        return f"a dict with {brief(list(answer))}"
    if hasattr(answer, "shape") and not isinstance(answer, np.generic):
        return f"{type(answer).__name__} of shape {tuple(answer.shape)}"
    return " ".join(brief(answer).split())


def _is_between(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(_BETWEEN)


def _answering(env: Any, call: str, frames: Sequence[FrameType]) -> Any:
    """The env that an answer comes from: below the wrapper that could not read it, and those that pass it on."""
    reader = frames[-1].f_locals.get("self") if frames else None
    if isinstance(reader, gym.Wrapper):
        env = reader.env
    while isinstance(env, gym.Wrapper) and _passes_on(type(env), call):
        env = env.env
    return env


def _passes_on(kind: type, call: str) -> bool:
    return kind in PLAIN or getattr(kind, call) is getattr(gym.Wrapper, call, None)


def _subject(env: Any, call: str) -> str:
    kind = type(env)
    name = f"{call} of {kind.__module__}.{kind.__qualname__}"
    try:
        code = inspect.unwrap(getattr(kind, call, kind)).__code__
    except (AttributeError, ValueError):  # it is no function of Python's, or wraps itself
        return name
    return f"{name} ({code.co_filename}:{code.co_firstlineno})"


_BETWEEN = (
    "swath.rollout.",
    "swath.rollout_workers.hosts.",
    "gymnasium.core",
    "gymnasium.wrappers.",
    "gymnasium.utils.passive_env_checker",
)
"""Modules that pass on what envs return, or read it."""
