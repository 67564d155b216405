"""Weights of a set: copied from somewhere, made the newest, applied by workers before they do anything else.

source.get_weights ─▶ version ─▶ channel ─▶ with the next call to each worker, or at once for those who wait for it
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Any

from swath.errors import WorkerLate
from swath.rollout_workers.worker_set.crew import Crew
from swath.rollout_workers.worker_set.round import Round


def publish(crew: Crew, weights: Mapping[str, Any], own_version: int, workers: Collection[int] | None = None) -> int:
    """Make weights the newest of all workers, or of some; they are copied.

    Args:
        crew: whose.
        weights: by policy id; those of other policies stay.
        own_version: of the source, which the new version is above.
        workers: ids; None: all, also those to come.

    Returns:
        The version.
    """
    return crew.channel.publish(weights, workers, max(crew.channel.version, own_version) + 1)


def spread(crew: Crew, workers: Sequence[int], timeout: float) -> None:
    """Have these apply what is the newest for them, and wait for it.

    Raises:
        WorkerLate: some have not.
        Exception: what one of them raised.
    """
    until = monotonic() + timeout
    told = Round(crew, workers, crew.bring)
    told.wait(until, for_returning=False)
    crew.tend()
    unanswered = told.unanswered
    crew.set_late(unanswered)
    _raise_late(crew, [*told.waiting, *(ticket.name.worker for ticket in unanswered)], timeout)
    for ticket in told.sent.values():
        error = crew.error_of(ticket)
        if error is not None and not crew.is_borne(error):
            crew.deaths.told(ticket.name)
            raise error


def _raise_late(crew: Crew, late: Sequence[int], timeout: float) -> None:
    there = [worker for worker in sorted(late) if worker in crew.fleet.up]
    if there:
        raise WorkerLate(
            f"workers {there} have not applied version {crew.channel.version} within {timeout:g} s; they do "
            "before their next fragment",
            workers=tuple(there),
            deadline=timeout,
        )
