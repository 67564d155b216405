"""What goes wrong in an env, as data: `{1: [Fault("raise", episode=0, step=3)]}`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import gymnasium as gym
import numpy as np

_Step = Literal["raise", "exit", "kill", "hang", "nan", "nan_reward", "shape"]
Kind = Literal[_Step, "raise_at_reset", "raise_at_close", "raise_at_build", "build_nothing"]

_ENDINGS: tuple[Kind, ...] = ("exit", "kill")
EXIT_CODE = 3
"""With which a process ends by the fault `"exit"`."""


class EnvBroke(RuntimeError):  # noqa: N818  says what happened
    """What a faulty env raises."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, so many times.

    Attributes:
        kind: `"raise"`: the step raises, and is not made. `"exit"`, `"kill"`: the step ends the env's process, with
            an exit code of 3, or by SIGKILL; in the process that planned it only the worker, by `SystemExit`.
            `"hang"`: the step never returns. `"raise_at_reset"`, `"raise_at_close"`, `"raise_at_build"`: this raises.
            `"build_nothing"`: the factory returns `None`. `"nan"`, `"nan_reward"`: a NaN in the floats of the
            observation, or for a reward. `"shape"`: an observation with one entry too many.
        episode: in which episode of the env, from 0; a reset that raised begins none.
        step: at which step, from 1.
        times: how often; a fault that is spent does not come back. `None`: once, but without end with `every`.
        every: instead of `episode` and `step`: with every so-manieth step of the env, whatever the episode.
    """

    kind: Kind
    episode: int = 0
    step: int = 1
    times: int | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind={self.kind!r} must be one of {', '.join(map(repr, get_args(Kind)))}")
        if self.every is None:
            return
        if self.every < 1 or (self.episode, self.step) != (0, 1):
            raise ValueError(f"{self}: every is 1 or more, and takes the place of episode and step")
        if self.kind not in get_args(_Step):
            raise ValueError(f"{self}: every is for what goes wrong in steps: {', '.join(get_args(_Step))}")


Faults: TypeAlias = Mapping[int, Sequence[Fault]]
"""Faults by env number."""


class Mishaps:
    """The faults that are still to come in one env.

    Args:
        faults: what will go wrong.
        home: the process that is not to be ended by them; by default this one.
    """

    def __init__(self, faults: Iterable[Fault], home: int | None = None) -> None:
        without_end = float("inf")
        self._left: list[list[Any]] = [
            [fault, (1 if fault.every is None else without_end) if fault.times is None else fault.times]
            for fault in faults
        ]
        self._home = os.getpid() if home is None else home
        self._steps = 0

    def due(self, kind: Kind, episode: int = 0, step: int = 1) -> bool:
        """Whether this goes wrong now; if so, it has then gone wrong once more."""
        for each in self._left:
            fault, left = each
            is_now = (fault.episode, fault.step) == (episode, step)
            if fault.every is not None:
                is_now = step > 0 and self._steps % fault.every == 0
            if left > 0 and fault.kind == kind and is_now:
                each[1] -= 1
                return True
        return False

    def begin_step(self, episode: int, step: int) -> bool:
        """An env begins a step; there may be no return from here.

        Returns:
            Whether the step is to raise.

        Raises:
            SystemExit: it ends the worker, in the process that planned it.
        """
        self._steps += 1
        ended = next((kind for kind in _ENDINGS if self.due(kind, episode, step)), None)
        if ended is not None:
            if os.getpid() == self._home:
                raise SystemExit(EXIT_CODE)
            os._exit(EXIT_CODE) if ended == "exit" else os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
        if self.due("hang", episode, step):
            threading.Event().wait()
        return self.due("raise", episode, step)


class Mark(NamedTuple):
    """Which observation this is: of which env, in which episode (from 0), after how many steps."""

    env: int
    episode: int
    step: int


Begun: TypeAlias = tuple[Any, dict[str, Any]]
Stepped: TypeAlias = tuple[Any, Any, bool, bool, dict[str, Any]]


class GoesWrong(gym.Env[Any, Any]):
    """Faults before and after what the next class in line does.

    Attributes:
        mark: what it has last observed.
    """

    def __init__(self, number: int, faults: Iterable[Fault] | Mishaps) -> None:
        self.mark = Mark(number, -1, 0)
        self._mishaps = faults if isinstance(faults, Mishaps) else Mishaps(faults)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Begun:
        """Begin the next episode."""
        mark = Mark(self.mark.env, self.mark.episode + 1, 0)
        if self._mishaps.due("raise_at_reset", mark.episode):
            raise EnvBroke(f"env {mark.env} raised at the reset of episode {mark.episode}")
        observation, info = super().reset(seed=seed, options=options)
        self.mark = mark
        return self._observed(observation), info

    def step(self, action: Any) -> Stepped:
        """Make one step."""
        mark = self.mark._replace(step=self.mark.step + 1)
        if self._mishaps.begin_step(mark.episode, mark.step):
            raise EnvBroke(f"env {mark.env} raised at step {mark.step} of episode {mark.episode}")
        observation, reward, terminated, truncated, info = super().step(action)
        self.mark = mark
        if self._mishaps.due("nan_reward", mark.episode, mark.step):
            reward = float("nan")
        return self._observed(observation), reward, terminated, truncated, info

    def close(self) -> None:
        """Close the env."""
        super().close()
        if self._mishaps.due("raise_at_close"):
            raise EnvBroke(f"env {self.mark.env} raised when it was closed")

    def _observed(self, observation: Any) -> Any:
        if self._mishaps.due("nan", self.mark.episode, self.mark.step):
            observation = mapped(
                lambda leaf: np.full_like(leaf, np.nan) if leaf.dtype.kind == "f" else leaf, observation
            )
        if self._mishaps.due("shape", self.mark.episode, self.mark.step):
            observation = mapped(lambda leaf: np.append(leaf, leaf.flat[:1]), observation)
        return observation


class FaultyEnv(GoesWrong, gym.Wrapper[Any, Any, Any, Any]):
    """Does what the env does, and goes wrong where the faults say.

    Args:
        env: any env.
        faults: what goes wrong, or what of that is still to come; `"raise_at_build"` and `"build_nothing"` are for
            factories and do nothing here.
        number: which env it is, for messages.
    """

    def __init__(self, env: gym.Env[Any, Any], faults: Iterable[Fault] | Mishaps, number: int = 0) -> None:
        gym.Wrapper.__init__(self, env)
        GoesWrong.__init__(self, number, faults)


def mapped(change: Callable[..., Any], observation: Any, *others: Any) -> Any:
    """The observation with each leaf changed, given the same leaves of others."""
    if isinstance(observation, dict):
        return {name: mapped(change, part, *(other[name] for other in others)) for name, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(mapped(change, *parts) for parts in zip(observation, *others, strict=True))
    return change(np.asarray(observation), *others)
