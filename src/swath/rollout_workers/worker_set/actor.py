"""A rollout worker in its place: takes what is new with each request, then does what it is asked for.

request + Update(policies, filters, weights, global variables) ─▶ take ─▶ run | sample | update ─▶ Answer
"""

from __future__ import annotations

import copy
import faulthandler
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from swath.group.group import Member, Unfit
from swath.rollout_workers.filters import rebase_all
from swath.weights.channel import Update
from swath.workers.hosting import described
from swath.workers.packing import Parcel
from swath.workers.tickets import Name

EARLIER = 0.9
"""Of the time after which a request is late: then the stacks of all threads are written."""

POLICY, WEIGHTS, FILTER = "policy/", "weights/", "filter/"
REMOVED, MAPPING, TO_TRAIN = "removed", "mapping", "to_train"
GLOBAL_VARS, NUM_WORKERS = "global_vars", "num_workers"
"""What the channel of a set holds: by policy id keywords of `add_policy`, weights and a filter; ids of policies that
workers may be built with and are not to have; who acts for whom; who learns; numbers that all know; how many workers
there are."""

WorkerMaker = Callable[..., Any]
"""Makes a `RolloutWorker` of what is different for each of a set."""


class SharedWeights(NamedTuple):
    """Weights of one policy."""

    version: int
    values: Mapping[str, Any]


class Answer(NamedTuple):
    """What a request gave, and the version of the weights that the worker had."""

    version: int
    value: Any


class RolloutActor(Member):
    """A life of a remote worker: answers the requests of a set. While it cannot take what is new it does nothing else.

    Args:
        make: see `build_worker`.
        logdir: likewise.
        name: which life of which worker.
        num_workers: how many there are.
        hang_timeout_s: after which a request is late; None: never.
    """

    def __init__(
        self, make: WorkerMaker, logdir: str | None, name: Name, num_workers: int, hang_timeout_s: float | None
    ) -> None:
        self._worker = build_worker(make, logdir, name.worker, num_workers, life=name.life)
        self._who, self._version, self._is_new = described(name), 0, True
        self._pending: dict[str, Any] = {}
        self._refused: Unfit | None = None
        self._dump_after_s = (hang_timeout_s or 0.0) * EARLIER
        self._stacks: IO[Any] | None = sys.__stderr__ if hang_timeout_s else None
        if hang_timeout_s and logdir is not None:
            path = Path(logdir, f"worker_{name.worker}", f"stacks_of_life_{name.life}.txt")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._stacks = path.open("a")

    def answer(self, update: Update | None, method: str, *args: Any) -> Any:
        """Take what is new, and call a method; `Unfit` until something comes that can be taken."""
        if update is None and self._refused is not None:
            return self._refused
        self._unfit = None
        if self._stacks is not None:
            faulthandler.dump_traceback_later(self._dump_after_s, file=self._stacks)
        try:
            answer = super().answer(update, method, *args)
        finally:
            if self._stacks is not None:
                faulthandler.cancel_dump_traceback_later()
        self._refused = answer if isinstance(answer, Unfit) else None
        return answer

    def take(self, models: Mapping[str, Any], version: int) -> None:  # noqa: ARG002  weights have their own
        """Take what is new, together with what could not be taken before."""
        self._pending |= copy.deepcopy(dict(models))
        new, worker = self._pending, self._worker
        for policy_id in new.pop(REMOVED, ()):
            new.pop(f"{POLICY}{policy_id}", None)
            if policy_id in worker.policy_map:
                worker.remove_policy(policy_id=policy_id)
        for policy_id, how in _by_policy(new, POLICY).items():
            if policy_id in worker.policy_map:
                worker.remove_policy(policy_id=policy_id)
            worker.add_policy(**how)
            del new[f"{POLICY}{policy_id}"]
        worker.num_workers = new.pop(NUM_WORKERS, worker.num_workers)
        if MAPPING in new:
            worker.set_policy_mapping_fn(new.pop(MAPPING))
        if TO_TRAIN in new:
            worker.set_is_policy_to_train(new.pop(TO_TRAIN))
        if self._is_new or worker.config.update_worker_filter_stats:
            filters = _by_policy(new, FILTER, worker.filters)
            rebase_all({policy_id: worker.filters[policy_id] for policy_id in filters}, filters)
        weights, global_vars = _by_policy(new, WEIGHTS, worker.policy_map), new.get(GLOBAL_VARS)
        if weights:
            self._version = max(each.version for each in weights.values())
            number = None if worker.weights_seq_no == self._version else self._version  # an equal one has them left out
            worker.set_weights({pid: each.values for pid, each in weights.items()}, global_vars, number)
        elif global_vars is not None:
            worker.set_global_vars(global_vars)
        self._pending, self._is_new = {}, False

    def update(self) -> Answer:
        """Nothing more than to take what is new."""
        return Answer(self._version, None)

    def run(self, func: Callable[..., Any] | str, keywords: Mapping[str, Any]) -> Answer:
        """What a function of the worker, or a method of it, gives."""
        try:
            return Answer(self._version, called(self._worker, func, keywords))
        except Exception as error:
            error.add_note(f"raised in {self._who}")
            raise

    def sample(self) -> Parcel:
        """A fragment."""
        return Parcel(Answer(self._version, None), self._worker.sample())

    def close(self) -> None:
        """Close the envs and the policies, and remove the file of stacks if there are none."""
        self._worker.stop()
        path = Path(getattr(self._stacks, "name", ""))
        if path.is_file() and not path.stat().st_size:
            path.unlink()


def build_worker(
    make: WorkerMaker, logdir: str | None, index: int, num_workers: int, *, life: int = 0, spaces: Any = None
) -> Any:
    """A worker of a set, in the process where it is to live.

    Args:
        make: its class, with what all workers of the set are made of.
        logdir: of the set; None: nothing is written.
        index: 0 for the local one.
        num_workers: how many others there are.
        life: which of its lives it begins.
        spaces: by policy id, for a worker without env.
    """
    log_dir = logdir and f"{logdir}/worker_{index}"
    named = {"worker_index": index, "num_workers": num_workers, "recreated_worker": life > 0}
    worker = make(**named, log_dir=log_dir, spaces=spaces)
    if life:
        worker.begin_life(life)
    return worker


def called(worker: Any, func: Callable[..., Any] | str, keywords: Mapping[str, Any]) -> Any:
    """What a function of a worker, or a method of it, gives."""
    return getattr(worker, func)(**keywords) if isinstance(func, str) else func(worker, **keywords)


def _by_policy(models: Mapping[str, Any], kind: str, wanted: Collection[str] | None = None) -> dict[str, Any]:
    """What there is of a kind, by policy id; of all policies, or of those that are wanted."""
    found = {key.removeprefix(kind): value for key, value in models.items() if key.startswith(kind)}
    return found if wanted is None else {policy_id: one for policy_id, one in found.items() if policy_id in wanted}
