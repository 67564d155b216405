"""Where a run's numbers go while it runs: the files and the display."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from swath.cli.failure import told_if_missing
from swath.cli.places import place_words
from swath.report.csv_sink import CsvSink
from swath.report.live_display import create_display
from swath.report.sink import Sink, SinkGroup
from swath.report.status import RunTitle
from swath.report.tensorboard_sink import TensorBoardSink

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
        """Open metrics file, TensorBoard events (if the extra is there, else this is said) and display.

        Raises:
            OSError: a file cannot be written.
            ValueError: the metrics to go on with are damaged.
        """
        with ExitStack() as opened:
            display = create_display(console, run_title(config))
            opened.callback(display.close)
            sinks: list[Sink] = [CsvSink(folder.metrics, resume_at)]
            opened.callback(sinks[0].close)
            with told_if_missing(display.say, "TensorBoard events"):
                sinks.append(TensorBoardSink(folder.events, resume_at))
            opened.pop_all()
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
