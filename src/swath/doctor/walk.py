"""Random walks through an env as it is, without a host that would put right what is wrong with it.

The only module here that steps an env. What a call answers is handed out unread; what it raises leaves the walk.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode

from swath.doctor.fault import calling
from swath.doctor.subject import Effort, is_batched
from swath.doctor.watchdog import beat
from swath.rollout.hosts.vector_reset import mode_of


@dataclass(frozen=True, slots=True)
class Moment:
    """One call of an env.

    Attributes:
        call: which method.
        answer: what it returned.
        seconds: how long that took.
    """

    call: Literal["reset", "step"]
    answer: Any
    seconds: float


def walk(env: Any, effort: Effort, seed: int) -> Iterator[Moment]:
    """Reset with the seed, then make random steps; an env that is done is reset, unless it does so itself.

    Ends early where an answer is no step's, so that nobody could tell whether an episode has ended.

    Raises:
        Fault: the env raised.
    """
    space = deepcopy(env.action_space)  # others may draw from it too
    space.seed(seed)
    again = _resets_when_done(env)
    until = time.monotonic() + effort.seconds
    yield _timed(env, "reset", lambda: env.reset(seed=seed))
    for _ in range(effort.steps):
        action = space.sample()
        moment = _timed(env, "step", lambda action=action: env.step(action))  # type: ignore[misc]
        yield moment
        if not is_step(moment.answer) or time.monotonic() > until:
            return
        if again and is_over(moment.answer):
            yield _timed(env, "reset", env.reset)


def is_step(answer: Any) -> bool:
    """Whether this is what `step` returns: five values."""
    return isinstance(answer, tuple) and len(answer) == 5


def is_over(answer: Any) -> bool:
    """Whether an episode ended with this answer."""
    return bool(np.any(answer[2]) or np.any(answer[3]))


def _resets_when_done(env: Any) -> bool:
    return not is_batched(env) or mode_of(env) is AutoresetMode.DISABLED


def _timed(env: Any, call: Literal["reset", "step"], ask: Callable[[], Any]) -> Moment:
    beat()
    with calling(env, call), warnings.catch_warnings(action="ignore"):  # Gymnasium's have no next move
        began = time.perf_counter()
        answer = ask()
        return Moment(call, answer, time.perf_counter() - began)
