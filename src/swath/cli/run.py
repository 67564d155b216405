"""One training run: collect, learn, evaluate the policy at intervals, and write results.

```
 collector ──batch──▶ learner ──losses──▶ rows, in the order of frames ──▶ metrics.csv, other logs, display
     ▲                   │                   ▲     a row with an evaluation waits for it, later rows wait behind it
     └──policy, in place─┴──every `eval_every` frames, a copy of the weights──▶ evaluator, in the background
                                             └──────────result───────────────────┘ ──▶ checkpoint, best checkpoint
```

The files are the same as if the training had paused for each evaluation.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import deque
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from math import ceil, inf, isfinite
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from swath.cli import failure, naming, options, parts
from swath.cli.parts import SavedRun, Spaces
from swath.errors import FleetFailed, PlacementFailed, WorkerLate, WorkerLost
from swath.evaluation.evaluator import Evaluator
from swath.evaluation.result import EvalResult
from swath.extras import import_extra
from swath.learn import PPO, LearnerConfig, default_config
from swath.report.atomic import replace_atomically
from swath.report.display import Display
from swath.report.sinks import draw_curve
from swath.seeds import derive

COLUMNS = {
    "fps": "time/frames_per_second",
    "seconds_waiting": "time/seconds_waiting",
    "workers_alive": "workers/alive",
    "restarts": "workers/restarts",
    "staleness": "workers/staleness",
    "episode_return": "train/return",
    "episode_length": "train/length",
    "episodes": "train/episodes",
}
"""Names in `stats()` of the collector, and their columns."""

SHOWN = {"policy_loss": "policy", "value_loss": "value", "entropy": "entropy", "approx_kl": "kl"}
"""The learner's numbers that the display shows, and their short names."""

UNLOGGED = ("eval/step", "eval/policy_version", "eval/duration_s", "eval/fps")
"""Entries of an evaluation that no log gets."""

MAX_EVALUATION_SHARE = 0.25
"""By default no evaluation but the last begins if all would use more than this of the frames and of the time."""

EVALUATION_FAILURES = (WorkerLost, WorkerLate, PlacementFailed, FleetFailed)
"""Failures of an evaluation that never end the training."""


@dataclass(frozen=True)
class PendingRow:
    """A row of the metrics that waits to be written.

    Attributes:
        progress: a copy, of the time of the row.
        metrics: numbers of the row.
        state: state for the checkpoint; `None` for no checkpoint.
        evaluator: plays the evaluation of this row; `None` for no evaluation.
    """

    progress: parts.RunProgress
    metrics: dict[str, float]
    state: dict[str, Any] | None = None
    evaluator: Evaluator | None = None


class Run:
    """One training, from its start or a checkpoint to its last frame.

    Args:
        config: options of the run.
        saved: the checkpoint to resume from.
        stack: closes the parts of the run.

    Raises:
        UsageError: an option or the env cannot be used, or the checkpoint does not fit.
    """

    def __init__(self, config: options.RunConfig, saved: SavedRun | None, stack: ExitStack) -> None:
        for name in options.MODULES.keys() & options.parse_logs(config.log):
            import_extra(options.MODULES[name], extra=name, purpose=f"for --log {name}")
        torch.set_num_threads(config.threads)
        spaces, self._step_limit = parts.describe_env(config.env, config.env_kwargs)
        root = derive(config.seed, "next")
        policy = parts.make_network(config.env, spaces, derive(root, "policy"))
        self.config, self.spaces, self.policy = config, spaces, policy.to(parts.find_device(config.device))
        self.learner = PPO(self.policy, learner_config(config, spaces, derive(root, "global")))
        self.evaluator = None
        if config.eval_backend != options.NONE:
            self.evaluator = stack.enter_context(parts.make_evaluator(config, self.policy))
        step = config.envs * config.workers
        batch = ceil(min(config.batch, config.frames) / step) * step
        sizes = {"frames_per_batch": batch, "total_frames": config.frames, "storing_device": config.device}
        self.collector = stack.enter_context(parts.make_collector(config, self.policy, **sizes))
        self.progress, self._resume_at = parts.RunProgress(), None
        if saved is not None:
            saved.load_weights(self.policy, config.env)
            with parts.checkpoint_errors(saved.file, f"the present {config.env}"):
                self.learner.load_state_dict(saved.state["learner"])
                weights = self.policy.state_dict()
                self.collector.load_state_dict(parts.with_weights(saved.state["collector"], weights))
                torch.set_rng_state(saved.state["random_state"])
            self.progress, self._resume_at = saved.progress, saved.progress.frames
        done, self._seconds_evaluated_before = self.progress.frames, self.progress.evaluation_seconds
        self._end = done + ceil((config.frames - done) / batch) * batch  # the end of the last batch
        self._rows: deque[PendingRow] = deque()

    @property
    def is_finished(self) -> bool:
        """Tell whether the run has reached its last frame."""
        return self.progress.frames >= self.config.frames

    def train(self, folder: naming.RunFolder, console: Console) -> int:
        """Train until the last frame, or stop early on Ctrl-C; return the exit code.

        Raises:
            UsageError: a port is taken, a service begins no run, or the metrics of a resumed run are damaged.
        """
        self.folder = folder
        with ExitStack() as stack:
            config = self.config
            details = ("PPO", config.place, f"seed {config.seed}", config.device)
            display = self._display = Display(console, config.env, details, failure.HINT)
            stack.callback(display.close)
            with failure.usage_errors():
                self._sink = parts.open_logs(self.config.log, folder, self._resume_at, display.print)
            stack.callback(self._sink.close)
            stop = stack.enter_context(failure.StopRequest(display.print))
            if self._resume_at is not None:
                display.print(
                    f"continues at {self._resume_at:,} frames; simulators are not saved, so episodes begin again"
                )
            try:
                self._loop(stop)
            finally:
                for row in self._rows:  # after an error, write the numbers that are there
                    self._write(row, None)
            self._write_summary()
            with failure.optional_feature(display.print, "curve"):
                draw_curve(folder.curve, folder.metrics, "train/return", "eval/reward", f"PPO on {self.config.env}")
            if self.is_finished and self.config.video and not stop.requested:
                display.set_activity("filming an episode")
                with failure.optional_feature(display.print, "film"):  # it must not cost a run
                    parts.film_episode(self.config, self.policy, folder.video)
                    display.print(f"film: {folder.video}")
        return failure.OK if self.is_finished else stop.exit_code

    def _loop(self, stop: failure.StopRequest) -> None:
        progress, began = self.progress, time.monotonic() - self.progress.seconds
        config = self.config
        gap = max(config.frames // 10, 1) if config.eval_every is None else config.eval_every or inf
        self._show({})
        start = self._state() if progress.frames == 0 and progress.evaluation is None and gap < inf else None
        for batch in self.collector:
            if start is not None:  # the first batch shows how long episodes are; the policy has not changed
                self._add_row({}, start, evaluate=self._can_afford_evaluation())
                start = None
            losses = self.learner.update(batch)
            self.collector.update_policy_weights_()
            progress.version = self.collector.policy_version
            stats, before = self._show(losses), progress.frames
            progress.frames, progress.seconds = stats["frames"], time.monotonic() - began
            metrics = {"time/seconds": progress.seconds}
            metrics |= {column: stats[name] for name, column in COLUMNS.items() if name in stats}
            metrics |= {f"ppo/{name}": value for name, value in losses.items()}
            stopped = bool(stop.requested)
            due = progress.frames // gap > before // gap and not stopped
            state = self._state() if due or stopped or self.is_finished else None
            evaluate = self.is_finished or (due and self._can_afford_evaluation())
            self._add_row(metrics, state, evaluate=evaluate)
            if stopped:
                break
        self._write_rows(wait=True)

    def _show(self, losses: dict[str, float]) -> dict[str, Any]:
        """Show the progress of the run, and return the collector's numbers."""
        stats = self.collector.stats("both")
        shown_losses = {short: losses[name] for name, short in SHOWN.items() if name in losses}
        seconds = self.progress.evaluation_seconds - self._seconds_evaluated_before
        changes = {"total_frames": self._end, "seconds_evaluating": seconds}
        self._display.show({**stats, **changes}, shown_losses)
        return stats

    def _can_afford_evaluation(self) -> bool:
        """Tell whether evaluations keep to their share with another one, or the user has set their interval.

        The cost of another is the last one's; before the first it is estimated from the episodes of the training. The
        first is compared with the planned frames, the others with the frames so far.
        """
        if self.config.eval_every is not None:
            return True
        self._write_rows(wait=True)  # a running evaluation counts
        progress, last = self.progress, self.progress.evaluation
        planned = MAX_EVALUATION_SHARE * (progress.frames or self.config.frames)
        if last is None:
            return progress.evaluation_frames + self.config.eval_episodes * self._episode_length() <= planned
        of_frames = progress.evaluation_frames + last["eval/frames"] <= planned
        seconds = progress.evaluation_seconds + last["eval/duration_s"]
        return of_frames or bool(seconds <= MAX_EVALUATION_SHARE * progress.seconds)

    def _episode_length(self) -> float:
        """Return the mean length of training episodes; before the first end the step limit, or the steps so far."""
        stats = self.collector.stats()
        steps = stats["frames"] / (self.config.envs * self.config.workers)
        return float(stats.get("episode_length", max(self._step_limit, steps)))

    def _state(self) -> dict[str, Any]:
        """Return the present state of the run, for a checkpoint."""
        return {
            "config": vars(self.config),
            "spaces": self.spaces,
            "policy": dict(self.policy.state_dict()),
            "learner": self.learner.state_dict(),
            "collector": parts.with_weights(self.collector.state_dict(), None),  # equal to "policy"
            "random_state": torch.get_rng_state(),
            "versions": parts.versions(),
        }

    def _add_row(self, metrics: dict[str, float], state: dict[str, Any] | None, *, evaluate: bool) -> None:
        """Add a row, optionally with a state for a checkpoint, and an evaluation of the present policy."""
        if evaluator := self.evaluator if evaluate else None:
            self._write_rows(wait=True)  # one at a time
            evaluator.trigger_eval(self.policy, self.progress.frames)
        self._rows.append(PendingRow(replace(self.progress), metrics, deepcopy(state), evaluator))
        self._write_rows(wait=False)

    def _write_rows(self, *, wait: bool) -> None:
        """Write rows in order, up to the first that waits for its evaluation; with `wait` write all rows."""
        while self._rows:
            row, result = self._rows[0], None
            if evaluator := row.evaluator:
                moment = f"{row.progress.frames:,} frames"
                if wait:
                    self._display.set_activity(f"waiting for the evaluation at {moment}")
                try:
                    result = evaluator.wait() if wait else evaluator.poll()
                    if result is None:
                        return
                except Exception as error:
                    if self.config.on_env_error == "raise" and not isinstance(error, EVALUATION_FAILURES):
                        raise
                    self._display.print(f"no evaluation at {moment}: {failure.one_line(error)}")
            self._write(self._rows.popleft(), result)

    def _write(self, row: PendingRow, result: EvalResult | None) -> None:
        """Write a row, then its checkpoint: a resumed run drops later rows, but cannot add missing ones."""
        progress, is_best = self.progress, False
        if result is not None:
            progress.evaluation_frames += result["eval/frames"]
            progress.evaluation_seconds += result["eval/duration_s"]
            result["eval/policy_version"] = row.progress.version
            row.metrics.update({name: value for name, value in result.items() if name not in UNLOGGED})
            self._display.show_evaluation(result)
            is_best = bool(result["eval/reward"] > progress.best)
            progress.evaluation, progress.best = result, max(progress.best, result["eval/reward"])
        if row.metrics:
            self._sink.log(row.progress.frames, row.metrics)
        if row.state is not None:
            of_evaluations = ("evaluation", "best", "evaluation_frames", "evaluation_seconds")
            row_progress = replace(row.progress, **{name: getattr(progress, name) for name in of_evaluations})
            for file in (self.folder.best, self.folder.checkpoint) if is_best else (self.folder.checkpoint,):
                parts.save_run(file, row.state, row_progress)

    def _write_summary(self) -> None:
        """Write the summary; numbers that are not finite become null."""
        progress, evaluation = self.progress, None
        if result := progress.evaluation:
            episodes = {name: getattr(result, name).tolist() for name in ("returns", "lengths", "seeds")}
            figures = {name.partition("/")[2]: _finite_or_none(value) for name, value in result.items()}
            evaluation = {"at_frames": result.step, **episodes, **figures}
        summary = {
            "env": self.config.env,
            "algorithm": "PPO",
            "seed": self.config.seed,
            "ended": "finished" if self.is_finished else "stopped",
            "frames": progress.frames,
            "seconds": round(progress.seconds, 3),
            "frames_per_second": round(progress.frames / progress.seconds, 1) if progress.seconds else 0.0,
            "evaluation": evaluation,
            "best_evaluation": _finite_or_none(progress.best),
            "config": vars(self.config),
            "versions": parts.versions(),
        }
        with replace_atomically(self.folder.summary) as draft:
            draft.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def run_training(
    console: Console, config: options.RunConfig | None, path: Path | None, changes: dict[str, Any], out: Path | None
) -> int:
    """Begin or resume a run, and return the exit code.

    Args:
        console: shows the run.
        config: config of a new run.
        path: the folder or a checkpoint of a run to resume.
        changes: options that differ from the resumed run.
        out: the folder of a new run, or of the copy of a resumed run.

    Raises:
        UsageError: an option, the env, the folder or the checkpoint cannot be used; no run has begun.
        RunError: a full disk, full memory, diverged numbers or the env ended the run.
    """
    saved = folder = None
    if path is not None:
        with failure.usage_errors():
            saved = parts.open_run(naming.find_checkpoint(path))
        parts.require_safe_env(saved, changes.get("env"), naming.resume_command(saved.config.env, path))
        config, done = saved.config.with_changes(changes), saved.progress.frames
        if done >= config.frames:
            cause = f"{done:,} of {config.frames:,} frames are done; give more with --frames"
            raise failure.UsageError(f"--resume {path}: {cause}")
    assert config is not None
    with failure.run_errors(config.env, lambda: folder.resume_hint(config.env) if folder else ""), ExitStack() as stack:
        with failure.usage_errors():
            run = Run(config, saved, stack)
        old = None if saved is None else naming.RunFolder(saved.file.parent)
        folder = old if old and out is None else naming.make_run_folder(out, config.env, config.seed)
        if old and out is not None and old.metrics.is_file():
            shutil.copyfile(old.metrics, folder.metrics)
        with naming.lock_folder(folder.path, "swath train"):
            code = run.train(folder, console)
    if run.is_finished and run.progress.evaluation:
        console.print(parts.eval_table({f"at {run.progress.evaluation.step:,} frames": run.progress.evaluation}))
    if not run.is_finished:
        command = naming.resume_command(config.env, folder.path)
        console.print(f"stopped at {run.progress.frames:,} frames; to continue:\n  {command}\n", soft_wrap=True)
    names = "  ".join(sorted(file.name for file in folder.path.iterdir()))
    console.print(f"results in {folder.path}:\n  {names}", soft_wrap=True)
    if run.is_finished:
        env_arguments = ["--env", config.env] if ":" in config.env else []
        console.print(f"to evaluate it: {failure.command_line('eval', folder.path, *env_arguments)}", soft_wrap=True)
    return code


def learner_config(config: options.RunConfig, spaces: Spaces, seed: int) -> LearnerConfig:
    """Return the learner's defaults for the env, with the changes of the user.

    Raises:
        UsageError: a setting is unknown.
    """
    names = {field.name for field in fields(LearnerConfig)} - {"total_frames", "seed"}  # --frames and --seed
    if unknown := config.ppo.keys() - names:
        settings = f"PPO has the settings {', '.join(sorted(names))}"
        raise failure.UsageError(f"--ppo.{', '.join(sorted(unknown))}: {settings}")
    return replace(default_config(*spaces), total_frames=config.frames, seed=seed, **config.ppo)


def _finite_or_none(value: float) -> float | None:
    return value if isfinite(value) else None
