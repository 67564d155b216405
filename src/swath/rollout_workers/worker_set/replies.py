"""Answers to asynchronous requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reply:
    """An answer: unpacks to `(worker_id, result)`.

    Attributes:
        worker: its id.
        result: what the call gave; None if it raised.
        life: in which of its lives the worker answered.
        version: of the weights that it had.
        tag: of the request.
        error: what the call raised, or how its worker was lost; None if it gave something.
    """

    worker: int
    result: Any
    life: int = 0
    version: int = 0
    tag: Any = None
    error: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        return iter((self.worker, self.result))
