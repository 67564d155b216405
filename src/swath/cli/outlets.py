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

from swath.cli.failure import optional
from swath.cli.logs import TENSORBOARD, logs_named, opened_log
from swath.cli.stop import HINT
from swath.cli.words import place_words
from swath.report.display import Display
from swath.report.sinks import CsvSink, DetachedSink, Sink, SinkGroup

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
        """Open the logs, the metrics file, and last the display.

        Without `--log` the numbers go to TensorBoard's events, unless that is missing, which is said.

        Raises:
            OSError: a file cannot be written, a port is taken, a service begins no run.
            ValueError: the metrics to go on with are damaged.
        """
        remarks: list[str] = []
        logs: dict[str, Sink] = {}
        with ExitStack() as opened:
            if config.log is None:
                with optional(remarks.append, "TensorBoard events"):
                    logs[TENSORBOARD] = opened_log(TENSORBOARD, "", folder, resume_at)
            for name, setting in logs_named(config.log).items():
                logs[name] = opened_log(name, setting, folder, resume_at)
                opened.callback(logs[name].close)
                remarks.append(f"{name}: {getattr(logs[name], 'place', folder.events)}")
            metrics = CsvSink(folder.metrics, resume_at)
            opened.callback(metrics.close)
            place = place_words(config.workers, config.envs, config.backend)
            display = Display(console, config.env, ("PPO", place, f"seed {config.seed}", config.device), HINT)
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
