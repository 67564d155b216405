"""A rollout worker in its place: takes what is new with each request, then does what it is asked for.

request + Update(policies, filters, weights, global variables) ─▶ take what is new ─▶ run | sample | update ─▶ answer
"""

from __future__ import annotations

import copy
import faulthandler
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from swath.rollout_workers.filters import rebase_all
from swath.weights.channel import Update
from swath.workers.hosting import described
from swath.workers.packing import Parcel
from swath.workers.tickets import Name

EARLIER = 0.9
"""Of the time after which a request is late: then the stacks of all threads are written."""

POLICY, WEIGHTS, FILTER = "policy/", "weights/", "filter/"
MAPPING, TO_TRAIN, GLOBAL_VARS, NUM_WORKERS = "mapping", "to_train", "global_vars", "num_workers"
"""What the channel of a set holds: by policy id keywords of `add_policy` (none: it is removed), weights and a filter;
who acts for whom; who learns; numbers that all know; how many workers there are."""


class SharedWeights(NamedTuple):
    """Weights of one policy."""

    version: int
    values: Mapping[str, Any]


class RolloutActor:
    """A life of a remote worker: answers the requests of a set. While it cannot take what is new it does nothing else.

    An answer is the version of the weights that the worker had, and what the request gave.

    Args:
        make: builds the worker.
        name: which life of which worker.
        log_dir: where it may write; None: it writes nothing.
        hang_timeout_s: after which a request is late; None: never.
    """

    def __init__(self, make: Callable[[], Any], name: Name, log_dir: str | None, hang_timeout_s: float | None) -> None:
        self._worker = make()
        self._who, self._version, self._is_new = described(name), 0, True
        self._untaken: dict[str, Any] = {}
        self._dump_after_s = (hang_timeout_s or 0.0) * EARLIER
        self._stacks: IO[Any] | None = sys.__stderr__
        if hang_timeout_s and log_dir is not None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
            self._stacks = Path(log_dir, "stacks.txt").open("a")  # noqa: SIM115  as long as the worker

    def answer(self, update: Update | None, method: str, *args: Any) -> Any:
        """Take what is new, and what could not be taken before; then call a method."""
        if self._dump_after_s and self._stacks is not None:
            faulthandler.dump_traceback_later(self._dump_after_s, file=self._stacks)
        try:
            self._untaken |= {} if update is None else copy.deepcopy(update.opened())
            if self._untaken:
                self._take(self._untaken)
            return getattr(self, method)(*args)
        except Exception as error:
            doing = "it took what is new, which it tries again" if self._untaken else f"{method}() was called"
            error.add_note(f"raised in {self._who} when {doing}")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()

    def update(self) -> tuple[int, None]:
        """Nothing more than to take what is new."""
        return self._version, None

    def run(self, func: Callable[..., Any] | str, keywords: Mapping[str, Any]) -> tuple[int, Any]:
        """What a function of the worker, or a method of it, gives."""
        return self._version, called(self._worker, func, keywords)

    def sample(self) -> Parcel:
        """A fragment."""
        return Parcel(self._version, self._worker.sample())

    def close(self) -> None:
        """Close the envs and the policies."""
        self._worker.stop()

    def _take(self, new: dict[str, Any]) -> None:
        """Bring the worker up to these; what an exception leaves undone stays in them."""
        worker = self._worker
        take_policies(worker, new)
        worker.num_workers = new.get(NUM_WORKERS, worker.num_workers)
        if self._is_new or worker.config.update_worker_filter_stats:
            filters = {pid: each for pid, each in by_policy(new, FILTER).items() if pid in worker.filters}
            rebase_all({policy_id: worker.filters[policy_id] for policy_id in filters}, filters)
        weights = {pid: each for pid, each in by_policy(new, WEIGHTS).items() if pid in worker.policy_map}
        if weights:
            self._version = max(each.version for each in weights.values())
            worker.weights_seq_no = None  # weights of an equal number would be left out
            worker.set_weights({pid: each.values for pid, each in weights.items()}, None, self._version)
        if GLOBAL_VARS in new:
            worker.set_global_vars(new[GLOBAL_VARS])
        self._is_new = False
        new.clear()


def take_policies(worker: Any, new: Mapping[str, Any]) -> None:
    """Add and remove policies of a worker, and set who acts for whom and who learns."""
    for policy_id, how in by_policy(new, POLICY).items():
        if policy_id in worker.policy_map:
            worker.remove_policy(policy_id=policy_id)
        if how:
            worker.add_policy(**how)
    if MAPPING in new:
        worker.set_policy_mapping_fn(new[MAPPING])
    if TO_TRAIN in new:
        worker.set_is_policy_to_train(new[TO_TRAIN])


def called(worker: Any, func: Callable[..., Any] | str, keywords: Mapping[str, Any]) -> Any:
    """What a function of a worker, or a method of it, gives."""
    return getattr(worker, func)(**keywords) if isinstance(func, str) else func(worker, **keywords)


def by_policy(models: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """What there is of a kind, by policy id."""
    return {key.removeprefix(kind): value for key, value in models.items() if key.startswith(kind)}
