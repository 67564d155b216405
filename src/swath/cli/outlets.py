"""Where a run's numbers go while it runs: the files and the display.

```
 numbers ─┬─▶ metrics.csv                 the run's own record: a run that cannot write it ends
          ├─▶ other logs, each apart      one that fails is left out from then on, which is said
          └─▶ display
```
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from swath.cli.logs import opened_logs
from swath.cli.places import place_words
from swath.cli.stop import HINT
from swath.report.csv_sink import CsvSink
from swath.report.detached_sink import DetachedSink
from swath.report.display import Display
from swath.report.sink import Sink, SinkGroup

if TYPE_CHECKING:
    from rich.console import Console

    from swath.cli.config import RunConfig
    from swath.cli.folder import RunFolder


@dataclass(frozen=True)
class Outlets:
    """The open outlets of one run; its `with` block closes them."""

    sink: Sink
    display: Display

    @classmethod
    def open(cls, config: RunConfig, folder: RunFolder, console: Console, resume_at: int | None) -> Self:
        """Open what else takes the numbers, the metrics file, and, when nothing asks the user any more, the display.

        Raises:
            OSError: a file cannot be written, a port is taken, a service begins no run.
            ValueError: the metrics to go on with are damaged.
        """
        remarks: list[str] = []
        with ExitStack() as opened:
            logs = opened_logs(config.log, folder, resume_at, remarks.append)
            for log in logs.values():
                opened.callback(log.close)
            metrics = CsvSink(folder.metrics, resume_at)
            opened.callback(metrics.close)
            display = Display(console, config.env, run_details(config), HINT)
            opened.pop_all()
        for remark in remarks:
            display.say(remark)
        apart = [DetachedSink(log, partial(_say_lost, name, display)) for name, log in logs.items()]
        return cls(SinkGroup([metrics, *apart]), display)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            stack.callback(self.sink.close)
            stack.callback(self.display.close)


def _say_lost(log: str, display: Display, error: Exception) -> None:
    said = " ".join(str(error).split()) or type(error).__name__
    display.say(f"{log} gets no more numbers, metrics.csv has them all: {said}")


def run_details(config: RunConfig) -> tuple[str, ...]:
    """What the display says of the run as a whole."""
    place = place_words(config.workers, config.envs, config.backend)
    return "PPO", place, f"seed {config.seed}", config.device
