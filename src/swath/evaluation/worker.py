"""What lives in a worker of an evaluation: plays the episodes it is asked for, a slice of time at a go.

    play(evaluation, episodes, request) ─▶ Performance ─▶ Report; if it is not over the same is asked again

Between two slices the worker gets what is new: another evaluation, which takes the place of the present one, or the
end. So whoever cancels or closes need not reach into a running evaluation. Where slices begin and end changes no
number. An exception of user code is the answer to the call; the next one is played in envs that were built anew.

Several drivers may ask one worker. The evaluation that began last is played; others that go on asking get `Superseded`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any, TypeAlias

from tensordict import TensorDict

from swath.errors import Superseded, WorkerLate, noted
from swath.evaluation.env_parts import Wanted, dump_recorders, empty_recorders, recorders
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.recording import Film, Recording
from swath.evaluation.result import EpisodeRow
from swath.evaluation.runner import Runner
from swath.evaluation.setting import Setting
from swath.group.group import Member
from swath.rollout.hosts.base import Seeding, first_of, fps_of
from swath.rollout.seeding import PrivateStreams
from swath.rollout.spaces import Array
from swath.seeds import derive, fresh_root
from swath.workers.tickets import Name

_REPORT_EVERY = 1000
SLICE_S = 0.05  # how long a worker plays before it looks for news

EvaluationId: TypeAlias = tuple[str, int]  # who asks for an evaluation, and which of those asked for there, from 1 on


@dataclass(frozen=True)
class EvalRequest:
    """One evaluation, as it travels to those who play it.

    Attributes:
        step: the training step it belongs to.
        policy_version: version of the weights.
        seed: root of the seeds of its episodes and of its noise; `None` seeds nothing.
        record: whether all steps are kept.
        per_slot: one episode of each slot, filmed if the env renders, under the seed that the worker has.
        until_any_done: a round ends with the first episode that does; the others are cut there.
        changes: options that are other than those of the worker, by name.
    """

    step: int = 0
    policy_version: int = 0
    seed: int | None = 0
    record: bool = False
    per_slot: bool = False
    until_any_done: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """How far a worker is with a round.

    Attributes:
        complete: how many episodes of the evaluation it has played.
        over: whether it has played its part; what follows is there only then.
        seconds: spent on the round.
        seeding: how far seeds reach.
        version: how many sets of weights were sent here.
        rows: complete episodes of the round, by number.
        records: whether transforms of the envs have recorded something that is to be written.
        films: uint8 `[T, H, W, 3]` by episode.
        film_truncated: whether filming stopped for want of memory.
        fps: frames per second at which the env wants to be seen, if it says so.
        steps: all steps of the part's episodes, one episode behind the other; `None` if nobody wants them.
    """

    complete: int
    over: bool = False
    seconds: float = 0.0
    seeding: Seeding = "none"
    version: int = 0
    rows: Mapping[int, EpisodeRow] = field(default_factory=dict)
    records: bool = False
    films: Mapping[int, Array] = field(default_factory=dict)
    film_truncated: bool = False
    fps: float | None = None
    steps: TensorDict | None = None


class Performance:
    """Plays rounds of one evaluation with one host and one policy; used by one thread.

    Args:
        setting: these two.
        options: the conditions.
        request: what is asked for.
        worker: which of the workers that share the episodes plays here.

    Attributes:
        runner: plays the episodes.
    """

    def __init__(self, setting: Setting, options: EvaluatorOptions, request: EvalRequest, worker: int) -> None:
        self._film = Film(options.record_video, options.max_video_bytes // options.num_workers)
        self._recording, self._until_any_done = Recording(request.policy_version), request.until_any_done
        asked = (self._film, options.record_video), (self._recording, request.record)
        watchers = [watcher for watcher, wanted in asked if wanted]
        self.runner = Runner(setting, options, worker, watchers)
        self._report_every = options.frames_per_batch or options.max_steps or _REPORT_EVERY
        self._drawing: Callable[[], AbstractContextManager[None]] = nullcontext
        if setting.alone:
            root = fresh_root() if options.seed is None else options.seed
            self._drawing = PrivateStreams(derive(root, "global", worker), setting.device).in_force
        self._steps: Iterator[None] = iter(())
        self._episodes, self._seconds = range(0), 0.0

    def play(self, episodes: range, version: int) -> Report:
        """Play this round for a slice of time, or to its end.

        Where the request ends a round with the first env that is done, the others' episodes are cut there.

        Args:
            episodes: the round.
            version: how many sets of weights were sent here.

        Raises:
            Exception: what an env, the policy or a watcher raised.
        """
        runner, env = self.runner, self.runner.host.env
        if episodes != self._episodes:
            self._episodes, self._seconds, self._steps = episodes, 0.0, runner.play(episodes)
        began, most = monotonic(), runner.steps + self._report_every
        with self._drawing():
            for _ in self._steps:
                if self._until_any_done and runner.rows:
                    runner.cut()
                elif (runner.steps >= most or monotonic() > began + SLICE_S) and runner.unfinished:
                    break
        self._seconds += monotonic() - began
        if runner.unfinished:
            return Report(len(runner.rows))
        films = self._film.takes()
        return Report(
            len(runner.rows),
            over=True,
            seconds=self._seconds,
            seeding=runner.seeding,
            version=version,
            rows={episode: row for episode, row in runner.rows.items() if episode in episodes},
            records=bool(recorders(env)),
            films=films,
            film_truncated=self._film.truncated,
            fps=fps_of(env) if films else None,
            steps=self._recording.taken(),
        )


class EvalWorker(Member):
    """One worker of an evaluation; used by one thread at a time.

    Args:
        options: what it plays in and with, and under which conditions.
        root: of the seed under which a factory is called.
        setting: what was built already.
        name: which life of which worker.

    Raises:
        WorkerLate: an earlier life is still in a call of these envs.
    """

    def __init__(self, options: EvaluatorOptions, root: int, setting: Setting | None, name: Name) -> None:
        self._options, self._name = options, name
        where = f"in worker {name.worker} (life {name.life}) of an evaluation, backend {options.place!r}"
        self._noted = partial(noted, f"code {where}")
        with self._noted():
            self._setting = setting or Setting(options, root)
            if self._setting.turn.locked():
                raise WorkerLate(f"{options.env} is still in a call that has not returned; use another env")
        self._evaluation: EvaluationId = "", 0
        self._newest: dict[str, int] = {}  # by asker
        self._performance: Performance | None = None
        self._failed = False
        self._version = 0

    def wanted(self, model_ids: Sequence[str]) -> dict[str, Wanted]:
        """What weights these models want; `KeyError` if there is no such model."""
        return {model_id: self._setting.wanted(model_id) for model_id in model_ids}

    def take(self, models: Mapping[str, Any], version: int) -> None:
        """Put newer weights in: into all models and copies, or into none."""
        self._performance = None
        self._setting.apply(models)
        self._version = max(self._version + 1, version)  # others may have sent some

    def play(self, evaluation: EvaluationId, episodes: range, request: EvalRequest) -> Report:
        """Play a round for a slice of time, or to its end; whatever else was being played is given up.

        Args:
            evaluation: which; its rounds are played under the same conditions.
            episodes: the round, of which each slot plays its quota.
            request: the conditions.

        Raises:
            Superseded: another evaluation has begun since.
            Exception: what building or stepping an env, or the policy raised.
        """
        asker, number = evaluation
        if number > self._newest.get(asker, 0):
            self._newest[asker], self._evaluation, self._performance = number, evaluation, None
        if evaluation != self._evaluation:
            raise Superseded("the rollout was given up for a later submit of another handle; submit it again")
        setting = self._setting
        try:
            with self._noted(), setting.turn:
                if self._failed:
                    setting.renew()
                    self._failed = False
                if self._performance is None:
                    empty_recorders(setting.host.env)
                    self._performance = Performance(setting, self._under(request), request, self._name.worker)
                due = range(setting.host.spec.num_envs) if request.per_slot else episodes
                return self._performance.play(due, self._version)
        except Exception:
            self._failed, self._performance = True, None
            raise

    def _under(self, request: EvalRequest) -> EvaluatorOptions:
        """The conditions of an evaluation; whoever asks for a rollout, seeds are those given here."""
        mine, changes = self._options, {"seed": request.seed, **request.changes}
        if request.per_slot:
            changes["seed"] = fresh_root() if mine.seed is None else mine.seed
            changes["record_video"] = int(renders(self._setting.host.env))
        return mine if changes == {"seed": mine.seed} else replace(mine, **changes)  # which checks it all again

    def dump(self, step: int, write: bool) -> list[str]:
        """Have the recorders of this worker's envs let go of what they have seen; what went wrong, in words.

        Args:
            step: the training step it is written under.
            write: whether those of the very first slot write it.
        """
        env = self._setting.host.env
        with self._setting.turn:
            failures = dump_recorders(first_of(env), step) if write and self._name.worker == 0 else []
            empty_recorders(env)
        return failures

    def weights(self, model_ids: Sequence[str]) -> dict[str, Any]:
        """The states of models as they are here."""
        return {model_id: self._setting.state(model_id) for model_id in model_ids}

    def close(self) -> None:
        """Close the envs."""
        self._performance = None
        with self._setting.turn:
            self._setting.close()


def renders(env: Any) -> bool:
    """Whether the env renders frames, as arrays."""
    mode = getattr(first_of(env), "render_mode", None)
    modes = mode() if callable(mode) else mode  # TorchRL's batches ask each of their envs
    return "rgb_array" in modes if isinstance(modes, list | tuple) else modes == "rgb_array"
