"""What all collectors share: they are drawn from, measured and shut down in the same way."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn, Self

from swath.collect.deliver import Drawn
from swath.report.progress import Progress


class Batches(Iterator[Any]):
    """An iterator on a collector's one stream. An exception does not end it: draw again."""

    def __init__(self, draw: Callable[[], Drawn]) -> None:
        self._draw = draw

    def __next__(self) -> Any:
        """The next batch, or `None` where batches are written to a replay buffer."""
        drawn = self._draw()
        if drawn.ended:
            raise StopIteration
        return drawn.batch


class BaseCollector(ABC):
    """Base of all collectors; none derives from another."""

    _progress: Progress | None = None

    def _begin_progress(self, progress: Progress | None) -> None:
        """Be shown, if that is wished."""
        if progress is not None:
            self._progress = progress.watch(self)

    def _end_progress(self) -> None:
        """Leave the last picture, before anything ends."""
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.close()

    @abstractmethod
    def _draw(self) -> Drawn:
        """The next batch, or the end of the run."""

    @abstractmethod
    def shutdown(self, timeout: float | None = None) -> None:
        """Stop, and leave nothing behind."""

    @property
    @abstractmethod
    def total_frames(self) -> int:
        """Frames of a run; -1 for no end."""

    @property
    @abstractmethod
    def requested_frames_per_batch(self) -> int:
        """Frames of a batch."""

    @property
    @abstractmethod
    def _whole_episodes(self) -> bool:
        """Whether batches are made of whole episodes, so that their number is unknown."""

    def __iter__(self) -> Iterator[Any]:
        """An iterator on the one stream of this collector: leaving a loop loses nothing, a second loop goes on."""
        return Batches(self._draw)

    def iterator(self) -> Iterator[Any]:
        """The same as `iter(self)`."""
        return Batches(self._draw)

    def next(self) -> Any:
        """The next batch; `None` at the end, and where batches are written to a replay buffer."""
        return self._draw().batch

    def __len__(self) -> int:
        """How many batches the run has.

        Raises:
            TypeError: the run has no end, or batches are made of whole episodes.
        """
        if self.total_frames < 0 or self._whole_episodes:
            raise TypeError("this collector has no len(): its run is endless, or made of whole episodes")
        return math.ceil(self.total_frames / self.requested_frames_per_batch)

    def __bool__(self) -> bool:
        """A collector is true, however many batches it has."""
        return True

    def __reduce__(self) -> NoReturn:
        """Refused: the envs and threads of a collector exist once, where it was built.

        Raises:
            TypeError: always; the message names the way out.
        """
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled; build another one where it is needed, "
            "and carry its state over with state_dict() and load_state_dict()"
        )

    def __enter__(self) -> Self:
        """The collector itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shut down."""
        self.shutdown()
