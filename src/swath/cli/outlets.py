"""Where a run's numbers go while it runs: the files and the display."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from swath.cli.logs import opened_logs
from swath.cli.places import place_words
from swath.report.csv_sink import CsvSink
from swath.report.live_display import create_display
from swath.report.sink import Sink, SinkGroup
from swath.report.status import RunTitle

if TYPE_CHECKING:
    from rich.console import Console

    from swath.cli.config import RunConfig
    from swath.cli.folder import RunFolder
    from swath.report.display import Display


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
            sinks: list[Sink] = opened_logs(config.log, folder, resume_at, remarks.append)
            for sink in sinks:
                opened.callback(sink.close)
            sinks.insert(0, CsvSink(folder.metrics, resume_at))
            opened.callback(sinks[0].close)
            display = create_display(console, run_title(config))
            opened.pop_all()
        for remark in remarks:
            display.say(remark)
        return cls(SinkGroup(sinks), display)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            stack.callback(self.sink.close)
            stack.callback(self.display.close)


def run_title(config: RunConfig) -> RunTitle:
    """What the display says of the run as a whole."""
    place = place_words(config.workers, config.envs, config.backend)
    return RunTitle(config.env, ("PPO", place, f"seed {config.seed}", config.device), config.frames)
