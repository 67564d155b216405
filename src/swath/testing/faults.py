"""What goes wrong in an env, as data: `{1: [Fault("raise", episode=0, step=3)]}`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

Kind = Literal[
    "raise",
    "exit",
    "kill",
    "hang",
    "raise_at_reset",
    "raise_at_close",
    "raise_at_build",
    "build_nothing",
    "nan",
    "nan_reward",
    "shape",
]
_OF_STEPS = ("raise", "exit", "kill", "hang", "nan", "nan_reward", "shape")

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
        if self.kind not in _OF_STEPS:
            raise ValueError(f"{self}: every is for what goes wrong in steps: {', '.join(_OF_STEPS)}")

    @property
    def most(self) -> float:
        """How often it happens at most."""
        if self.times is None:
            return 1 if self.every is None else float("inf")
        return self.times


Faults: TypeAlias = Mapping[int, Sequence[Fault]]
"""Faults by env number."""


class Mishaps:
    """The faults that are still to come in one env.

    Args:
        faults: what will go wrong.
        home: the process that is not to be ended by them; by default this one.
    """

    def __init__(self, faults: Iterable[Fault], home: int | None = None) -> None:
        self._left = {index: fault for index, fault in enumerate(faults) if fault.most > 0}
        self._happened = dict.fromkeys(self._left, 0)
        self._home = os.getpid() if home is None else home
        self._steps = 0

    def due(self, kind: Kind, episode: int = 0, step: int = 1) -> bool:
        """Whether this goes wrong now; if so, it has then gone wrong once more."""
        for index, fault in self._left.items():
            if fault.kind == kind and self._is_at(fault, episode, step):
                self._happened[index] += 1
                if self._happened[index] >= fault.most:
                    del self._left[index]
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
        if not self._left:
            return False
        if self.due("exit", episode, step):
            self._end(lambda: os._exit(EXIT_CODE))
        if self.due("kill", episode, step):
            self._end(lambda: os.kill(os.getpid(), signal.SIGKILL))
        if self.due("hang", episode, step):
            _for_ever()
        return self.due("raise", episode, step)

    def _is_at(self, fault: Fault, episode: int, step: int) -> bool:
        if fault.every is not None:
            return step > 0 and self._steps % fault.every == 0
        return (fault.episode, fault.step) == (episode, step)

    def _end(self, process: Callable[[], None]) -> None:
        if os.getpid() == self._home:
            raise SystemExit(EXIT_CODE)
        process()
        _for_ever()


def _for_ever() -> None:
    threading.Event().wait()


def with_nan(observation: Any) -> Any:
    """The observation with NaN for every float."""
    return _mapped(observation, lambda leaf: np.full_like(leaf, np.nan) if leaf.dtype.kind == "f" else leaf)


def with_more(observation: Any) -> Any:
    """The observation with one entry too many in every leaf."""
    return _mapped(observation, lambda leaf: np.append(leaf, leaf.flat[:1]))


def _mapped(observation: Any, change: Any) -> Any:
    if isinstance(observation, dict):
        return {name: _mapped(part, change) for name, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_mapped(part, change) for part in observation)
    return change(np.asarray(observation))
