"""What a service and the players in its workers say to each other.

Part (episodes, conditions, wishes) ──▶ Player ──▶ Report … Report ──▶ Parcel(Report, Footage)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tensordict import TensorDict

from swath.evaluate.request import EvalRequest
from swath.evaluate.result import EpisodeRow
from swath.rollout.hosts.base import Seeding
from swath.rollout.spaces import Array


@dataclass(frozen=True)
class Wishes:
    """What is wanted of an evaluation beside its numbers.

    Attributes:
        film: how many of the first episodes to film.
        film_bytes: frames held at most, by each worker.
        report_every: env steps between two reports, at most.
        steps: whether all steps are kept.
        dump: whether recorders among the env's transforms write what they have seen.
    """

    film: int = 0
    film_bytes: int = 2**30
    report_every: int = 1000
    steps: bool = False
    dump: bool = True


@dataclass(frozen=True)
class Part:
    """A worker's part of one round of an evaluation.

    Attributes:
        evaluation: its number; parts of one evaluation are played under the same conditions.
        episodes: the round, of which each slot plays its quota.
        request: the conditions.
        wishes: what is wanted beside.
    """

    evaluation: int
    episodes: range
    request: EvalRequest
    wishes: Wishes = field(default_factory=Wishes)


@dataclass(frozen=True)
class Report:
    """How far a worker is with its part.

    Attributes:
        over: whether the part is played; then `rows` holds its episodes.
        complete: how many episodes of the evaluation it has played.
        unfinished: steps made in those that are being played, by slot.
        seconds: spent on the part so far.
        seeding: how far seeds reach.
        rows: complete episodes by number.
        records: whether transforms of the envs have recorded something that is to be written.
    """

    over: bool
    complete: int
    unfinished: Mapping[int, int]
    seconds: float
    seeding: Seeding
    rows: Mapping[int, EpisodeRow] = field(default_factory=dict)
    records: bool = False


@dataclass(frozen=True)
class Footage:
    """What is large of a worker's part.

    Attributes:
        films: uint8 `[T, H, W, 3]` by episode.
        film_truncated: whether filming stopped for want of memory.
        fps: frames per second at which the env wants to be seen, if it says so.
        steps: all steps of the part's episodes, one episode behind the other; `None` if nobody wants them.
    """

    films: Mapping[int, Array] = field(default_factory=dict)
    film_truncated: bool = False
    fps: float | None = None
    steps: TensorDict | None = None

    def kept(self) -> Footage:
        """The same in memory of its own."""
        films = {episode: film.copy() for episode, film in self.films.items()}
        return replace(self, films=films, steps=None if self.steps is None else self.steps.clone())
