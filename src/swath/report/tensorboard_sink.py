"""Metrics as TensorBoard events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swath.extras import need

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class TensorBoardSink:
    """Writes scalars, one tag per metric, with the frame count as the step.

    Args:
        folder: where the event files go; `tensorboard --logdir` takes it or a folder above it.
        resume_at: frame count at which a run goes on; TensorBoard then hides what lies beyond it in older event files.

    Raises:
        ImportError: TensorBoard is not installed; the message names the extra.
    """

    def __init__(self, folder: str | Path, resume_at: int | None = None) -> None:
        need("tensorboard", extra="tensorboard", why="to write TensorBoard events")
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  an extra, and slow to import

        purge = None if resume_at is None else resume_at + 1
        self._writer = SummaryWriter(str(folder), purge_step=purge)

    def log(self, frames: int, metrics: Mapping[str, float]) -> None:
        """Add one scalar per metric; they reach the disk within two minutes, or at `close()`."""
        for tag, value in metrics.items():
            self._writer.add_scalar(tag, value, frames)

    def close(self) -> None:
        """Write what is held back and close the file."""
        self._writer.close()
