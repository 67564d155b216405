"""One evaluation as one worker plays it: part after part, slice after slice, under the same conditions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from time import monotonic

from swath.evaluate.acting import EvalPolicy
from swath.evaluate.arena import only_together
from swath.evaluate.film import Film
from swath.evaluate.layers import empty_recorders, has_recorders
from swath.evaluate.parts import Footage, Part, Report
from swath.evaluate.quota import Quota
from swath.evaluate.recording import Recording
from swath.evaluate.runner import Manner, Runner
from swath.evaluate.setting import Setting
from swath.rollout.hosts.base import fps_of
from swath.rollout.random_state import PrivateStreams
from swath.seeds import derive, fresh_root
from swath.workers.packing import Parcel

SLICE_S = 0.05
"""How long a worker plays before it looks for news."""


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
        rows = runner.ledger.rows()
        asked = {episode: rows[episode] for episode in self._part.episodes if episode in rows} if over else {}
        return Report(over, len(rows), runner.unfinished, self._seconds, runner.seeding, asked, self._records)

    def _footage(self) -> Footage:
        film, recording = self._film, self._recording
        footage = Footage() if film is None else Footage(film.takes(), film.truncated, fps_of(self._host.env))
        return footage if recording is None else replace(footage, steps=recording.taken())
