"""A rollout worker in its place, as the set calls it.

bring(news): weights, global variables, policies, filters ─▶ worker
run, sample ─▶ worker, unless it could not be brought to the newest: then they raise why
"""

from __future__ import annotations

import copy
import faulthandler
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

from swath.errors import SwathError
from swath.rollout_workers.filters.sharing import rebase_all
from swath.weights.channel import Update
from swath.workers.packing import Parcel

EARLIER = 0.9
"""Of the time after which a call is late."""


class Stacks:
    """Writes the stacks of all threads when a call takes too long.

    Args:
        patience: seconds after which a call is late; None: nothing is written.
        path: of the file; None: the standard error of the process.
    """

    def __init__(self, patience: float | None, path: Path | None) -> None:
        self._after = None if patience is None else patience * EARLIER
        self._path = path
        self._file: IO[Any] | None = sys.__stderr__
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch over a call."""
        if self._after is None or self._file is None:
            yield
            return
        faulthandler.dump_traceback_later(self._after, file=self._file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Close the file, and remove it if nothing was written."""
        if self._path is not None and self._file is not None:
            self._file.close()
            if not self._path.stat().st_size:
                self._path.unlink()


Function: TypeAlias = Callable[..., Any] | str

Functions: TypeAlias = Function | Sequence[Function]

Keywords: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Call(NamedTuple):
    """What one worker is to call.

    Attributes:
        func: a function of the worker, or the name of a method.
        kwargs: its keywords.
    """

    func: Function
    kwargs: Mapping[str, Any]


def one_each(func: Functions, kwargs: Keywords, workers: Sequence[int]) -> dict[int, Call]:
    """The call of each worker.

    Args:
        func: for all, or a list in the order of the workers.
        kwargs: likewise.
        workers: ids.

    Raises:
        ValueError: a list of another length.
    """
    for name, given in (("func", func), ("kwargs", kwargs)):
        if isinstance(given, list | tuple) and len(given) != len(workers):
            raise ValueError(
                f"{name} is a list of {len(given)}, and {len(workers)} workers are addressed: {list(workers)}; "
                "give one each, or a single one for all"
            )
    return dict(zip(workers, calls(func, kwargs), strict=False))


def in_turn(func: Functions, kwargs: Keywords, workers: Sequence[int]) -> list[tuple[int, Call]]:
    """The calls, each once, dealt to the workers in turn; a single one goes to each worker.

    Raises:
        ValueError: lists of different lengths.
    """
    if not workers:
        return []
    lengths = {len(given) for given in (func, kwargs) if isinstance(given, list | tuple)}
    if len(lengths) > 1:
        raise ValueError(f"func and kwargs are lists of different lengths, {sorted(lengths)}; give one each")
    number = lengths.pop() if lengths else len(workers)
    dealt = zip(range(number), calls(func, kwargs), strict=False)
    return [(workers[k % len(workers)], call) for k, call in dealt]


def calls(func: Functions, kwargs: Keywords) -> Iterable[Call]:
    """The calls, in order; without end if nothing is a list."""
    functions: Iterable[Any] = func if isinstance(func, list | tuple) else repeat(func)
    keywords: Iterable[Any] = kwargs if isinstance(kwargs, list | tuple) else repeat(kwargs)
    return (Call(each, given or {}) for each, given in zip(functions, keywords, strict=False))


def called(worker: Any, call: Call) -> Any:
    """What comes of it in a worker of this process."""
    if isinstance(call.func, str):
        return getattr(worker, call.func)(**call.kwargs)
    return call.func(worker, **call.kwargs)


@dataclass(frozen=True)
class Said:
    """One thing that was said.

    Attributes:
        revision: when; it tells apart what was said.
        what: it is; perhaps arrays, which have no one truth when they are compared.
    """

    revision: int
    what: Any = field(compare=False)


@dataclass(frozen=True)
class Household:
    """The policies of all workers of a set, as they differ from those they are built with.

    Attributes:
        revision: grows with every change.
        added: how policies are added, keywords of `add_policy` by policy id, in order.
        removed: policies that workers are built with and are to have no more.
        mapping: which policy acts for whom; None: as built.
        to_train: which policies learn; None: as built.
    """

    revision: int = 0
    added: Mapping[str, Said] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    mapping: Said | None = None
    to_train: Said | None = None

    def adding(self, policy_id: str, how: Mapping[str, Any]) -> Household:
        """With one policy more."""
        number = self.revision + 1
        return replace(self, revision=number, added={**self.added, policy_id: Said(number, how)})

    def removing(self, policy_id: str) -> Household:
        """Without this policy."""
        added = {each: said for each, said in self.added.items() if each != policy_id}
        return replace(self, revision=self.revision + 1, added=added, removed=self.removed | {policy_id})

    def mapping_by(self, function: Callable[..., str] | None) -> Household:
        """With this mapping; None changes nothing."""
        if function is None:
            return self
        number = self.revision + 1
        return replace(self, revision=number, mapping=Said(number, function))

    def training(self, policies: Any) -> Household:
        """With these policies learning; None changes nothing."""
        if policies is None:
            return self
        number = self.revision + 1
        return replace(self, revision=number, to_train=Said(number, policies))


AS_BUILT = Household()


def settle(worker: Any, want: Household, have: Household) -> None:
    """Bring a worker to what is wanted. If something raises, doing it again does the rest.

    Args:
        worker: a `RolloutWorker`.
        want: what is to be.
        have: to what it was brought before.
    """
    gone = [pid for pid, said in have.added.items() if want.added.get(pid) != said]
    for pid in dict.fromkeys([*gone, *sorted(want.removed - have.removed)]):
        if pid in worker.policy_map:
            worker.remove_policy(policy_id=pid)
    for pid, said in want.added.items():
        if have.added.get(pid) != said and pid not in worker.policy_map:
            worker.add_policy(pid, **said.what)
    if want.mapping is not None and want.mapping != have.mapping:
        worker.set_policy_mapping_fn(want.mapping.what)
    if want.to_train is not None and want.to_train != have.to_train:
        worker.set_is_policy_to_train(want.to_train.what)


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
