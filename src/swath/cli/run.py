"""One training: collect, learn, have the policy judged now and then, and leave everything behind.

```
 collector ──batch──▶ learner ──losses──▶ rows, in the order of frames ──▶ metrics.csv, other logs, display
     ▲                   │                   ▲     a row with an evaluation waits for it, later rows wait behind it
     └──policy, in place─┴──every `eval_every` frames, a copy of the weights──▶ evaluator, beside the training
                                             └──────────result───────────────────┘ ──▶ checkpoint, best checkpoint
```

The files are the same as if the training had stood still for each evaluation.
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
from typing import TYPE_CHECKING, Any

import torch

from swath.cli import failure, naming, options, parts
from swath.errors import FleetFailed, PlacementFailed, WorkerLate, WorkerLost
from swath.extras import need
from swath.learn import PPO, LearnerConfig, default_config
from swath.report.atomic import replacing
from swath.report.display import Display
from swath.report.sinks import draw_curve
from swath.seeds import derive

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from swath.cli.parts import Saved, Spaces
    from swath.evaluation.evaluator import Evaluator
    from swath.evaluation.result import EvalResult

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
"""What `stats()` of the collector says, and the columns for it."""

SHOWN = {"policy_loss": "policy", "value_loss": "value", "entropy": "entropy", "approx_kl": "kl"}
"""Which of the learner's numbers the display shows, and under which names."""

UNLOGGED = ("eval/step", "eval/policy_version", "eval/duration_s", "eval/fps")
"""Facts of an evaluation that are no results."""

MOST_FOR_EVALUATIONS = 0.25
"""By default no evaluation begins while those before have taken more of the frames, and more of the time."""

NO_FAULT_OF_THE_RUN = (WorkerLost, WorkerLate, PlacementFailed, FleetFailed)
"""What may become of an evaluation without ending the training beside it."""


@dataclass(frozen=True)
class Moment:
    """One moment of the run that is to be written.

    Attributes:
        progress: as it was then.
        metrics: what was measured.
        state: what a checkpoint of that moment holds; `None` for no checkpoint.
        judge: who was asked for an evaluation of it.
    """

    progress: parts.RunProgress
    metrics: dict[str, float]
    state: dict[str, Any] | None = None
    judge: Evaluator | None = None


class Run:
    """One training, from where it stands to its last frame.

    Args:
        config: its options.
        saved: the checkpoint from which it goes on.
        stack: closes what is built.

    Raises:
        UsageError: an option or the env cannot be used, or the checkpoint does not fit.
    """

    def __init__(self, config: options.RunConfig, saved: Saved | None, stack: ExitStack) -> None:
        for name in options.MODULES.keys() & options.logs_named(config.log):
            need(options.MODULES[name], extra=name, why=f"for --log {name}")
        torch.set_num_threads(config.threads)
        spaces, root = parts.spaces_of(config.env, config.env_kwargs), derive(config.seed, "next")
        policy = parts.network_for(config.env, spaces, derive(root, "policy"))
        self.config, self.spaces, self.policy = config, spaces, policy.to(parts.device_named(config.device))
        self.learner = PPO(self.policy, learner_config(config, spaces, derive(root, "global")))
        self.judge = None
        if config.eval_backend != options.NONE:
            self.judge = stack.enter_context(parts.judge_of(config, self.policy))
        step = config.envs * config.workers
        batch = ceil(min(config.batch, config.frames) / step) * step
        sizes = {"frames_per_batch": batch, "total_frames": config.frames, "storing_device": config.device}
        self.collector = stack.enter_context(parts.collector_of(config, self.policy, **sizes))
        self.progress, self._resume_at = parts.RunProgress(), None
        if saved is not None:
            saved.give_weights(self.policy, config.env)
            with parts.fitting(saved.file, f"{config.env} as it is here"):
                self.learner.load_state_dict(saved.state["learner"])
                weights = self.policy.state_dict()
                self.collector.load_state_dict(parts.with_weights(saved.state["collector"], weights))
                torch.set_rng_state(saved.state["random_state"])
            self.progress, self._resume_at = saved.progress, saved.progress.frames
        done = self.progress.frames
        self._end = done + ceil((config.frames - done) / batch) * batch  # that of the last batch
        self._judged_frames, self._judged_seconds = 0.0, 0.0
        self._moments: deque[Moment] = deque()

    @property
    def is_finished(self) -> bool:
        """Whether it has reached its last frame."""
        return self.progress.frames >= self.config.frames

    def train(self, folder: naming.RunFolder, console: Console) -> int:
        """Train until the last frame, or until the batch after which a stop was asked for; return the exit code.

        Raises:
            UsageError: a port is taken, a service begins no run, metrics to go on with are damaged.
        """
        self.folder = folder
        with ExitStack() as stack:
            config = self.config
            details = ("PPO", config.place, f"seed {config.seed}", config.device)
            display = self._display = Display(console, config.env, details, failure.HINT)
            stack.callback(display.close)
            with failure.refusing():
                self._sink = parts.open_logs(self.config.log, folder, self._resume_at, display.print)
            stack.callback(self._sink.close)
            stop = stack.enter_context(failure.StopRequest(display.print))
            if self._resume_at is not None:
                display.print(
                    f"goes on at {self._resume_at:,} frames; simulators are not saved, so episodes begin anew"
                )
            try:
                self._loop(stop)
            finally:
                for moment in self._moments:  # where an error ends the run, what was measured is written
                    self._write(moment, None)
            self._leave_summary()
            with failure.optional(display.print, "curve"):
                draw_curve(folder.curve, folder.metrics, "train/return", "eval/reward", f"PPO on {self.config.env}")
            if self.is_finished and self.config.video and not stop.requested:
                display.set_activity("filming an episode")
                with failure.optional(display.print, "film"):  # it must not cost a run
                    parts.film_episode(self.config, self.policy, folder.video)
        return failure.OK if self.is_finished else stop.exit_code

    def _loop(self, stop: failure.StopRequest) -> None:
        progress, began = self.progress, time.monotonic() - self.progress.seconds
        config = self.config
        gap = max(config.frames // 10, 1) if config.eval_every is None else config.eval_every or inf
        self._show({})
        if progress.frames == 0 and progress.evaluation is None and gap < inf:
            self._note({}, saved=True, judged=True)
        for batch in self.collector:
            losses = self.learner.update(batch)
            self.collector.update_policy_weights_()
            progress.version = self.collector.policy_version
            facts, before = self._show(losses), progress.frames
            progress.frames, progress.seconds = facts["frames"], time.monotonic() - began
            metrics = {"time/seconds": progress.seconds}
            metrics |= {column: facts[name] for name, column in COLUMNS.items() if name in facts}
            metrics |= {f"ppo/{name}": value for name, value in losses.items()}
            stopped = bool(stop.requested)
            due = progress.frames // gap > before // gap and not stopped
            judged = self.is_finished or (due and self._can_afford_evaluation)
            self._note(metrics, saved=due or stopped or self.is_finished, judged=judged)
            if stopped:
                break
        self._settle(wait=True)

    def _show(self, losses: dict[str, float]) -> dict[str, Any]:
        """Show where the run stands, and return what the collector says."""
        facts = self.collector.stats("both")
        shown = {short: losses[name] for name, short in SHOWN.items() if name in losses}
        more = {"total_frames": self._end, "seconds_evaluating": self._judged_seconds}
        self._display.show({**facts, **more}, shown)
        return facts

    @property
    def _can_afford_evaluation(self) -> bool:
        """Whether evaluations took little so far, or the user has said how often they are to be."""
        of_frames = self._judged_frames <= MOST_FOR_EVALUATIONS * self.progress.frames
        of_time = self._judged_seconds <= MOST_FOR_EVALUATIONS * self.progress.seconds
        return self.config.eval_every is not None or of_frames or of_time

    def _note(self, metrics: dict[str, float], *, saved: bool, judged: bool) -> None:
        """Add a row for this moment, with a checkpoint and an evaluation of the policy as it is now if asked."""
        state = None
        if saved:
            state = {
                "config": vars(self.config),
                "spaces": self.spaces,
                "policy": dict(self.policy.state_dict()),
                "learner": self.learner.state_dict(),
                "collector": parts.with_weights(self.collector.state_dict(), None),  # they are the same as "policy"
                "random_state": torch.get_rng_state(),
                "versions": parts.versions(),
            }
        if judge := self.judge if judged else None:
            self._settle(wait=True)  # one at a time
            judge.trigger_eval(self.policy, self.progress.frames)
        self._moments.append(Moment(replace(self.progress), metrics, deepcopy(state), judge))
        self._settle(wait=False)

    def _settle(self, *, wait: bool) -> None:
        """Write what can be written, or all: a moment with an evaluation waits for it, and later ones behind it."""
        while self._moments:
            moment, result = self._moments[0], None
            if judge := moment.judge:
                at = f"{moment.progress.frames:,} frames"
                if wait:
                    self._display.set_activity(f"waiting for the evaluation at {at}")
                try:
                    result = judge.wait() if wait else judge.poll()
                    if result is None:
                        return
                except NO_FAULT_OF_THE_RUN as error:
                    self._display.print(f"no evaluation at {at}: {failure.one_line(error)}")
            self._write(self._moments.popleft(), result)

    def _write(self, moment: Moment, result: EvalResult | None) -> None:
        """The row first: a resumed run drops rows beyond its checkpoint, and can add none."""
        progress, is_best = self.progress, False
        if result is not None:
            self._judged_frames += result["eval/frames"]
            self._judged_seconds += result["eval/duration_s"]
            result["eval/policy_version"] = moment.progress.version
            moment.metrics.update({name: value for name, value in result.items() if name not in UNLOGGED})
            self._display.show_evaluation(result)
            is_best = bool(result["eval/reward"] > progress.best)
            progress.evaluation, progress.best = result, max(progress.best, result["eval/reward"])
        if moment.metrics:
            self._sink.log(moment.progress.frames, moment.metrics)
        if moment.state is not None:
            now = replace(moment.progress, evaluation=progress.evaluation, best=progress.best)
            for file in (self.folder.best, self.folder.checkpoint) if is_best else (self.folder.checkpoint,):
                parts.save_run(file, moment.state, now)

    def _leave_summary(self) -> None:
        """Write the run in figures; numbers that are not finite are null."""
        progress, evaluation = self.progress, None
        if result := progress.evaluation:
            episodes = {name: getattr(result, name).tolist() for name in ("returns", "lengths", "seeds")}
            figures = {name.partition("/")[2]: _finite(value) for name, value in result.items()}
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
            "best_evaluation": _finite(progress.best),
            "config": vars(self.config),
            "versions": parts.versions(),
        }
        with replacing(self.folder.summary) as draft:
            draft.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def run_training(
    console: Console, config: options.RunConfig | None, path: Path | None, given: dict[str, Any], out: Path | None
) -> int:
    """Begin a run, or go on with one, and return the exit code.

    Args:
        console: where it is shown.
        config: of a new run.
        path: the folder or a checkpoint of a run to go on with.
        given: what is to be other than in that run.
        out: the folder of a new run, or where a copy of the run goes on.

    Raises:
        UsageError: an option, the env, the folder or the checkpoint cannot be used; nothing has been started.
        BrokenOffError: a full disk, full memory, diverged numbers or the env ended the run.
    """
    saved = folder = None
    if path is not None:
        with failure.refusing():
            saved = parts.open_run(naming.find_checkpoint(path))
        parts.require_safe_env(saved, given.get("env"), naming.resume_line(saved.config.env, path))
        config, done = saved.config.changed(given), saved.progress.frames
        if done >= config.frames:
            what = f"{done:,} of {config.frames:,} frames are done; give more with --frames"
            raise failure.UsageError(f"--resume {path}: {what}")
    assert config is not None
    with failure.broken_off(config.env, lambda: folder.way_on(config.env) if folder else ""), ExitStack() as stack:
        with failure.refusing():
            run = Run(config, saved, stack)
        old = None if saved is None else naming.RunFolder(saved.file.parent)
        folder = old if old and out is None else naming.new_folder(out, config.env, config.seed)
        if old and out is not None and old.metrics.is_file():
            shutil.copyfile(old.metrics, folder.metrics)
        with naming.held(folder.path, "swath train"):
            code = run.train(folder, console)
    if run.is_finished and run.progress.evaluation:
        console.print(parts.eval_table({f"at {run.progress.evaluation.step:,} frames": run.progress.evaluation}))
    if not run.is_finished:
        way_on = naming.resume_line(config.env, folder.path)
        console.print(f"stopped at {run.progress.frames:,} frames; to go on:\n  {way_on}\n", soft_wrap=True)
    names = "  ".join(sorted(each.name for each in folder.path.iterdir()))
    console.print(f"results in {folder.path}:\n  {names}", soft_wrap=True)
    if run.is_finished:
        again = ["--env", config.env] if ":" in config.env else []
        console.print(f"to evaluate it: {failure.command_line('eval', folder.path, *again)}", soft_wrap=True)
    return code


def learner_config(config: options.RunConfig, spaces: Spaces, seed: int) -> LearnerConfig:
    """What suits the env, changed by what the user set.

    Raises:
        UsageError: an unknown setting.
    """
    names = {field.name for field in fields(LearnerConfig)} - {"total_frames", "seed"}  # --frames and --seed
    if unknown := config.ppo.keys() - names:
        known = f"PPO has the settings {', '.join(sorted(names))}"
        raise failure.UsageError(f"--ppo.{', '.join(sorted(unknown))}: {known}")
    return replace(default_config(*spaces), total_frames=config.frames, seed=seed, **config.ppo)


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
