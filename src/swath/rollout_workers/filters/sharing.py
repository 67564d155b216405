"""How the filters of many workers come to know what all of them saw, each observation counted once.

workers  rs + buffer ──copies, then buffers emptied──▶ local filters: rs + Σ buffers
rs := theirs + what was seen meanwhile ◀──copies── local filters
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from swath.rollout_workers.filters.base import Filter

Filters = Mapping[str, Filter]
"""By policy id."""


def copies_of(filters: Filters, *, flush_after: bool = False) -> dict[str, Filter]:
    """Copies, with their buffers; the buffers here are emptied afterwards if asked for, statistics never."""
    return {policy_id: own.flushed() if flush_after else own.as_serializable() for policy_id, own in filters.items()}


def rebase_all(filters: Filters, new: Filters) -> None:
    """Give each filter the statistics of the new one of its policy, and what it has seen since it was last asked.

    Raises:
        AssertionError: there is no new one for some of them, by whose ids it names them; nothing was changed.
        ValueError: a new one is of observations of another shape; nothing was changed.
    """
    missing = [policy_id for policy_id in filters if policy_id not in new]
    if missing:
        raise AssertionError(f"no new filters for the policies {missing}; there are those of {list(new)}")
    for policy_id, own in filters.items():
        own.copy().rebase(new[policy_id])  # raises what would leave some of them changed
    for policy_id, own in filters.items():
        own.rebase(new[policy_id])


class FilterManager:
    """Brings the filters of a set of workers to what all of them saw."""

    @staticmethod
    def synchronize(
        local_filters: Filters,
        worker_set: Any,
        update_remote: bool = True,
        timeout_seconds: float | None = None,
        use_remote_data_for_update: bool = True,
    ) -> None:
        """Collect what the remote workers saw into the local filters, and send these to them.

        Args:
            local_filters: by policy id; changed in place.
            worker_set: has `foreach_worker`, and workers with `get_filters` and `sync_filters`.
            update_remote: send.
            timeout_seconds: of each of the two rounds; None leaves it to the set.
            use_remote_data_for_update: collect; otherwise what they saw is thrown away when they are sent to.

        Raises:
            WorkerLate: workers of a `WorkerSet` have not answered in time. What the others saw is taken in and sent,
                and what they answer late is taken in the next time.
            Exception: what a worker raised, likewise.
        """
        if not (update_remote or use_remote_data_for_update):
            return
        theirs: list[Filters]
        failures: list[BaseException] = []
        is_ours = hasattr(worker_set, "collect_filters")  # a WorkerSet, which takes late answers in the next time
        if is_ours:
            theirs, failures = worker_set.collect_filters(timeout_seconds)
        else:
            theirs = worker_set.foreach_worker(_flush, local_worker=False, timeout_seconds=timeout_seconds)
        for filters in theirs if use_remote_data_for_update else ():
            for policy_id, local in local_filters.items():
                local.apply_changes(filters[policy_id])
        if update_remote and is_ours:
            worker_set.send_filters(copies_of(local_filters), timeout_seconds)
        elif update_remote:
            send = partial(_send, filters=copies_of(local_filters))
            worker_set.foreach_worker(send, local_worker=False, timeout_seconds=timeout_seconds)
        for failure in failures:
            raise failure


def _flush(worker: Any) -> Any:
    return worker.get_filters(flush_after=True)


def _send(worker: Any, filters: Filters) -> None:
    worker.sync_filters(filters)
