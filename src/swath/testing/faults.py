"""What goes wrong in an env, as data: `{1: [Fault("raise", episode=0, step=3)]}`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

Kind = Literal[
    "raise", "raise_at_reset", "raise_at_close", "raise_at_build", "build_nothing", "nan", "nan_reward", "shape"
]


class EnvBroke(RuntimeError):  # noqa: N818  says what happened
    """What a faulty env raises."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, so many times.

    Attributes:
        kind: `"raise"`: the step raises, and is not made. `"raise_at_reset"`, `"raise_at_close"`, `"raise_at_build"`:
            this raises. `"build_nothing"`: the factory returns `None`. `"nan"`, `"nan_reward"`: a NaN in the floats of
            the observation, or for a reward. `"shape"`: an observation with one entry too many.
        episode: in which episode of the env, from 0; a reset that raised begins none.
        step: at which step, from 1.
        times: how often; a fault that is spent does not come back.
    """

    kind: Kind
    episode: int = 0
    step: int = 1
    times: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind={self.kind!r} must be one of {', '.join(map(repr, get_args(Kind)))}")


Faults: TypeAlias = Mapping[int, Sequence[Fault]]
"""Faults by env number."""


class Mishaps:
    """The faults that are still to come in one env.

    Args:
        faults: what will go wrong.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._left = [fault for fault in faults for _ in range(fault.times)]

    def due(self, kind: Kind, episode: int = 0, step: int = 1) -> bool:
        """Whether this goes wrong now; if so, it has then gone wrong once more."""
        for fault in self._left:
            if (fault.kind, fault.episode, fault.step) == (kind, episode, step):
                self._left.remove(fault)
                return True
        return False


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
