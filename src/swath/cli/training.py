"""The loop of a run: collect, learn, evaluate now and then, and keep everything.

```
 collector ──batch──▶ learner ──losses──▶ metrics.csv, TensorBoard, display
     ▲                   │
     └──policy, in place─┴── every `eval_gap` frames ──▶ judge ──▶ checkpoint, best checkpoint
```
"""

from __future__ import annotations

import time
from math import inf, nan
from typing import TYPE_CHECKING

from swath.cli.state import save_run
from swath.report.status import EvalPoint, Pace, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensordict import TensorDictBase

    from swath.cli.config import RunConfig
    from swath.cli.folder import RunFolder
    from swath.cli.outlets import Outlets
    from swath.cli.parts import Parts
    from swath.cli.state import Progress
    from swath.cli.stop import StopRequest

    Metrics = dict[str, float]

RETURN, LENGTH, EPISODES = "train/return", "train/length", "train/episodes"
SECONDS, SPEED = "time/seconds", "time/frames_per_second"
LEARNER, EVALUATION = "ppo/", "eval"
UNLOGGED = ("step", "policy_version", "duration_s", "fps")
"""Facts of an evaluation that are no results."""
SHOWN = {"policy_loss": "policy", "value_loss": "value", "entropy": "entropy", "approx_kl": "kl"}
"""Which of the learner's numbers the display shows, and under which names."""


class Training:
    """One run, from where its parts stand to its last frame.

    Args:
        config: its options.
        folder: where checkpoints go.
        parts: collector, learner and judge.
        progress: what has been done already; kept up to date.
    """

    def __init__(self, config: RunConfig, folder: RunFolder, parts: Parts, progress: Progress) -> None:
        self._config, self._folder, self._parts, self.progress = config, folder, parts, progress
        self._saved_at = progress.frames
        self._best_at: int | None = None
        self._began_at = time.monotonic() - progress.seconds
        self._pace = Pace(progress.frames, time.monotonic())
        self._next_evaluation = self._after(progress.frames)

    def run(self, outlets: Outlets, stop: StopRequest) -> None:
        """Train until the last frame, or until the batch after which a stop was asked for."""
        if self._is_first_evaluation_due:
            outlets.sink.log(0, self._evaluate(outlets))
            self._save()
        for batch in self._parts.collector:
            metrics = self._learn(batch)
            outlets.display.update(self._status(metrics))
            is_due = self._is_evaluation_due(stop)
            if is_due:
                metrics |= self._evaluate(outlets)
            outlets.sink.log(self.progress.frames, metrics)
            if is_due:
                self._save()  # after the row: a resumed run drops rows beyond its checkpoint, and can add none
            if stop.requested:
                break
        if self._saved_at < self.progress.frames:
            self._save()

    def _learn(self, batch: TensorDictBase) -> Metrics:
        losses = self._parts.learner.update(batch)
        self._parts.collector.update_policy_weights_()
        self.progress.version = self._parts.collector.policy_version
        stats, now = self._parts.collector.stats(), time.monotonic()
        self.progress.frames, self.progress.seconds = stats["frames"], now - self._began_at
        metrics = {SECONDS: self.progress.seconds, SPEED: self._pace.rate(stats["frames"], now)}
        if "episode_return" in stats:
            metrics |= {RETURN: stats["episode_return"], LENGTH: stats["episode_length"], EPISODES: stats["episodes"]}
        return metrics | {LEARNER + name: value for name, value in losses.items()}

    def _status(self, metrics: Metrics) -> Status:
        return Status(
            frames=self.progress.frames,
            frames_per_second=metrics[SPEED],
            seconds_left=self._pace.left(self.progress.frames, self._config.frames, time.monotonic()),
            episode_return=metrics.get(RETURN, nan),
            episode_length=metrics.get(LENGTH, nan),
            losses={short: metrics[LEARNER + name] for name, short in SHOWN.items() if LEARNER + name in metrics},
        )

    def _evaluate(self, outlets: Outlets) -> Metrics:
        outlets.display.doing(f"evaluating, {self._config.eval_episodes} episodes")
        result = self._parts.judge.evaluate(self._parts.policy, self.progress.frames, self.progress.version)
        self._next_evaluation = self._after(self.progress.frames)
        self.progress.evaluation = result
        if result["eval/reward"] > self.progress.best:
            self.progress.best, self._best_at = result["eval/reward"], self.progress.frames
        metrics = {name: v for name, v in result.items() if name.removeprefix(f"{EVALUATION}/") not in UNLOGGED}
        outlets.display.evaluated(point_at(self.progress.frames, metrics))
        return metrics

    @property
    def _is_first_evaluation_due(self) -> bool:
        return self.progress.frames == 0 and self.progress.evaluation is None and self._config.eval_gap > 0

    def _is_evaluation_due(self, stop: StopRequest) -> bool:
        """The last one is due even if a stop was asked for meanwhile: the run is over with it."""
        is_last = self.progress.frames >= self._config.frames
        return is_last or (self.progress.frames >= self._next_evaluation and not stop.requested)

    def _after(self, frames: int) -> float:
        """Where the next evaluation is due: a multiple of the gap."""
        gap = self._config.eval_gap
        return (frames // gap + 1) * gap if gap else inf

    def _save(self) -> None:
        """The best one first, so that no checkpoint knows of one that was not written."""
        self._saved_at = self.progress.frames
        if self._best_at == self.progress.frames:
            save_run(self._folder.best, self._config, self._parts, self.progress)
        save_run(self._folder.checkpoint, self._config, self._parts, self.progress)


def point_at(frames: int, metrics: Mapping[str, float]) -> EvalPoint:
    """An evaluation as the display shows it."""
    names = ("reward", "reward_ci_low", "reward_ci_high", "num_episodes")
    mean, low, high, episodes = (metrics[f"{EVALUATION}/{name}"] for name in names)
    return EvalPoint(frames, mean, low, high, int(episodes))
