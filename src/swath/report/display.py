"""The display of a running collection: a live view in a terminal, lines elsewhere.

```
 CartPole-v1                                       PPO, 2 process workers, seed 0
 ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━━━━━

 65,536 of 100,000 frames (66 %), 4,812 frames/s, 0:07 left
 return 312.4, length 312
 evaluation 475.3 [451.2, 498], at step 61,440, 20 episodes
 waiting 38 %
 version 31, 0 behind, 2 of 2 workers

 worker  state          life      frames  version  behind
      0  up                0      32,768       31       0
      1  up                0      32,768       31       0
```

`Progress` shows a collector of a script: it calls `stats()` twice a second, in a thread. If the terminal fails, the
view ends, and the collector continues.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from math import inf, isfinite, isnan, nan
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

LINES_PER_RUN, SECONDS_BETWEEN_LINES = 20, 60.0
MAX_COLUMNS = 78
MAX_WORKERS = 12
"""Number of workers in the view: first workers that are not up; the others are counted."""

COLUMNS = {"state": "state", "life": "life", "frames": "frames", "version": "policy_version", "behind": "staleness"}
"""Columns of the table of workers, and the statistics in them."""

FAILURE_COUNTS = ("restarts", "workers_lost", "late", "fragments_lost", "env_errors", "batches_dropped")
MEAN = "/reward"
"""The end of the name of an evaluation's mean return, after the prefix of all its names."""


class Display:
    """The display of a run: a live view in a terminal, lines elsewhere. Used by one thread at a time.

    Lines are printed every twentieth of the run or every minute, for each evaluation, and at the end.

    Args:
        console: rich's console.
        name: name of the run, for example an id of an env.
        details: a few words each, for example "8 envs".
        hint: last line of the view, unless `set_activity` replaces it.
    """

    def __init__(self, console: Console, name: str, details: Sequence[str] = (), hint: str = "") -> None:
        self._console, self._name, self._details, self._hint = console, name, ", ".join(details), hint
        self._stats: Mapping[str, Any] = {}
        self._lines: list[str] = []
        self._printed: list[str] = []
        self._evaluation, self._next_line = "", (1.0, SECONDS_BETWEEN_LINES)
        draws = console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
        self._live = self._start() if draws else None
        if self._live is None and self._details:
            self.print(f"{name}: {self._details}")

    def show(self, stats: Mapping[str, Any], losses: Mapping[str, float] | None = None) -> None:
        """Show the state of the run: redraw, or print a line if it is time for one.

        Args:
            stats: `stats("both")` of the collector.
            losses: losses of the learner.
        """
        self._stats, self._lines = stats, stats_lines(stats, losses or {})
        frames, seconds = self._next_line
        self.set_activity("")
        is_time = (stats.get("total_frames") and stats["frames"] >= frames) or stats.get("seconds", 0.0) >= seconds
        if self._live is None and is_time:
            self._print_stats()

    def show_evaluation(self, stats: Mapping[str, Any]) -> None:
        """Show an evaluation, unless it was shown already.

        Args:
            stats: the evaluation's result, or `stats()` of an evaluator.
        """
        line = evaluation_line(stats)
        if line in ("", self._evaluation):
            return
        self._evaluation = line
        self.set_activity("")
        if self._live is None:
            self.print(f"{self._name}: {line}")

    def print(self, text: str) -> None:
        """Print a permanent line."""
        self._console.print(text, soft_wrap=self._live is None, markup=False, highlight=False, emoji=False)
        self._console.file.flush()

    def set_activity(self, text: str) -> None:
        """Redraw the view with the present activity in its last line; empty for the hint."""
        if self._live is None:
            return
        if self._console.width < self._width:  # the terminal has wrapped the lines, which rich does not notice
            self._live.stop()
            self._console.clear()
            self._live = self._start()
        self._live.update(self._view(text or self._hint), refresh=True)

    def close(self) -> None:
        """Draw the last view and release the terminal. A second call does nothing."""
        if self._live is None:
            if self._lines != self._printed:
                self._print_stats()
        elif self._live.is_started:
            self._live.update(self._view(""))
            self._live.stop()  # draws the last view

    def _start(self) -> Live:
        self._width = self._console.width
        live = Live(self._view(self._hint), console=self._console, auto_refresh=False)
        live.start(refresh=True)
        return live

    def _print_stats(self) -> None:
        frames, total = self._stats["frames"], self._stats.get("total_frames") or 0
        next_frames = inf if frames >= total else min(frames + max(total // LINES_PER_RUN, 1), total)
        self._next_line = next_frames, self._stats.get("seconds", 0.0) + SECONDS_BETWEEN_LINES
        self._printed = self._lines
        self.print(f"{self._name}: {', '.join(self._printed)}")

    def _view(self, foot: str) -> RenderableType:
        width = min(MAX_COLUMNS, self._console.width - 2)
        head = Table.grid("", Column(justify="right", style="dim"), expand=True)
        head.width = width
        head.add_row(Text(self._name, style="bold"), self._details)
        parts: list[RenderableType] = [head]
        if total := self._stats.get("total_frames"):
            parts.append(ProgressBar(total, min(self._stats["frames"], total), width=width))
        parts += [Text(line, overflow="ellipsis", no_wrap=True) for line in ("", *self._lines, self._evaluation)]
        if "workers" in self._stats:
            parts.append(_worker_table(self._stats))
        return Group(*parts, Text(foot, style="dim"))


def stats_lines(stats: Mapping[str, Any], losses: Mapping[str, float]) -> list[str]:
    """Return `stats()` of a collector, and the learner's losses, in a few lines."""
    frames, total, fps = stats["frames"], stats.get("total_frames"), stats.get("fps", 0.0)
    seconds, waiting = stats.get("seconds", 0.0), stats.get("seconds_waiting", 0.0)
    of_total = f" of {total:,} frames ({100 * min(frames / total, 1):.0f} %)" if total else " frames"
    remaining = f", {duration(max(total - frames, 0) / fps)} left" if total and fps else ""
    activity = "waiting" if "workers" in stats else "collecting"  # without workers the draw itself collects
    evaluating = stats.get("seconds_evaluating")
    evaluation = f", evaluating {100 * evaluating / seconds:.0f} %" if seconds and evaluating else ""
    weights = f"version {stats.get('policy_version', 0):,}"
    if "workers" in stats:
        weights += f", {stats.get('staleness', 0):,} behind, {stats['workers_alive']} of {stats['workers']} workers"
    return [
        f"{frames:,}{of_total}, {fps:,.0f} frames/s{remaining}",
        f"return {number(stats.get('episode_return', nan))}, length {number(stats.get('episode_length', nan))}",
        *([", ".join(f"{name} {number(value)}" for name, value in losses.items())] if losses else []),
        *([f"{activity} {100 * min(waiting / seconds, 1):.0f} %{evaluation}"] if seconds else []),
        weights,
        *(f"{name.replace('_', ' ')} {stats[name]:,}" for name in FAILURE_COUNTS if stats.get(name)),
        *([str(stats["error"])] if stats.get("error") else []),
    ]


def evaluation_line(stats: Mapping[str, Any]) -> str:
    """Return a line about an evaluation, `evaluation 475.3 [451, 498], at step 512, 20 episodes`, or `""`."""
    prefix = min((name.removesuffix(MEAN) for name in stats if name.endswith(MEAN)), key=len, default=None)
    if prefix is None:
        return ""
    mean, low, high = (float(stats.get(f"{prefix}{MEAN}{end}", nan)) for end in ("", "_ci_low", "_ci_high"))
    interval = "" if isnan(low) else f" [{number(low)}, {number(high)}]"
    step, episodes = stats.get(f"{prefix}/step", 0), stats.get(f"{prefix}/num_episodes", 0)
    ending = "" if episodes == 1 else "s"
    return f"evaluation {number(mean)}{interval}, at step {step:,}, {episodes:,} episode{ending}"


def _worker_table(stats: Mapping[str, Any]) -> RenderableType:
    workers = sorted(int(match[1]) for name in stats if (match := re.fullmatch(r"worker_(\d+)/frames", name)))
    first = sorted(workers, key=lambda worker: stats[f"worker_{worker}/state"] == "up")[:MAX_WORKERS]
    columns = [Column(name, justify="left" if name == "state" else "right") for name in ("worker", *COLUMNS)]
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    for worker in sorted(first):
        values = [stats.get(f"worker_{worker}/{name}", "-") for name in COLUMNS.values()]
        table.add_row(str(worker), *(f"{value:,}" if isinstance(value, int) else str(value) for value in values))
    more = len(workers) - len(first)
    return Group(table, Text(f"and {more:,} more", style="dim")) if more else table


def number(value: float) -> str:
    """Format a number with three or four digits: `12,345`, `475.3`, `0.0123`, `1.2e-05`; `-` for NaN."""
    if isnan(value):
        return "-"
    if not isfinite(value) or value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Format seconds as `0:21`, `12:05`, `1:02:03`; `-` if they are not finite."""
    if not isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


EVERY_S, CLOSE_LIMIT_S = 0.5, 2.0
FAILURES = (Exception, SystemExit)
"""Exceptions of a terminal or pipe that fails. Rich raises `SystemExit` when the reader of a pipe is gone."""

_log = logging.getLogger("swath")


class Progress(AbstractContextManager["Progress"]):
    """A view of a running collector: workers with their lives, frames/s, staleness, waiting time, evaluations.

    Pass it to a collector as `progress=`, or let it `watch` one. It shows one collector at a time, until its shutdown:
    in a terminal as a live view, elsewhere as lines now and then.

    Args:
        console: rich's console; `None` for standard output.
        evaluator: an `Evaluator` whose newest result is shown, too. It is not kept alive.
        every_s: seconds between two views.

    Raises:
        ValueError: `every_s` is not positive.
    """

    def __init__(self, console: Console | None = None, *, evaluator: Any = None, every_s: float = EVERY_S) -> None:
        if not every_s > 0:
            raise ValueError(f"every_s={every_s!r} must be greater than 0")
        self._console, self._every_s = console, every_s
        self._evaluator: Callable[[], Any] = (lambda: None) if evaluator is None else weakref.ref(evaluator)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self, collector: Any) -> Self:
        """Start to show a collector, or another object with a collector's `stats`. It is not kept alive.

        Raises:
            RuntimeError: the view shows another one.
        """
        self.require_idle()
        self._ended = threading.Event()
        arguments = (type(collector).__name__, weakref.ref(collector), self._ended)
        self._thread = threading.Thread(target=self._run, args=arguments, name="swath-progress", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        return self

    def require_idle(self) -> None:
        """Raise `RuntimeError` if the view shows a collector."""
        if self._thread is not None and self._thread.is_alive() and not self._ended.is_set():
            raise RuntimeError("this Progress watches another collector; make one for each, or close() it first")

    def close(self) -> None:
        """Draw the last view and release the terminal, unless it hangs. A second call does nothing."""
        self._ended.set()
        atexit.unregister(self.close)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_LIMIT_S)

    def __exit__(self, *_: object) -> None:
        """Close the view."""
        self.close()

    def _run(self, name: str, collector: Callable[[], Any], ended: threading.Event) -> None:
        """Draw in the view's thread until the end, and once more after it."""
        display: Display | None = None
        try:
            display = Display(self._console or Console(), name)
            while self._show(display, collector()) and not ended.wait(self._every_s):
                pass
            self._show(display, collector())
        except FAILURES as error:
            _log.warning("the view of %s has ended (%r); it collects as before", name, error)
        finally:
            if display is not None:
                with suppress(*FAILURES):
                    display.close()

    def _show(self, display: Display, collector: Any) -> bool:
        """Show the stats of the collector, and return whether it still exists."""
        if collector is None:
            return False
        if (evaluator := self._evaluator()) is not None:
            display.show_evaluation(evaluator.stats())
        display.show(collector.stats("both"))
        return True


def as_progress(progress: Any) -> Progress | None:
    """Return the view for the argument `progress` of a collector.

    Raises:
        TypeError: another type than a bool, `None` or a `Progress`.
        RuntimeError: the view shows another collector.
    """
    if progress is None or isinstance(progress, bool):
        return Progress() if progress else None
    if not isinstance(progress, Progress):
        raise TypeError(f"progress={progress!r} must be True, False or a swath.Progress")
    progress.require_idle()
    return progress
