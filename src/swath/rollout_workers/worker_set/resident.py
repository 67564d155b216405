"""A rollout worker in its place, as the set calls it.

bring(news): weights, global variables, policies, filters ─▶ worker
run, sample ─▶ worker, unless it could not be brought to the newest: then they raise why
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swath.errors import SwathError
from swath.rollout_workers.filters.sharing import rebase_all
from swath.rollout_workers.worker_set.calls import Call, Function, called
from swath.rollout_workers.worker_set.household import AS_BUILT, Household, settle
from swath.rollout_workers.worker_set.stacks import Stacks
from swath.weights.channel import Update
from swath.workers.packing import Parcel


@dataclass(frozen=True)
class News:
    """What a worker is told before it goes on.

    Attributes:
        update: newer weights by policy id; None if it has the newest.
        global_vars: the set's, if it was told any.
        household: what is to be of its policies; None if it knows.
        filters: for a worker that begins with what others have seen, by policy id.
    """

    update: Update | None = None
    global_vars: Mapping[str, Any] | None = None
    household: Household | None = None
    filters: Mapping[str, Any] | None = None


class NotBrought(SwathError):  # noqa: N818  what is the matter
    """A worker could not be brought to the newest, and does nothing until it is."""


class Resident:
    """Answers the calls of a set.

    Args:
        worker: a `RolloutWorker`.
        stacks: written when a call takes too long.
        who: it is, in messages.
    """

    def __init__(self, worker: Any, stacks: Stacks, who: str) -> None:
        self._worker = worker
        self._who = who
        self._stacks = stacks
        self._household = AS_BUILT
        self._unfit: Exception | None = None

    def bring(self, news: News) -> None:
        """Bring the worker to the newest; until that works it does nothing else.

        Raises:
            Exception: what the worker, or code of the user, raised.
        """
        with self._stacks.watching():
            try:
                self._take_in(news)
            except Exception as error:
                self._unfit = error
                error.add_note(f"raised in {self._who}, when it was told what is new; undo that, or say something else")
                raise
        self._unfit = None

    def run(self, func: Function, kwargs: Mapping[str, Any]) -> Any:
        """What a function of the worker, or a method of it, gives."""
        self._require_fit()
        with self._stacks.watching():
            try:
                return called(self._worker, Call(func, kwargs))
            except Exception as error:
                error.add_note(f"raised in {self._who}")
                raise

    def sample(self) -> Parcel:
        """A fragment, with its env steps as the head."""
        self._require_fit()
        with self._stacks.watching():
            batch = self._worker.sample()
        return Parcel(batch.env_steps(), batch)

    def close(self) -> None:
        """Close the envs and the policies."""
        with self._stacks.watching():
            self._worker.stop()
        self._stacks.close()

    def _require_fit(self) -> None:
        if self._unfit is not None:
            raise NotBrought(
                f"nothing is done before the worker is brought to the newest, which failed: {self._unfit!r}"
            )

    def _take_in(self, news: News) -> None:
        worker = self._worker
        if news.household is not None:
            settle(worker, news.household, self._household)
            self._household = news.household
        if news.filters is not None:
            rebase_all(_of_these(worker.filters, news.filters), news.filters)
        if news.update is not None:
            shared = _of_these(news.update.models, worker.policy_map)
            weights = {pid: copy.deepcopy(each.open()) for pid, each in shared.items()}
            worker.set_weights(weights, _copy(news.global_vars), news.update.version)
        elif news.global_vars is not None:
            worker.set_global_vars(_copy(news.global_vars))


def _copy(global_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if global_vars is None else dict(global_vars)


def _of_these(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key in wanted}
