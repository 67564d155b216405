"""What users ask for, as frozen values that check themselves where they are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf, nan
from numbers import Real
from threading import TIMEOUT_MAX
from typing import Any, Literal, get_args

from swath.errors import warn

OnEnvError = Literal["raise", "reset", "restart"]
TrajFormat = Literal["padded", "cat"]


def count(name: str, value: object, *, least: int | None = 1) -> int:
    """The value as an int of at least `least`; `None` for any int.

    Raises:
        ValueError: it is not an integer, or too small.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        wanted = "an integer" if least is None else f"an integer of at least {least}"
        raise ValueError(f"{name}={value!r} is of type {type(value).__name__}; it must be {wanted}")
    number = int(value.__index__())
    if least is not None and number < least:
        raise ValueError(f"{name}={number} must be at least {least}")
    return number


def optional_count(name: str, value: object) -> int | None:
    """`None`, 0 and negative numbers mean no limit.

    Raises:
        ValueError: it is not an integer.
    """
    if value is None:
        return None
    number = count(name, value, least=None)
    return number if number > 0 else None


def seconds(name: str, value: object) -> float:
    """A time to wait, as a number that every wait of the system takes.

    Raises:
        ValueError: it is no number, negative, or not finite: nothing waits for ever.
    """
    number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else nan
    if not 0 <= number < inf:
        raise ValueError(f"{name}={value!r} must be a finite number of seconds, 0 or more")
    return min(number, TIMEOUT_MAX)


def one_of(name: str, value: str, allowed: Any) -> None:
    """Raise `ValueError` unless the value is one of a `Literal`'s."""
    choices = get_args(allowed)
    if value not in choices:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, choices))}")


@dataclass(frozen=True)
class Budget:
    """How much to collect.

    Attributes:
        frames_per_batch: frames asked for per batch.
        total_frames: lower bound of the frames of a run; `None` for no end.
        init_random_frames: frames to collect with random actions first.
    """

    frames_per_batch: int
    total_frames: int | None = None
    init_random_frames: int = 0

    def __post_init__(self) -> None:
        count("frames_per_batch", self.frames_per_batch)

    @classmethod
    def asked(cls, frames_per_batch: object, total_frames: object, init_random_frames: object) -> Budget:
        """From the faces' arguments, where `None` and negative numbers mean no end."""
        total = None if total_frames is None else count("total_frames", total_frames, least=None)
        return cls(
            count("frames_per_batch", frames_per_batch),
            None if total is None or total < 0 else total,
            optional_count("init_random_frames", init_random_frames) or 0,
        )

    def warn_if_rounded(self, batch_frames: int) -> None:
        """Say so if batches have more frames than were asked for."""
        if batch_frames != self.frames_per_batch:
            warn(
                f"frames_per_batch={self.frames_per_batch} is not shared evenly by workers and their envs; "
                f"batches have {batch_frames} frames"
            )

    def random_batches(self, batch_frames: int) -> int:
        """How many of the first batches are random."""
        return -(-self.init_random_frames // batch_frames)


@dataclass(frozen=True)
class Entries:
    """What a batch holds beyond the plain entries.

    Attributes:
        track_ids: trajectory ids.
        track_version: the second pair of version entries.
        compact_obs: no observations under `"next"`.
    """

    track_ids: bool = True
    track_version: bool = False
    compact_obs: bool = False


@dataclass(frozen=True)
class Trajectories:
    """How batches are made of episodes.

    Attributes:
        split: one row per trajectory in each batch.
        per_batch: batches of this many complete episodes.
        per_write: episodes per write to a replay buffer; `None` for all that are complete.
        layout: `"padded"` (also `None`) or `"cat"`.
    """

    split: bool = False
    per_batch: int | None = None
    per_write: int | None = None
    layout: TrajFormat | None = None

    def __post_init__(self) -> None:
        if self.layout not in (None, *get_args(TrajFormat)):
            raise ValueError(f"traj_format={self.layout!r} must be 'padded' or 'cat'")
        for name, value in (("trajs_per_batch", self.per_batch), ("trajs_per_write", self.per_write)):
            if value is not None:
                count(name, value)
        for name, given in (("trajs_per_write", self.per_write), ("traj_format", self.layout)):
            if self.per_batch is None and given is not None:
                raise ValueError(f"{name}={given!r} needs trajs_per_batch; set it, or leave {name} out")
        if self.per_batch is not None and self.split:
            raise ValueError("split_trajs and trajs_per_batch are two ways to the same end; set one of them")

    def least(self, *, writing: bool) -> int:
        """How many complete episodes a batch, or a write to a replay buffer, waits for."""
        return (self.per_write if writing else self.per_batch) or 1


@dataclass(frozen=True)
class Restarts:
    """How often workers that died are replaced.

    Every death counts, whatever its cause: also that of a replacement which cannot be built, or is not ready in time.
    Waiting for room does not count.

    The first replacement of a worker is immediate, the n-th waits `min(backoff_max_s, backoff_s · 2ⁿ⁻²)` seconds.

    Attributes:
        max_per_worker: replacements of one worker.
        max_total: of all workers together; `None` for no limit of that kind.
        backoff_s: seconds before the second replacement.
        backoff_max_s: most seconds before any.
        forgive_after_s: a life of as many seconds clears the worker's count; `None` for never.
    """

    max_per_worker: int = 3
    max_total: int | None = None
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    forgive_after_s: float | None = 600.0

    def __post_init__(self) -> None:
        count("max_per_worker", self.max_per_worker, least=0)
        if self.max_total is not None:
            count("max_total", self.max_total, least=0)
        seconds("backoff_s", self.backoff_s)
        seconds("backoff_max_s", self.backoff_max_s)
        if self.forgive_after_s is not None:
            seconds("forgive_after_s", self.forgive_after_s)

    def delay(self, number: int) -> float:
        """Seconds before a worker's `number`-th replacement, from 1."""
        return 0.0 if number < 2 else min(self.backoff_max_s, self.backoff_s * 2.0 ** min(number - 2, 1000))


def deadline(name: str, value: object) -> float | None:
    """A deadline in seconds, more than 0; `None` for none.

    Raises:
        ValueError: it is no number, not positive, or not finite.
    """
    if value is None:
        return None
    number = seconds(name, value)
    if number == 0:
        raise ValueError(f"{name}={value!r} must be more than 0 seconds, or None for no deadline")
    return number


RESTARTS = Restarts()
"""How often workers are replaced unless somebody says otherwise."""


@dataclass(frozen=True)
class Survival:
    """What a fleet of workers does to go on.

    Attributes:
        restarts: how often workers are replaced.
        min_workers: with fewer that live or are coming back the run ends; `None` means all.
        fragment_timeout_s: a fragment that takes longer is a death; `None` for no deadline.
        placement_timeout_s: seconds for the first workers to be ready, and for a replacement once it has been placed;
            `None` for no deadline.
        start_timeout_s: seconds for a worker to be ready once it has been placed, which alone `placement_timeout_s` is
            for then; `None`: that is for both.
        waits_for_room: whether a replacement waits for a place without end, which counts against nobody and is logged
            once a minute; else one that is not placed after `placement_timeout_s` is a death.
        names: what users call these settings, where it is not as here.
    """

    restarts: Restarts = RESTARTS
    min_workers: int | None = None
    fragment_timeout_s: float | None = 600.0
    placement_timeout_s: float | None = 300.0
    start_timeout_s: float | None = None
    waits_for_room: bool = True
    names: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.restarts, Restarts):
            raise TypeError(
                f"restarts is of type {type(self.restarts).__name__}; give Restarts(…), which says how often"
            )
        if self.min_workers is not None:
            count("min_workers", self.min_workers)
        deadline("fragment_timeout_s", self.fragment_timeout_s)
        deadline("placement_timeout_s", self.placement_timeout_s)
        deadline("start_timeout_s", self.start_timeout_s)

    def said(self, setting: str) -> str:
        """A deadline as its user knows it, for messages: `name=value`."""
        value: float | None = getattr(self, setting)
        return f"{self.names.get(setting, setting)}={'None' if value is None else f'{value:g}'}"


@dataclass(frozen=True)
class Hooks:
    """Functions of the user that are called around a fragment.

    Attributes:
        postproc: turns a batch into the batch that is delivered.
        before: called before each fragment.
        after: called with what is delivered.
    """

    postproc: Callable[[Any], Any] | None = None
    before: Callable[[], Any] | None = None
    after: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        for name, hook in (
            ("postproc", self.postproc),
            ("pre_collect_hook", self.before),
            ("post_collect_hook", self.after),
        ):
            if hook is not None and not callable(hook):
                raise TypeError(f"{name} is of type {type(hook).__name__}; it must be callable or None")
