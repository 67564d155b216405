"""How the ranks of a process group wait for each other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch import distributed

from swath.errors import WorkerLate

_timeout = [timedelta(seconds=300)]
"""That of the group which this process is in."""


def set_timeout(seconds: float) -> None:
    """Let ranks of this process's group wait that long for each other."""
    _timeout[0] = timedelta(seconds=seconds)


def meet() -> None:
    """Wait until all ranks have come here, as all must together; a group on NCCL waits in its own calls.

    Raises:
        WorkerLate: some have not come in the group's time; the message says which.
    """
    if distributed.get_backend() != "gloo":
        return
    try:
        distributed.monitored_barrier(timeout=_timeout[0], wait_all_ranks=True)
    except RuntimeError as error:
        raise WorkerLate(
            f"ranks that learn as one have not all come in time: {error}; call teardown_torch_data_parallel() on all, "
            "then setup_torch_data_parallel() again"
        ) from error


def gathered(mine: Any) -> list[Any]:
    """What each rank gives, by rank; all must call this together.

    Raises:
        WorkerLate: some have not come in time.
    """
    meet()
    everybodys: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(everybodys, mine)
    return everybodys
