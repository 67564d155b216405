"""A rollout worker in its process: it applies the changes that come with a request, then answers it.

request + Update(policies, filters, weights, global variables) ─▶ apply them ─▶ run | sample | update ─▶ answer
"""

from __future__ import annotations

import copy
import faulthandler
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from swath.rollout_workers.filters import replace_statistics
from swath.weights.channel import Update
from swath.workers.packing import Parcel
from swath.workers.tickets import Name

DUMP_AFTER = 0.9
"""Part of the time limit of a request after which the stacks of all threads are written."""

POLICY, WEIGHTS, FILTER = "policy/", "weights/", "filter/"
MAPPING, TO_TRAIN, GLOBAL_VARS, NUM_WORKERS = "mapping", "to_train", "global_vars", "num_workers"
"""Keys of a set's channel. By policy id: keywords of `add_policy` (empty: remove it), weights and a filter. For all
policies: which acts for an agent, which learn, numbers that all workers know, and the number of workers."""


class SharedWeights(NamedTuple):
    """Weights of one policy."""

    version: int
    values: Mapping[str, Any]


class RolloutActor:
    """One life of a remote worker, which answers the requests of a set; without the newest changes it answers none.

    An answer is the version of the worker's weights, and the result of the request.

    Args:
        make: builds the worker.
        name: which life of which worker.
        log_dir: where it may write; None: it writes nothing.
        hang_timeout_s: time limit of a request; None: no limit.
    """

    def __init__(self, make: Callable[[], Any], name: Name, log_dir: str | None, hang_timeout_s: float | None) -> None:
        self._worker = make()
        self._description, self._version, self._is_new = str(name), 0, True
        self._pending: dict[str, Any] = {}
        self._dump_after_s = (hang_timeout_s or 0.0) * DUMP_AFTER
        self._stacks: IO[Any] | None = sys.__stderr__
        if hang_timeout_s and log_dir is not None:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
            self._stacks = Path(log_dir, "stacks.txt").open("a")  # noqa: SIM115  open as long as the worker

    def answer(self, update: Update | None, method: str, *args: Any) -> Any:
        """Apply the changes of this request and of earlier ones that failed; then call a method."""
        if self._dump_after_s and self._stacks is not None:
            faulthandler.dump_traceback_later(self._dump_after_s, file=self._stacks)
        try:
            self._pending |= {} if update is None else copy.deepcopy(update.opened())
            if self._pending:
                self._apply(self._pending)
            return getattr(self, method)(*args)
        except Exception as error:
            activity = "it applied changes, which it tries again" if self._pending else f"{method}() was called"
            error.add_note(f"raised in {self._description} when {activity}")
            raise
        finally:
            faulthandler.cancel_dump_traceback_later()

    def update(self) -> tuple[int, None]:
        """Return the version after the changes were applied."""
        return self._version, None

    def run(self, func: Callable[..., Any] | str, keywords: Mapping[str, Any]) -> tuple[int, Any]:
        """Return the version, and the result of a function of the worker or of its method of that name."""
        return self._version, run_on(self._worker, func, keywords)

    def sample(self) -> Parcel:
        """Return a fragment."""
        return Parcel(self._version, self._worker.sample())

    def close(self) -> None:
        """Close the envs and the policies."""
        self._worker.stop()

    def _apply(self, changes: dict[str, Any]) -> None:
        """Apply changes and clear them; they stay after an exception."""
        worker = self._worker
        change_policies(worker, changes)
        worker.num_workers = changes.get(NUM_WORKERS, worker.num_workers)
        if self._is_new or worker.config.update_worker_filter_stats:
            new = {pid: filter_ for pid, filter_ in by_policy(changes, FILTER).items() if pid in worker.filters}
            replace_statistics({policy_id: worker.filters[policy_id] for policy_id in new}, new)
        weights = {pid: shared for pid, shared in by_policy(changes, WEIGHTS).items() if pid in worker.policy_map}
        if weights:
            self._version = max(shared.version for shared in weights.values())
            worker.weights_seq_no = None  # weights of an equal number would be skipped
            worker.set_weights({pid: shared.values for pid, shared in weights.items()}, None, self._version)
        if GLOBAL_VARS in changes:
            worker.set_global_vars(changes[GLOBAL_VARS])
        self._is_new = False
        changes.clear()


def change_policies(worker: Any, changes: Mapping[str, Any]) -> None:
    """Add and remove policies of a worker, and set which acts for an agent and which learn."""
    for policy_id, keywords in by_policy(changes, POLICY).items():
        if policy_id in worker.policy_map:
            worker.remove_policy(policy_id=policy_id)
        if keywords:
            worker.add_policy(**keywords)
    if MAPPING in changes:
        worker.set_policy_mapping_fn(changes[MAPPING])
    if TO_TRAIN in changes:
        worker.set_is_policy_to_train(changes[TO_TRAIN])


def run_on(worker: Any, func: Callable[..., Any] | str, keywords: Mapping[str, Any]) -> Any:
    """Return the result of a function of a worker, or of its method of that name."""
    return getattr(worker, func)(**keywords) if isinstance(func, str) else func(worker, **keywords)


def by_policy(values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the values whose keys are of a kind, by policy id."""
    return {key.removeprefix(kind): value for key, value in values.items() if key.startswith(kind)}
