"""Who has come to where ranks wait for each other, so that a rank that waits in vain can say for whom.

```
count + 1 in the group's store ──▶ a call that all ranks make ──▶ made │ failed: those whose count is lower are late
```
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from swath.errors import WorkerLate


@dataclass(frozen=True)
class RollCall:
    """The ranks of a process group.

    Attributes:
        store: of the group.
        rank: of this process.
        size: how many ranks there are.
        timeout_s: after which a call that waits for the others fails.
    """

    store: Any
    rank: int
    size: int
    timeout_s: float

    @contextmanager
    def present(self) -> Iterator[None]:
        """While a call is made that all ranks make.

        Raises:
            WorkerLate: some ranks have not come to it in time.
        """
        number = self.store.add(_key(self.rank), 1)
        try:
            yield
        except RuntimeError as error:
            late = self._behind(number)
            if late:
                raise self._late(late) from error
            error.add_note(f"raised on rank {self.rank} of {self.size} that learn as one, when all had come")
            raise

    def _behind(self, number: int) -> tuple[int, ...]:
        return tuple(rank for rank in range(self.size) if self.store.add(_key(rank), 0) < number)

    def _late(self, ranks: tuple[int, ...]) -> WorkerLate:
        return WorkerLate(
            f"rank {self.rank} has waited timeout_s={self.timeout_s:g} for ranks {list(ranks)} to learn with it, and "
            "the group is broken by that; call teardown_torch_data_parallel() on all ranks, then "
            "setup_torch_data_parallel() again",
            workers=ranks,
            deadline=self.timeout_s,
        )


_current: list[RollCall] = []
"""That of the group which this process is in, if it is in one."""


def begin(roll_call: RollCall) -> None:
    """This process is in a group from now on."""
    _current[:] = [roll_call]


def end() -> None:
    """This process is in no group any more."""
    _current.clear()


@contextmanager
def present() -> Iterator[None]:
    """As of the group that this process is in."""
    (roll_call,) = _current
    with roll_call.present():
        yield


def _key(rank: int) -> str:
    return f"swath/calls of rank {rank}"
