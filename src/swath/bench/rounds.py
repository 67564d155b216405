"""Settings take turns, so that what else the machine does falls on all of them.

round 1:  A  B  C      round 2:  B  C  A      round 3:  C  A  B      each: build, warm up, draw for a while, close
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from swath.bench.scores import Score
from swath.bench.setting import INLINE, Setting
from swath.collect.rate import frames_per_second
from swath.collectors import Collector
from swath.options import count, seconds
from swath.workers.base import Backend
from swath.workers.create import backend


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        env: an env source, as `Collector` takes it.
        policy: what acts; `None` for random actions.
        policy_factory: builds what acts, instead.
        frames: of a batch, about.
        device: where the policy acts.
        seed: of envs and actions.
    """

    env: Any
    policy: Any = None
    policy_factory: Callable[..., Any] | None = None
    frames: int = 2048
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        count("frames", self.frames)

    def collector(self, setting: Setting) -> Collector:
        """A collector without an end."""
        return Collector(
            self.env,
            self.policy,
            policy_factory=self.policy_factory,
            frames_per_batch=setting.batch_of(self.frames),
            seed=self.seed,
            policy_device=self.device,
            storing_device="cpu",
            **setting.keywords(),
        )


@dataclass(frozen=True)
class Rounds:
    """How long is measured.

    Attributes:
        count: how often each setting has its turn.
        seconds: of a turn.
    """

    count: int = 3
    seconds: float = 1.0

    def __post_init__(self) -> None:
        count("rounds", self.count)
        seconds("seconds", self.seconds)


Say = Callable[[int, Setting], None]
"""Called before each turn with its number, from 0, and the setting."""

Hear = Callable[[Setting, Exception], None]
"""Called with a setting that has failed, and what it raised."""


class Measurement:
    """A measurement that can be asked at any time what is known, also after it was interrupted.

    Args:
        subject: what is measured.
        settings: in which ways.
        hear: called with each that fails.
    """

    def __init__(
        self,
        subject: Subject,
        settings: Sequence[Setting],
        hear: Hear = lambda setting, error: None,  # noqa: ARG005  a signature
    ) -> None:
        self._subject = subject
        self._hear = hear
        self._rates: dict[Setting, list[float]] = {setting: [] for setting in settings}
        self._failures: dict[Setting, str] = {}

    def run(self, rounds: Rounds, say: Say) -> None:
        """Let the settings have their turns; those that fail have no further one."""
        settings = list(self._rates)
        with _warm(settings):
            for turn, setting in enumerate(_turns(settings, rounds.count)):
                if setting not in self._failures:
                    say(turn, setting)
                    self._take_turn(setting, rounds.seconds)

    @property
    def scores(self) -> list[Score]:
        """One of each setting, in their order."""
        return [
            Score(setting, () if setting in self._failures else tuple(rates), self._failures.get(setting, ""))
            for setting, rates in self._rates.items()
        ]

    def _take_turn(self, setting: Setting, length: float) -> None:
        try:
            self._rates[setting].append(_rate(self._subject, setting, length))
        except Exception as error:  # noqa: BLE001  what fails is told in its row, the others go on
            self._failures[setting] = in_one_line(error)
            self._hear(setting, error)


def measure(
    subject: Subject,
    settings: Sequence[Setting],
    rounds: Rounds,
    say: Say = lambda turn, setting: None,  # noqa: ARG005  a signature
) -> list[Score]:
    """Measure all settings, one score each, in their order.

    Args:
        subject: what is measured.
        settings: in which ways.
        rounds: how long.
        say: called before each turn.
    """
    measurement = Measurement(subject, settings)
    measurement.run(rounds, say)
    return measurement.scores


def in_one_line(error: Exception) -> str:
    """What was raised, for the row of a table."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _turns(settings: Sequence[Setting], rounds: int) -> Iterator[Setting]:
    """Every setting once a round, each round from another one on."""
    for turn in range(rounds):
        first = turn * len(settings) // rounds
        yield from (*settings[first:], *settings[:first])


def _rate(subject: Subject, setting: Setting, length: float) -> float:
    """Frames per second of a collector that is built for it."""
    collector = subject.collector(setting)
    try:
        return frames_per_second(iter(collector), length)
    finally:
        collector.shutdown()


@contextmanager
def _warm(settings: Sequence[Setting]) -> Iterator[None]:
    """Keep what new processes are forked from, so that every turn begins at once."""
    names = {setting.backend for setting in settings} - {INLINE}
    kept: Backend | None = backend("process") if "process" in names else None
    try:
        yield
    finally:
        if kept is not None:
            kept.close()
