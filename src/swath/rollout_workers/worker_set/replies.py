"""Answers to asynchronous requests."""

from __future__ import annotations

from typing import Any, Self


class Reply(tuple[int, Any]):  # noqa: SLOT001  a tuple with attributes
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
    life: int
    version: int
    tag: Any
    error: BaseException | None

    def __new__(
        cls,
        worker: int,
        result: Any,
        *,
        life: int = 0,
        version: int = 0,
        tag: Any = None,
        error: BaseException | None = None,
    ) -> Self:
        """Make one."""
        made = super().__new__(cls, (worker, result))
        made.worker, made.result, made.life = worker, result, life
        made.version, made.tag, made.error = version, tag, error
        return made

    def __repr__(self) -> str:
        what = f"result={self.result!r}" if self.error is None else f"error={self.error!r}"
        return f"Reply(worker={self.worker}, {what}, life={self.life}, version={self.version}, tag={self.tag!r})"

    def __reduce__(self) -> Any:
        return _made, (self.worker, self.result, self.life, self.version, self.tag, self.error)


def _made(*fields: Any) -> Reply:
    worker, result, life, version, tag, error = fields
    return Reply(worker, result, life=life, version=version, tag=tag, error=error)
