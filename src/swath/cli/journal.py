"""What a run writes, in order, although an evaluation comes later than the moment it judges.

```
 note ───────────────▶ row ──────────────────────────────────┐ in the order of frames: rows wait for those before them
 milestone ──weights──▶ evaluator ──result─▶ row, checkpoints ┴─▶ metrics.csv, TensorBoard, best and last checkpoint
```

The files tell the same story as if the training had stood still for each evaluation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from swath.cli.state import save_run, state_of
from swath.errors import FleetFailed, PlacementFailed, WorkerLate, WorkerLost

if TYPE_CHECKING:
    from types import TracebackType

    from swath.cli.config import RunConfig
    from swath.cli.folder import RunFolder
    from swath.cli.outlets import Outlets
    from swath.cli.parts import Parts
    from swath.cli.state import Progress
    from swath.evaluators import EvalResult
    from swath.report.checkpoint import State

    Metrics = dict[str, float]

EVALUATION = "eval"
UNLOGGED = ("step", "policy_version", "duration_s", "fps")
"""Facts of an evaluation that are no results."""

MOST_PENDING = 4
"""Evaluations that may be under way or waiting; then the training waits, rather than leave points of the curve out."""

NO_FAULT_OF_THE_RUN = (WorkerLost, WorkerLate, PlacementFailed, FleetFailed)
"""What may become of an evaluation without ending the training beside it."""


@dataclass(frozen=True)
class Run:
    """The run that is written about.

    Attributes:
        config: its options.
        folder: where checkpoints go.
        parts: what it works with.
        progress: what has been done; the journal keeps the last and the best evaluation there.
    """

    config: RunConfig
    folder: RunFolder
    parts: Parts
    progress: Progress

    @property
    def is_finished(self) -> bool:
        """Whether it has reached its last frame."""
        return self.progress.frames >= self.config.frames


@dataclass(frozen=True)
class Entry:
    """One moment of the run.

    Attributes:
        progress: as it was then.
        metrics: what was measured.
        state: what a checkpoint of that moment holds; `None` for no checkpoint.
        judged: whether an evaluation of it was asked for.
    """

    progress: Progress
    metrics: Metrics
    state: State | None = None
    judged: bool = False


class Journal:
    """Writes a run down. A `with` block that ends with an error still writes the rows that were waiting.

    Args:
        run: the run.
        outlets: where rows go, and where evaluations are shown.
    """

    def __init__(self, run: Run, outlets: Outlets) -> None:
        self._run, self._outlets, self._judge = run, outlets, run.parts.judge
        self._entries: deque[Entry] = deque()

    def note(self, metrics: Metrics) -> None:
        """Write a row for this moment."""
        self._add(Entry(replace(self._run.progress), metrics))

    def milestone(self, metrics: Metrics, *, judged: bool) -> None:
        """Write a row and checkpoints for this moment, with the evaluation of the policy of this moment if asked."""
        judged = judged and self._judge is not None
        if judged:
            self._ask()
        state = state_of(self._run.config, self._run.parts)
        self._add(Entry(replace(self._run.progress), metrics, state, judged))

    def finish(self) -> None:
        """Wait for the evaluations that are under way, and write everything."""
        self._settle(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._entries:
            self._row(self._entries.popleft())

    def _ask(self) -> None:
        self._settle(MOST_PENDING - 1)
        assert self._judge is not None
        self._judge.trigger_eval(self._run.parts.policy, self._run.progress.frames)

    def _add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._settle(MOST_PENDING)

    def _settle(self, most: int) -> None:
        """Write what can be written; wait for evaluations until no more than `most` are pending."""
        while self._entries:
            entry, result = self._entries[0], None
            if entry.judged:
                late = sum(each.judged for each in self._entries) > most
                try:
                    result = self._await(entry) if late else self._poll()
                except NO_FAULT_OF_THE_RUN as error:
                    self._say_failed(entry, error)
                else:
                    if result is None:
                        return
            self._entries.popleft()
            self._write(entry, result)

    def _poll(self) -> EvalResult | None:
        assert self._judge is not None
        return self._judge.poll()

    def _await(self, entry: Entry) -> EvalResult | None:
        assert self._judge is not None
        self._outlets.display.doing(f"waiting for the evaluation at {entry.progress.frames:,} frames")
        return self._judge.wait()

    def _say_failed(self, entry: Entry, error: BaseException) -> None:
        text = " ".join(str(error).split())
        self._outlets.display.say(f"no evaluation at {entry.progress.frames:,} frames: {text}")

    def _write(self, entry: Entry, result: EvalResult | None) -> None:
        """The row first: a resumed run drops rows beyond its checkpoint, and can add none."""
        is_best = result is not None and self._judged(entry, result)
        self._row(entry)
        if entry.state is not None:
            now = replace(entry.progress, evaluation=self._run.progress.evaluation, best=self._run.progress.best)
            if is_best:
                save_run(self._run.folder.best, entry.state, now)
            save_run(self._run.folder.checkpoint, entry.state, now)

    def _row(self, entry: Entry) -> None:
        if entry.metrics:
            self._outlets.sink.log(entry.progress.frames, entry.metrics)

    def _judged(self, entry: Entry, result: EvalResult) -> bool:
        """Take the evaluation into the row and the progress, and show it; whether it is the best so far."""
        progress, score = self._run.progress, result[f"{EVALUATION}/reward"]
        result[f"{EVALUATION}/policy_version"] = entry.progress.version
        metrics = {name: v for name, v in result.items() if name.removeprefix(f"{EVALUATION}/") not in UNLOGGED}
        entry.metrics.update(metrics)
        self._outlets.display.evaluated(result)
        is_best = bool(score > progress.best)
        progress.evaluation, progress.best = result, score if is_best else progress.best
        return is_best
