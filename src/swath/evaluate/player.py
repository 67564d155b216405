"""What lives in a worker of an evaluation: plays the parts it is given, a slice of time at a go.

    play(update, part) ─▶ weights, if newer ─▶ Performance ─┐ each a slice
    go_on() ────────────────────────────────────────────────┴─▶ Report, not over yet | Parcel(Report, Footage)

Between two slices the worker gets what is new: another part, which takes the place of the present one, or the end. So
whoever cancels or closes need not reach into a running evaluation, and progress is reported everywhere in the same way.
Where slices begin and end changes no number. An exception of user code is the answer to the call; the next part is
played in envs that were built anew.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from swath.evaluate.acting import EvalPolicy
from swath.evaluate.arena import only_together
from swath.evaluate.film import Film
from swath.evaluate.layers import dump_recorders, empty_recorders, has_recorders
from swath.evaluate.models import Models
from swath.evaluate.parts import Footage, Part, Report
from swath.evaluate.quota import Quota
from swath.evaluate.recording import Recording
from swath.evaluate.runner import Manner, Runner
from swath.evaluate.setting import Setting
from swath.rollout.hosts.base import first_of, fps_of
from swath.rollout.seeding import PrivateStreams
from swath.seeds import derive, fresh_root
from swath.weights.channel import Update
from swath.weights.manifest import Manifest
from swath.workers.packing import Parcel
from swath.workers.tickets import Name

SLICE_S = 0.05
"""How long a worker plays before it looks for news."""


@dataclass(frozen=True)
class Post:
    """Where a player stands.

    Attributes:
        name: which life of which worker.
        workers: how many there are.
        place: the backend, in words.
    """

    name: Name
    workers: int = 1
    place: str = "inline"

    @contextmanager
    def noted(self) -> Iterator[None]:
        """What is raised within gets a note of where that was."""
        try:
            yield
        except Exception as error:
            name = self.name
            error.add_note(f"in worker {name.worker} (life {name.life}) of an evaluation, backend {self.place!r}")
            raise


class Player:
    """One worker of an evaluation; used by one thread at a time.

    Args:
        setting: what it plays in, and with.
        post: where it stands.
        turn: held while the envs are used, where other lives use the same.
    """

    def __init__(self, setting: Setting, post: Post, turn: threading.Lock | None = None) -> None:
        self._setting, self._post = setting, post
        self._turn = nullcontext() if turn is None else turn
        self._models = Models(setting)
        self._performance: Performance | None = None
        self._failed = False

    def present(self) -> None:
        """Answer, so that one is known to be there."""

    def manifests(self, model_ids: Sequence[str]) -> dict[str, Manifest]:
        """What weights these models want.

        Raises:
            KeyError: there is no such model.
        """
        return {model_id: self._models.manifest(model_id) for model_id in model_ids}

    def check(self, extras: Mapping[str, Mapping[str, Any]]) -> None:
        """Whether extra state fits these models.

        Raises:
            KeyError, ValueError: it does not.
        """
        for model_id, each in extras.items():
            self._models.check(model_id, each)

    def play(self, update: Update | None, part: Part) -> Report | Parcel:
        """Begin a part, whatever was being played before.

        Raises:
            Exception: what applying the weights, building or stepping an env, or the policy raised.
        """
        with self._telling():
            self._prepare(update)
            performance = self._performance
            if performance is None or performance.number != part.evaluation:
                slots = self._setting.host.spec.num_envs
                performance = Performance(
                    self._setting, part, self._post.name.worker * slots, self._post.workers * slots
                )
            self._performance = performance
            performance.begin(part)
            return performance.go_on()

    def go_on(self) -> Report | Parcel:
        """Play on for a slice of time.

        Raises:
            Exception: what an env or the policy raised.
        """
        assert self._performance is not None, "play a part first"
        with self._telling():
            return self._performance.go_on()

    def dump(self, step: int, write: bool) -> list[str]:
        """Have the recorders of this worker's envs let go of what they have seen; what went wrong, in words.

        Args:
            step: the training step it is written under.
            write: whether those of the very first slot write it.
        """
        env = self._setting.host.env
        with self._turn:
            failures = dump_recorders(first_of(env), step) if write and self._post.name.worker == 0 else []
            empty_recorders(env)
        return failures

    def weights(self, model_id: str) -> Any:
        """The state of a model as it is here."""
        return self._models.state(model_id)

    def close(self) -> None:
        """Close the envs."""
        self._performance = None
        with self._turn:
            self._setting.close()

    def _prepare(self, update: Update | None) -> None:
        if update is not None:
            self._performance = None
            self._models.apply(update)
        if self._failed:
            self._performance = None
            self._setting.renew()
            self._models.apply_again()
            self._failed = False

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """What is raised within says where, and the envs are not used again as they are."""
        try:
            with self._post.noted(), self._turn:
                yield
        except Exception:
            self._failed, self._performance = True, None
            raise


class Performance:
    """Plays parts of one evaluation.

    Args:
        setting: what it plays in, and with.
        part: the first part, which is yet to be begun; it has the conditions of all.
        first_slot: the number of this worker's first slot.
        num_slots: of all workers.

    Attributes:
        number: of the evaluation.
    """

    def __init__(self, setting: Setting, part: Part, first_slot: int, num_slots: int) -> None:
        request, host = part.request, setting.host
        self.number = part.evaluation
        self._part, self._host = part, host
        empty_recorders(host.env)
        self._records = has_recorders(host.env)
        self._where = num_slots, first_slot
        self._film = Film(part.wishes.film, part.wishes.film_bytes) if part.wishes.film else None
        self._recording = Recording(request.policy_version) if part.wishes.steps else None
        acting = EvalPolicy(
            setting.acts,
            host.spec,
            request.exploration_type,
            request.seed,
            setting.device,
            beside_others=not setting.alone,
        )
        watchers = [watcher for watcher in (self._film, self._recording) if watcher is not None]
        self._watched = bool(watchers)
        scoring = request.reading.applied_to(host)
        manner = Manner(scoring, together=only_together(host, request), watchers=watchers)
        self._runner = Runner(host, acting.bind, request, manner)
        root = fresh_root() if request.seed is None else request.seed
        worker = first_slot // host.spec.num_envs
        self._streams = PrivateStreams(derive(root, "global", worker), setting.device) if setting.alone else None
        self._steps: Iterator[None] = iter(())
        self._seconds = 0.0

    def begin(self, part: Part) -> None:
        """Play this part next."""
        self._part, self._seconds = part, 0.0
        self._steps = self._runner.play(Quota(part.episodes, *self._where))

    def go_on(self) -> Report | Parcel:
        """Play for a slice of time, or to the end of the part.

        Raises:
            Exception: what an env or the policy raised.
        """
        began = monotonic()
        enough = self._runner.steps + self._part.wishes.report_every
        over = True
        with nullcontext() if self._streams is None else self._streams.in_force():
            for _ in self._steps:
                if (self._runner.steps >= enough or monotonic() - began > SLICE_S) and self._runner.unfinished:
                    over = False
                    break
        self._seconds += monotonic() - began
        report = self._report(over=over)
        return Parcel(report, self._footage()) if over and self._watched else report

    def _report(self, *, over: bool) -> Report:
        runner = self._runner
        rows = runner.rows
        asked = {episode: rows[episode] for episode in self._part.episodes if episode in rows} if over else {}
        return Report(over, len(rows), runner.unfinished, self._seconds, runner.seeding, asked, self._records)

    def _footage(self) -> Footage:
        film, recording = self._film, self._recording
        footage = Footage() if film is None else Footage(film.takes(), film.truncated, fps_of(self._host.env))
        return footage if recording is None else replace(footage, steps=recording.taken())
