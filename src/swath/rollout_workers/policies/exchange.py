"""What ranks of a process group tell each other before any goes on: none waits for one that has raised.

```
rank 0  make ──▶ value ──┐                     ┌──▶ own value, and what all tell of theirs
rank 1  make ──▶ raised ─┴── told to all ranks ┴──▶ own exception on rank 1, RemoteFailure on the others
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import distributed

from swath.errors import RemoteFailure
from swath.rollout_workers.policies import roll_call

T = TypeVar("T")


def exchanged(make: Callable[[], T], tell: Callable[[T], Any]) -> tuple[T, list[Any]]:
    """What `make` returns here, and what `tell` makes of it on each rank; all ranks must call this together.

    Raises:
        Exception: what was raised here, once the other ranks know.
        RemoteFailure: it was raised on another rank.
        WorkerLate: other ranks have not come in time.
    """
    mine: Any = None
    told: Any = None
    failure: Exception | None = None
    try:
        mine = make()
        told = tell(mine)
    except Exception as error:  # noqa: BLE001  raised once the others know
        failure = error
    answers = gathered((told, said(failure)))
    require_fine(failure, [text for _, text in answers])
    return mine, [each for each, _ in answers]


def gathered(mine: Any) -> list[Any]:
    """What each rank gives, by rank.

    Raises:
        WorkerLate: other ranks have not come in time.
    """
    everybodys: list[Any] = [None] * distributed.get_world_size()
    with roll_call.present():
        distributed.all_gather_object(everybodys, mine)
    return everybodys


def said(failure: Exception | None) -> str | None:
    """What other ranks are told of an exception."""
    return None if failure is None else f"{type(failure).__name__}: {failure}"


def require_fine(failure: Exception | None, told: Sequence[str | None]) -> None:
    """Raise if any rank has failed.

    Args:
        failure: what was raised here.
        told: what was raised, by rank.
    """
    if failure is not None:
        failure.add_note("raised by one of several ranks that learn as one; none of them learnt from this batch")
        raise failure
    for rank, text in enumerate(told):
        if text is not None:
            raise RemoteFailure(
                f"rank {rank} raised while the ranks were to learn as one: {text}; none learnt from this batch, and "
                "all can go on with another",
                type_name=text.partition(":")[0],
            )
