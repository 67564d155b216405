"""What a run shows while it goes on: a picture in a terminal, now and then a line elsewhere.

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

`Progress` shows a collector at work, for scripts: it asks `stats()` twice a second, in a thread. When the terminal
fails, the view ends, and the collector goes on.
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
import weakref
from contextlib import AbstractContextManager, suppress
from math import inf, isfinite, isnan, nan
from typing import TYPE_CHECKING, Any, Self

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.console import Console, RenderableType

LINES_PER_RUN, SECONDS_BETWEEN_LINES = 20, 60.0
MOST_COLUMNS = 78
MOST_WORKERS = 12
"""Workers shown in a picture. Those that are not up come first; the others are counted."""

OF_A_WORKER = {"state": "state", "life": "life", "frames": "frames", "version": "policy_version", "behind": "staleness"}
"""Columns of the table of workers, and the facts in them."""

TROUBLE = ("restarts", "workers_lost", "late", "fragments_lost", "env_errors", "batches_dropped")
MEAN = "/reward"
"""How the name of an evaluation's mean return ends, after the prefix of all its names."""


class Display:
    """Shows a run. In a terminal it redraws a picture; elsewhere it prints lines. Used by one thread at a time.

    Lines come every twentieth of the run or every minute, for each evaluation, and at the end.

    Args:
        console: where it is shown.
        name: of what is shown, such as an env's id.
        details: a few words each, such as "8 envs".
        hint: the last line of the picture while nothing else is said there.
    """

    def __init__(self, console: Console, name: str, details: Sequence[str] = (), hint: str = "") -> None:
        self._console, self._name, self._details, self._hint = console, name, ", ".join(details), hint
        self._facts: Mapping[str, Any] = {}
        self._lines: list[str] = []
        self._printed: list[str] = []
        self._evaluation, self._due = "", (1.0, SECONDS_BETWEEN_LINES)
        draws = console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only
        self._live = self._begun() if draws else None
        if self._live is None and self._details:
            self.say(f"{name}: {self._details}")

    def show(self, facts: Mapping[str, Any], losses: Mapping[str, float] | None = None) -> None:
        """Show where the run stands: redraw, or print a line if one is due.

        Args:
            facts: `stats("both")` of what collects.
            losses: of the learner.
        """
        self._facts, self._lines = facts, fact_lines(facts, losses or {})
        frames, seconds = self._due
        self.doing("")
        is_due = (facts.get("total_frames") and facts["frames"] >= frames) or facts.get("seconds", 0.0) >= seconds
        if self._live is None and is_due:
            self._print_facts()

    def evaluated(self, facts: Mapping[str, Any]) -> None:
        """Show an evaluation, unless it is the one that was shown before.

        Args:
            facts: the evaluation's result, or `stats()` of an evaluator.
        """
        words = evaluation_words(facts)
        if words in ("", self._evaluation):
            return
        self._evaluation = words
        self.doing("")
        if self._live is None:
            self.say(f"{self._name}: {words}")

    def say(self, text: str) -> None:
        """Print one line, which stays."""
        self._console.print(text, soft_wrap=self._live is None, markup=False, highlight=False, emoji=False)
        self._console.file.flush()

    def doing(self, text: str) -> None:
        """Say in the picture's last line what goes on just now; empty for the usual hint."""
        if self._live is None:
            return
        if self._console.width < self._width:  # the terminal has broken the lines that are there, which rich cannot see
            self._live.stop()
            self._console.clear()
            self._live = self._begun()
        self._live.update(self._picture(text or self._hint), refresh=True)

    def close(self) -> None:
        """Leave what was shown last and give the terminal back. Twice is fine."""
        if self._live is None:
            if self._lines != self._printed:
                self._print_facts()
        elif self._live.is_started:
            self._live.update(self._picture(""))
            self._live.stop()  # which draws it

    def _begun(self) -> Live:
        self._width = self._console.width
        live = Live(self._picture(self._hint), console=self._console, auto_refresh=False)
        live.start(refresh=True)
        return live

    def _print_facts(self) -> None:
        frames, total = self._facts["frames"], self._facts.get("total_frames") or 0
        at = inf if frames >= total else min(frames + max(total // LINES_PER_RUN, 1), total)
        self._due = at, self._facts.get("seconds", 0.0) + SECONDS_BETWEEN_LINES
        self._printed = self._lines
        self.say(f"{self._name}: {', '.join(self._printed)}")

    def _picture(self, foot: str) -> RenderableType:
        width = min(MOST_COLUMNS, self._console.width - 2)
        head = Table.grid("", Column(justify="right", style="dim"), expand=True)
        head.width = width
        head.add_row(Text(self._name, style="bold"), self._details)
        parts: list[RenderableType] = [head]
        if total := self._facts.get("total_frames"):
            parts.append(ProgressBar(total, min(self._facts["frames"], total), width=width))
        parts += [Text(line, overflow="ellipsis", no_wrap=True) for line in ("", *self._lines, self._evaluation)]
        if "workers" in self._facts:
            parts.append(_worker_table(self._facts))
        return Group(*parts, Text(foot, style="dim"))


def fact_lines(facts: Mapping[str, Any], losses: Mapping[str, float]) -> list[str]:
    """`stats()` of what collects, and the learner's losses, in a few lines."""
    frames, total, fps = facts["frames"], facts.get("total_frames"), facts.get("fps", 0.0)
    seconds, waiting = facts.get("seconds", 0.0), facts.get("seconds_waiting", 0.0)
    of_total = f" of {total:,} frames ({100 * min(frames / total, 1):.0f} %)" if total else " frames"
    left = f", {duration(max(total - frames, 0) / fps)} left" if total and fps else ""
    during = "waiting" if "workers" in facts else "collecting"  # in this process a draw is the collecting itself
    judged = facts.get("seconds_evaluating")
    judging = f", evaluating {100 * judged / seconds:.0f} %" if seconds and judged else ""
    weights = f"version {facts.get('policy_version', 0):,}"
    if "workers" in facts:
        weights += f", {facts.get('staleness', 0):,} behind, {facts['workers_alive']} of {facts['workers']} workers"
    return [
        f"{frames:,}{of_total}, {fps:,.0f} frames/s{left}",
        f"return {number(facts.get('episode_return', nan))}, length {number(facts.get('episode_length', nan))}",
        *([", ".join(f"{name} {number(value)}" for name, value in losses.items())] if losses else []),
        *([f"{during} {100 * min(waiting / seconds, 1):.0f} %{judging}"] if seconds else []),
        weights,
        *(f"{name.replace('_', ' ')} {facts[name]:,}" for name in TROUBLE if facts.get(name)),
        *([str(facts["error"])] if facts.get("error") else []),
    ]


def evaluation_words(facts: Mapping[str, Any]) -> str:
    """An evaluation in a line: `evaluation 475.3 [451, 498], at step 512, 20 episodes`; empty if there is none."""
    prefix = min((name.removesuffix(MEAN) for name in facts if name.endswith(MEAN)), key=len, default=None)
    if prefix is None:
        return ""
    mean, low, high = (float(facts.get(f"{prefix}{MEAN}{end}", nan)) for end in ("", "_ci_low", "_ci_high"))
    interval = "" if isnan(low) else f" [{number(low)}, {number(high)}]"
    step, episodes = facts.get(f"{prefix}/step", 0), facts.get(f"{prefix}/num_episodes", 0)
    return f"evaluation {number(mean)}{interval}, at step {step:,}, {episodes:,} episode{'s' * (episodes != 1)}"


def _worker_table(facts: Mapping[str, Any]) -> RenderableType:
    workers = sorted(int(found[1]) for name in facts if (found := re.fullmatch(r"worker_(\d+)/frames", name)))
    first = sorted(workers, key=lambda worker: facts[f"worker_{worker}/state"] == "up")[:MOST_WORKERS]
    columns = [Column(name, justify="left" if name == "state" else "right") for name in ("worker", *OF_A_WORKER)]
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    for worker in sorted(first):
        values = [facts.get(f"worker_{worker}/{name}", "-") for name in OF_A_WORKER.values()]
        table.add_row(str(worker), *(f"{value:,}" if isinstance(value, int) else str(value) for value in values))
    more = len(workers) - len(first)
    return Group(table, Text(f"and {more:,} more", style="dim")) if more else table


def number(value: float) -> str:
    """Four significant digits, thousands separated: `12,345`, `475.3`, `0.0123`, `1.2e-05`; `-` for NaN."""
    if isnan(value):
        return "-"
    if not isfinite(value) or value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """`0:21`, `12:05`, `1:02:03`; `-` if it is not known."""
    if not isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


EVERY_S, GOODBYE_S = 0.5, 2.0
FAILURES = (Exception, SystemExit)
"""What a terminal or pipe that fails may raise. Rich asks the process to end when nobody reads a pipe any more."""

_log = logging.getLogger("swath")


class Progress(AbstractContextManager["Progress"]):
    """Shows a collector while it works: workers with their lives, frames/s, staleness, waiting time, evaluations.

    Hand it to a collector as `progress=`, or let it `watch` one. It shows one at a time, until that is shut down. In a
    terminal it draws a picture, elsewhere it prints a line now and then.

    Args:
        console: rich's console to show it on; `None` for standard output.
        evaluator: an `Evaluator` whose newest result is shown, too. It is not kept alive.
        every_s: seconds from one picture to the next.

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
        """Show this collector from now on, or anything else with a collector's `stats`. It is not kept alive.

        Raises:
            RuntimeError: another one is being watched.
        """
        self.require_free()
        self._ended = threading.Event()
        arguments = (type(collector).__name__, weakref.ref(collector), self._ended)
        self._thread = threading.Thread(target=self._run, args=arguments, name="swath-progress", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        return self

    def require_free(self) -> None:
        """Raise `RuntimeError` if it is watching something."""
        if self._thread is not None and self._thread.is_alive() and not self._ended.is_set():
            raise RuntimeError("this Progress watches another collector; make one for each, or close() it first")

    def close(self) -> None:
        """Leave the last picture and give the terminal back; a terminal that hangs is left alone. Twice is fine."""
        self._ended.set()
        atexit.unregister(self.close)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(GOODBYE_S)

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _run(self, name: str, collector: Callable[[], Any], ended: threading.Event) -> None:
        """Draw until the end, in the view's own thread, and once more then."""
        from rich.console import Console  # noqa: PLC0415  collectors that nobody watches need no rich

        from swath.report.display import Display  # noqa: PLC0415  likewise

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
        """Whether there is still something to look at."""
        if collector is None:
            return False
        if (evaluator := self._evaluator()) is not None:
            display.evaluated(evaluator.stats())
        display.show(collector.stats("both"))
        return True


def as_progress(given: Any) -> Progress | None:
    """What the argument `progress` of a collector means.

    Raises:
        TypeError: it is neither a bool, nor `None`, nor a `Progress`.
        RuntimeError: it watches another collector.
    """
    if given is None or isinstance(given, bool):
        return Progress() if given else None
    if not isinstance(given, Progress):
        raise TypeError(f"progress={given!r} must be True, False or a swath.Progress")
    given.require_free()
    return given
