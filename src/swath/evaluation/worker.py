"""What lives in a worker of an evaluation: plays the episodes it is asked for, a slice of time at a go.

    play(evaluation, episodes, request) ─▶ Performance ─▶ Report, not over yet: the same is asked again
                                                      └─▶ Parcel(Report, Footage)

Between two slices the worker gets what is new: another evaluation, which takes the place of the present one, or the
end. So whoever cancels or closes need not reach into a running evaluation. Where slices begin and end changes no
number. An exception of user code is the answer to the call; the next one is played in envs that were built anew.

Several drivers may ask one worker. The evaluation that began last is played; others that go on asking get `Superseded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, NamedTuple

from tensordict import TensorDict

from swath.errors import Closed, Superseded
from swath.evaluation.env_parts import dump_recorders, empty_recorders, recorders
from swath.evaluation.recording import Film, Recording
from swath.evaluation.request import EvalRequest
from swath.evaluation.result import EpisodeRow
from swath.evaluation.runner import Runner
from swath.evaluation.setting import Setting
from swath.group.member import Member
from swath.rollout.hosts.base import Seeding, first_of, fps_of
from swath.rollout.seeding import PrivateStreams
from swath.rollout.spaces import Array
from swath.seeds import derive, fresh_root
from swath.weights.manifest import Manifest
from swath.workers.packing import Parcel
from swath.workers.tickets import Name

SLICE_S = 0.05
"""How long a worker plays before it looks for news."""


class EvaluationId(NamedTuple):
    """Names one evaluation.

    Attributes:
        asker: who asks for it.
        number: counts what was asked for there, from 1 on.
    """

    asker: str
    number: int


@dataclass(frozen=True)
class Report:
    """How far a worker is with a round.

    Attributes:
        over: whether it has played its part; then `rows` holds its episodes.
        complete: how many episodes of the evaluation it has played.
        seconds: spent on the round so far.
        seeding: how far seeds reach.
        rows: complete episodes of the round, by number.
        records: whether transforms of the envs have recorded something that is to be written.
        version: how many sets of weights were sent here.
    """

    over: bool
    complete: int
    seconds: float
    seeding: Seeding
    rows: Mapping[int, EpisodeRow]
    records: bool
    version: int


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


class Performance:
    """Plays rounds of one evaluation with one host and one policy; used by one thread.

    Args:
        setting: these two.
        request: the conditions.
        worker: which of the workers that share the episodes plays here.
        workers: how many there are.

    Attributes:
        runner: plays the episodes, and has those that are complete.
        episodes: the round that is played.
        over: whether that is complete.
        seconds: spent on it.
    """

    def __init__(self, setting: Setting, request: EvalRequest, worker: int = 0, workers: int = 1) -> None:
        self._until_any_done = request.until_any_done
        self._film = Film(request.film, request.film_bytes) if request.film else None
        self._recording = Recording(request.policy_version) if request.record else None
        watchers = [watcher for watcher in (self._film, self._recording) if watcher is not None]
        self.runner = Runner(setting, request, worker, workers, watchers)
        self._drawing: Callable[[], AbstractContextManager[None]] = nullcontext
        if setting.draws_apart:
            root = fresh_root() if request.seed is None else request.seed
            self._drawing = PrivateStreams(derive(root, "global", worker), setting.device).in_force
        self._steps: Iterator[None] = iter(())
        self.episodes, self.over, self.seconds = range(0), True, 0.0

    def begin(self, episodes: range) -> None:
        """Play this round next."""
        self.episodes, self.over, self.seconds = episodes, False, 0.0
        self._steps = self.runner.play(episodes)

    def play(self, enough: Callable[[], bool]) -> None:
        """Play on until it is enough, which is asked after each step, or the round is over.

        Where the request ends a round with the first env that is done, the others' episodes are cut there.

        Raises:
            Exception: what an env, the policy, a watcher or `enough` raised.
        """
        began = monotonic()
        try:
            with self._drawing():
                for _ in self._steps:
                    if self._until_any_done and self.runner.rows:
                        self.runner.cut()
                        break
                    if enough() and self.runner.unfinished:
                        return
            self.over = True
        finally:
            self.seconds += monotonic() - began

    @property
    def rows(self) -> dict[int, EpisodeRow]:
        """The complete episodes of the round, by number."""
        return {episode: row for episode, row in self.runner.rows.items() if episode in self.episodes}

    def footage(self) -> Footage | None:
        """What is large, if anything is asked for."""
        if self._film is None and self._recording is None:
            return None
        footage = Footage(steps=None if self._recording is None else self._recording.taken())
        if self._film is None:
            return footage
        film, rate = self._film, fps_of(self.runner.host.env)
        return replace(footage, films=film.takes(), film_truncated=film.truncated, fps=rate)


class EvalWorker(Member):
    """One worker of an evaluation; used by one thread at a time.

    Args:
        setting: what it plays in, and with.
        name: which life of which worker.
        workers: how many there are.
        place: the backend, in words.
        turn: held while the envs are used, where other lives use the same.
        conditions: of all rollouts, whoever asks for them.
    """

    def __init__(
        self,
        setting: Setting,
        name: Name,
        workers: int = 1,
        place: str = "inline",
        turn: AbstractContextManager[Any] | None = None,
        conditions: EvalRequest | None = None,
    ) -> None:
        self._setting, self._name, self._workers, self._place = setting, name, workers, place
        self._conditions = conditions or EvalRequest()
        self._turn = nullcontext() if turn is None else turn
        self._evaluation = EvaluationId("", 0)
        self._newest: dict[str, int] = {}  # by asker
        self._performance: Performance | None = None
        self._failed = self._closed = self._awaited = False
        self._version = 0

    def present(self) -> bool:
        """Answer, so that one is known to be there."""
        return True

    def manifests(self, model_ids: Sequence[str]) -> dict[str, Manifest]:
        """What weights these models want; `KeyError` if there is no such model."""
        return {model_id: self._setting.manifest(model_id) for model_id in model_ids}

    def check(self, extras: Mapping[str, Mapping[str, Any]]) -> bool:
        """Raise `KeyError` or `ValueError` unless extra state fits these models."""
        for model_id, each in extras.items():
            self._setting.check(model_id, each)
        return True

    def rollout(self, request: EvalRequest) -> EvalRequest:
        """A request for one episode of each slot, filmed if the env renders, under the conditions given here."""
        mine, env = self._conditions, self._setting.host.env
        return replace(
            request,
            num_trajectories=self._setting.host.spec.num_envs,
            seed=fresh_root() if mine.seed is None else mine.seed,
            done_keys=mine.done_keys,
            film=int(renders(env)),
            film_bytes=mine.film_bytes,
        )

    def take(self, models: Mapping[str, Any], version: int) -> None:
        """Put newer weights in: into all models and copies, or into none."""
        self._performance = None
        self._setting.apply(models)
        self._version = max(self._version + 1, version)  # others may have sent some

    def begin(self, evaluation: EvaluationId) -> None:
        """Play this from now on; nothing if it has begun, or a later one of the same asker has."""
        if evaluation.number > self._newest.get(evaluation.asker, 0):
            self._newest[evaluation.asker] = evaluation.number
            self._evaluation, self._performance = evaluation, None

    def play(self, evaluation: EvaluationId, episodes: range, request: EvalRequest) -> Report | Parcel:
        """Play a round for a slice of time, or to its end; whatever else was being played is given up.

        Args:
            evaluation: which; its rounds are played under the same conditions.
            episodes: the round, of which each slot plays its quota.
            request: the conditions.

        Raises:
            Superseded: another evaluation has begun since.
            Closed: it is shut down.
            Exception: what building or stepping an env, or the policy raised.
        """
        if self._closed:
            self._awaited = False
            raise Closed("this RayEvalWorker was shut down by another handle; make another one")
        self.begin(evaluation)
        if evaluation != self._evaluation:
            raise Superseded("the rollout was given up for a later submit of another handle; submit it again")
        try:
            with noted(self._name, self._place), self._turn:
                return self._slice(episodes, request)
        except Exception:
            self._failed, self._performance = True, None
            raise

    def _slice(self, episodes: range, request: EvalRequest) -> Report | Parcel:
        if self._failed:
            self._setting.renew()
            self._failed = False
        env, now = self._setting.host.env, self._performance
        if now is None or (now.over and now.episodes == episodes):
            empty_recorders(env)
            now = self._performance = Performance(self._setting, request, self._name.worker, self._workers)
        if now.episodes != episodes:
            now.begin(episodes)
        until, steps = monotonic() + SLICE_S, now.runner.steps + request.report_every
        now.play(lambda: now.runner.steps >= steps or monotonic() > until)
        runner, over = now.runner, now.over
        report = Report(
            over,
            len(runner.rows),
            now.seconds,
            runner.seeding,
            now.rows if over else {},
            over and bool(recorders(env)),
            self._version,
        )
        footage = now.footage() if over else None
        return report if footage is None else Parcel(report, footage)

    def dump(self, step: int, write: bool) -> list[str]:
        """Have the recorders of this worker's envs let go of what they have seen; what went wrong, in words.

        Args:
            step: the training step it is written under.
            write: whether those of the very first slot write it.
        """
        env = self._setting.host.env
        with self._turn:
            failures = dump_recorders(first_of(env), step) if write and self._name.worker == 0 else []
            empty_recorders(env)
        return failures

    def weights(self, model_id: str) -> Any:
        """The state of a model as it is here."""
        return self._setting.state(model_id)

    def end(self, asker: str) -> bool:
        """Close for all drivers; whether one that is not this `asker` has yet to learn of it, by asking for more."""
        if not self._closed:
            now = self._performance
            self._awaited = now is not None and not now.over and self._evaluation.asker != asker
            self.close()
        return self._awaited

    def close(self) -> None:
        """Close the envs."""
        self._closed, self._performance = True, None
        with self._turn:
            self._setting.close()


def renders(env: Any) -> bool:
    """Whether the env renders frames, as arrays."""
    mode = getattr(first_of(env), "render_mode", None)
    modes = mode() if callable(mode) else mode  # TorchRL's batches ask each of their envs
    return "rgb_array" in modes if isinstance(modes, list | tuple) else modes == "rgb_array"


@contextmanager
def noted(name: Name, place: str) -> Iterator[None]:
    """What is raised within gets a note of where that was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in worker {name.worker} (life {name.life}) of an evaluation, backend {place!r}")
        raise
