"""The loop of a run: collect, learn, have the policy judged now and then, and keep everything.

```
 collector ──batch──▶ learner ──losses──▶ journal ──▶ metrics.csv, TensorBoard
     ▲                   │                   ▲
     └──policy, in place─┴──every `eval_gap` frames, a copy of the weights──▶ evaluator, beside the training
                                             └──────────result───────────────────┘ ──▶ checkpoint, best checkpoint
```
"""

from __future__ import annotations

import time
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from swath.cli.journal import Journal, Run
from swath.cli.parts import whole_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict import TensorDictBase

    from swath.cli.journal import Metrics
    from swath.cli.outlets import Outlets
    from swath.cli.stop import StopRequest

RETURN, LENGTH, EPISODES = "train/return", "train/length", "train/episodes"
SECONDS, SPEED = "time/seconds", "time/frames_per_second"
KEPT = {
    "seconds_waiting": "time/seconds_waiting",
    "workers_alive": "workers/alive",
    "restarts": "workers/restarts",
    "staleness": "workers/staleness",
}
"""What `stats()` says of the workers, and the columns for it."""

LEARNER = "ppo/"
SHOWN = {"policy_loss": "policy", "value_loss": "value", "entropy": "entropy", "approx_kl": "kl"}
"""Which of the learner's numbers the display shows, and under which names."""


class Training:
    """One run, from where its parts stand to its last frame.

    Args:
        run: its options, folder, parts, and what has been done already, which is kept up to date.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._config, self._parts, self.progress = run, run.config, run.parts, run.progress
        self._began_at = time.monotonic() - self.progress.seconds
        self._next_evaluation = self._after(self.progress.frames)
        batch = whole_batch(run.config)
        done = self.progress.frames
        self._end = done + ceil((run.config.frames - done) / batch) * batch  # that of the last batch

    def run(self, outlets: Outlets, stop: StopRequest) -> None:
        """Train until the last frame, or until the batch after which a stop was asked for."""
        collector = self._parts.collector
        self._show(outlets, collector.stats("both"), {})
        with Journal(self._run, outlets) as journal:
            if self._is_first_evaluation_due:
                journal.milestone({}, judged=True)
            for batch in collector:
                losses = self._learn(batch)
                facts = collector.stats("both")
                self._show(outlets, facts, losses)
                stopped = bool(stop.requested)
                self._write(journal, self._measured(facts, losses), stopped=stopped)
                if stopped:
                    break
            journal.finish()

    def _write(self, journal: Journal, metrics: Metrics, *, stopped: bool) -> None:
        judged = self._is_evaluation_due(stopped=stopped)
        if judged or stopped:
            journal.milestone(metrics, judged=judged)
            self._next_evaluation = self._after(self.progress.frames)
        else:
            journal.note(metrics)

    def _learn(self, batch: TensorDictBase) -> Metrics:
        losses = self._parts.learner.update(batch)
        self._parts.collector.update_policy_weights_()
        self.progress.version = self._parts.collector.policy_version
        return losses

    def _measured(self, facts: Mapping[str, Any], losses: Metrics) -> Metrics:
        """The row for this moment; the progress is that of this moment, too."""
        self.progress.frames, self.progress.seconds = facts["frames"], time.monotonic() - self._began_at
        metrics = {SECONDS: self.progress.seconds, SPEED: facts["fps"]}
        metrics |= {column: facts[name] for name, column in KEPT.items() if name in facts}
        if "episode_return" in facts:
            metrics |= {RETURN: facts["episode_return"], LENGTH: facts["episode_length"], EPISODES: facts["episodes"]}
        return metrics | {LEARNER + name: value for name, value in losses.items()}

    def _show(self, outlets: Outlets, facts: Mapping[str, Any], losses: Metrics) -> None:
        """Show where the run stands: its end is that of the last batch."""
        shown = {short: losses[name] for name, short in SHOWN.items() if name in losses}
        outlets.display.show({**facts, "total_frames": self._end}, shown)

    @property
    def _is_first_evaluation_due(self) -> bool:
        return self.progress.frames == 0 and self.progress.evaluation is None and self._config.eval_gap > 0

    def _is_evaluation_due(self, *, stopped: bool) -> bool:
        """The last one is due even if a stop was asked for meanwhile: the run is over with it."""
        is_last = self.progress.frames >= self._config.frames
        return is_last or (self.progress.frames >= self._next_evaluation and not stopped)

    def _after(self, frames: int) -> float:
        """Where the next evaluation is due: a multiple of the gap."""
        gap = self._config.eval_gap
        return (frames // gap + 1) * gap if gap else inf
