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
            raise ValueError(f"kind={self.kind!r} must be one of {', '.join(get_args(Kind))}")


Faults: TypeAlias = Mapping[int, Sequence[Fault]]
"""Faults by env number."""


class Mark(NamedTuple):
    """Which observation this is: of which env, in which episode (from 0), after how many steps."""

    env: int
    episode: int
    step: int


class Mishaps:
    """The faults that are still to come in one env, and where they happen: an env calls this at each of its moments.

    Args:
        faults: what will go wrong.
        home: the process that is not to be ended by them; by default this one.
    """

    def __init__(self, faults: Iterable[Fault], home: int | None = None) -> None:
        self._left = {fault: fault.times for fault in faults}
        self._home = os.getpid() if home is None else home
        self._steps = 0

    def _due(self, kind: Kind, episode: int = 0, step: int = 1) -> bool:
        """Whether this goes wrong now; if so, it has then gone wrong once more."""
        for fault, left in self._left.items():
            now = self._steps % fault.every == 0 if fault.every else (fault.episode, fault.step) == (episode, step)
            if fault.kind == kind and now and left != 0:
                self._left[fault] = (None if fault.every else 0) if left is None else left - 1
                return True
        return False

    def building(self, env: int) -> bool:
        """Whether an env is to be built, not `None`.

        Raises:
            EnvBroke: it is to fail.
        """
        if self._due("raise_at_build"):
            raise EnvBroke(f"env {env} could not be built")
        return not self._due("build_nothing")

    def resetting(self, mark: Mark) -> None:
        """An env begins the episode of this mark."""
        if self._due("raise_at_reset", mark.episode):
            raise EnvBroke(f"env {mark.env} raised at the reset of episode {mark.episode}")

    def stepping(self, mark: Mark) -> None:
        """An env makes the step to this mark; there may be no return from here.

        Raises:
            EnvBroke: the step is to raise.
            SystemExit: it ends the worker, in the process that planned it.
        """
        at = mark.episode, mark.step
        self._steps += 1
        exits, killed = self._due("exit", *at), self._due("kill", *at)
        if (exits or killed) and os.getpid() == self._home:
            raise SystemExit(EXIT_CODE)
        if exits:
            os._exit(EXIT_CODE)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if killed or self._due("hang", *at):
            threading.Event().wait()
        if self._due("raise", *at):
            raise EnvBroke(f"env {mark.env} raised at step {mark.step} of episode {mark.episode}")

    def stepped(self, mark: Mark, observation: Any, reward: Any) -> tuple[Any, Any]:
        """Observation and reward of this step, as they are to be."""
        at = mark.episode, mark.step
        if self._due("nan", *at):
            observation = _changed(observation, lambda leaf: leaf * np.nan if leaf.dtype.kind == "f" else leaf)
        if self._due("shape", *at):
            observation = _changed(observation, lambda leaf: np.append(leaf, leaf.flat[:1]))
        return observation, float("nan") if self._due("nan_reward", *at) else reward

    def closed(self, env: int) -> None:
        """An env has been closed."""
        if self._due("raise_at_close"):
            raise EnvBroke(f"env {env} raised when it was closed")


class FaultyEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Does what the env does, and goes wrong where the faults say.

    Args:
        env: any env.
        faults: what goes wrong, or what of that is still to come; `"raise_at_build"` and `"build_nothing"` are for
            factories and do nothing here.
        number: which env it is, for messages.

    Attributes:
        mark: what it has last observed.
    """

    def __init__(self, env: gym.Env[Any, Any], faults: Iterable[Fault] | Mishaps, number: int = 0) -> None:
        super().__init__(env)
        self.mark, self._mishaps = Mark(number, -1, 0), faults if isinstance(faults, Mishaps) else Mishaps(faults)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        mark = Mark(self.mark.env, self.mark.episode + 1, 0)
        self._mishaps.resetting(mark)
        begun = super().reset(seed=seed, options=options)
        self.mark = mark
        return begun

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make one step."""
        mark = self.mark._replace(step=self.mark.step + 1)
        self._mishaps.stepping(mark)
        observation, reward, *rest = super().step(action)
        self.mark = mark
        return *self._mishaps.stepped(mark, observation, reward), *rest

    def close(self) -> None:
        """Close the env."""
        super().close()
        self._mishaps.closed(self.mark.env)


def _changed(observation: Any, change: Callable[[Any], Any]) -> Any:
    """The observation with each leaf changed."""
    if isinstance(observation, dict):
        return {name: _changed(part, change) for name, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_changed(part, change) for part in observation)
    return change(np.asarray(observation))
