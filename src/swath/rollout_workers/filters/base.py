"""What a filter can do, and the one that does nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any, Self

import numpy as np


class Filter(ABC):
    """Turns observations into what the policy sees, and may learn from them on the way.

    What it has learnt since `reset_buffer` stands in a buffer, too: that is what workers send each other. A filter that
    learns nothing needs `__call__` alone.
    """

    _guard: AbstractContextManager[Any] = nullcontext()
    """Held while what was learnt changes or is copied, where several threads may ask."""

    @abstractmethod
    def __call__(self, x: Any, update: bool = True) -> Any:
        """One observation or a batch of them, filtered; the filter learns from them first, if `update`."""

    def apply_changes(self, other: Any, with_buffer: bool = False) -> None:  # noqa: B027  nothing to learn
        """Learn what stands in the buffer of one of the same kind; `with_buffer` takes that buffer over, too."""

    def copy(self) -> Self:
        """A filter of the same state that shares nothing with this one."""
        with self._guard:
            return deepcopy(self)

    def sync(self, other: Any) -> None:  # noqa: B027
        """Become a copy of one of the same kind."""

    def reset_buffer(self) -> None:  # noqa: B027
        """Empty the buffer; what was learnt stays."""

    def as_serializable(self) -> Self:
        """A copy, which can be pickled."""
        return self.copy()

    def flushed(self) -> Filter:
        """A copy that can be pickled; the buffer here is emptied. What other threads push meanwhile is not lost."""
        with self._guard:
            copy = self.as_serializable()
            self.reset_buffer()
        return copy

    def rebase(self, new: Any) -> None:
        """Take the statistics of the other one, not its buffer, and learn what is in the own buffer, which stays."""
        theirs = new.as_serializable()  # before the own lock: of two that rebase on each other neither may wait
        with self._guard:
            unshared = self.copy()
            self.sync(theirs)
            self.apply_changes(unshared, with_buffer=True)


class NoFilter(Filter):
    """Hands observations on as they are; lists and numbers become arrays."""

    def __call__(self, x: Any, update: bool = True) -> Any:  # noqa: ARG002  there is nothing to learn
        """The observation, or an array of it.

        Raises:
            ValueError: no array can be made of it.
        """
        if isinstance(x, np.ndarray | dict | tuple):
            return x
        try:
            return np.asarray(x)
        except Exception as error:
            raise ValueError(f"Failed to convert to array: {x!r}") from error
