"""Faults of envs, as data: `{1: [Fault("raise", episode=0, step=3)]}`."""

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
"""Exit code of a process that ends by the fault `"exit"`."""


class EnvBroke(RuntimeError):  # noqa: N818  a state, as `Closed`
    """The exception of a faulty env."""


@dataclass(frozen=True)
class Fault:
    """A failure of an env that happens a number of times.

    Attributes:
        kind: `"raise"`: the step raises, and is not made. `"exit"`, `"kill"`: the step ends the env's process, with
            an exit code of 3, or by SIGKILL; in the process that planned it only the worker, by `SystemExit`.
            `"hang"`: the step never returns. `"raise_at_reset"`, `"raise_at_close"`, `"raise_at_build"`: the call
            raises. `"build_nothing"`: the factory returns `None`. `"nan"`, `"nan_reward"`: a NaN in the floats of the
            observation, or for a reward. `"shape"`: an observation with one entry too many.
        episode: episode number of the env, from 0; a reset that raises begins none.
        step: step number in the episode, from 1.
        times: number of times; `None` for once, or without limit with `every`.
        every: instead of `episode` and `step`: fail in every n-th step of the env, in any episode.
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
    """The identity of an observation: env, episode (from 0), number of steps."""

    env: int
    episode: int
    step: int


class FaultInjector:
    """Injects the faults of one env, which calls the methods in its own methods.

    Args:
        faults: faults of the env.
        home: id of the process that faults must not end; by default this one.
    """

    def __init__(self, faults: Iterable[Fault], home: int | None = None) -> None:
        self._remaining = {fault: fault.times for fault in faults}
        self._home = os.getpid() if home is None else home
        self._steps = 0

    def _is_due(self, kind: Kind, episode: int = 0, step: int = 1) -> bool:
        """Return whether a fault of this kind happens now, and count it."""
        for fault, times in self._remaining.items():
            is_due = self._steps % fault.every == 0 if fault.every else (fault.episode, fault.step) == (episode, step)
            if fault.kind == kind and is_due and times != 0:
                self._remaining[fault] = (None if fault.every else 0) if times is None else times - 1
                return True
        return False

    def before_build(self, env: int) -> bool:
        """Return whether the factory shall build an env, or else return `None`.

        Raises:
            EnvBroke: the factory shall raise.
        """
        if self._is_due("raise_at_build"):
            raise EnvBroke(f"env {env} could not be built")
        return not self._is_due("build_nothing")

    def before_reset(self, mark: Mark) -> None:
        """Raise `EnvBroke` if the reset to this mark shall raise."""
        if self._is_due("raise_at_reset", mark.episode):
            raise EnvBroke(f"env {mark.env} raised at the reset of episode {mark.episode}")

    def before_step(self, mark: Mark) -> None:
        """Raise, hang, or end the process, if the step to this mark shall do so.

        Raises:
            EnvBroke: the step shall raise.
            SystemExit: the step shall end the worker, in the process that planned it.
        """
        position = mark.episode, mark.step
        self._steps += 1
        exits, killed = self._is_due("exit", *position), self._is_due("kill", *position)
        if (exits or killed) and os.getpid() == self._home:
            raise SystemExit(EXIT_CODE)
        if exits:
            os._exit(EXIT_CODE)
        if killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if killed or self._is_due("hang", *position):
            threading.Event().wait()
        if self._is_due("raise", *position):
            raise EnvBroke(f"env {mark.env} raised at step {mark.step} of episode {mark.episode}")

    def after_step(self, mark: Mark, observation: Any, reward: Any) -> tuple[Any, Any]:
        """Return observation and reward of the step to this mark, with their faults."""
        position = mark.episode, mark.step
        if self._is_due("nan", *position):
            observation = _map_leaves(observation, lambda leaf: leaf * np.nan if leaf.dtype.kind == "f" else leaf)
        if self._is_due("shape", *position):
            observation = _map_leaves(observation, lambda leaf: np.append(leaf, leaf.flat[:1]))
        return observation, float("nan") if self._is_due("nan_reward", *position) else reward

    def after_close(self, env: int) -> None:
        """Raise `EnvBroke` if closing the env shall raise."""
        if self._is_due("raise_at_close"):
            raise EnvBroke(f"env {env} raised when it was closed")


class FaultyEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An env with faults.

    Args:
        env: any env.
        faults: faults, or an injector that counts them; `"raise_at_build"` and `"build_nothing"` are for factories and
            have no effect here.
        number: number of the env, for messages.

    Attributes:
        mark: identity of its last observation.
    """

    def __init__(self, env: gym.Env[Any, Any], faults: Iterable[Fault] | FaultInjector, number: int = 0) -> None:
        super().__init__(env)
        self._injector = faults if isinstance(faults, FaultInjector) else FaultInjector(faults)
        self.mark = Mark(number, -1, 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode."""
        mark = Mark(self.mark.env, self.mark.episode + 1, 0)
        self._injector.before_reset(mark)
        first = super().reset(seed=seed, options=options)
        self.mark = mark
        return first

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Make one step."""
        mark = self.mark._replace(step=self.mark.step + 1)
        self._injector.before_step(mark)
        observation, reward, *rest = super().step(action)
        self.mark = mark
        return *self._injector.after_step(mark, observation, reward), *rest

    def close(self) -> None:
        """Close the env."""
        super().close()
        self._injector.after_close(self.mark.env)


def _map_leaves(observation: Any, change: Callable[[Any], Any]) -> Any:
    """Return the observation with a function applied to each leaf."""
    if isinstance(observation, dict):
        return {name: _map_leaves(part, change) for name, part in observation.items()}
    if isinstance(observation, tuple):
        return tuple(_map_leaves(part, change) for part in observation)
    return change(np.asarray(observation))
