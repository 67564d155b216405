"""A rollout worker in its place: takes what is new with each request, then does what it is asked for.

request + Update(policy changes, filters, weights, global variables) ─▶ take ─▶ run | sample | update ─▶ Answer
"""

from __future__ import annotations

import copy
import faulthandler
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from swath.group.member import Member, Unfit
from swath.rollout_workers.config.algorithm_config import AlgorithmConfig
from swath.rollout_workers.filters.sharing import rebase_all
from swath.weights.channel import Update
from swath.workers.base import Job
from swath.workers.hosting import described
from swath.workers.outcome import frozen
from swath.workers.packing import Parcel
from swath.workers.tickets import Name

EARLIER = 0.9
"""Of the time after which a request is late."""

CHANGES, GLOBAL_VARS = "policy_changes", "global_vars"
WEIGHTS, FILTER = "weights/", "filter/"
"""What the channel holds, the last two by policy id: `weights/a`."""


@dataclass(frozen=True)
class Change:
    """One thing that was changed.

    Attributes:
        revision: when; changes are compared by it.
        value: perhaps arrays, which have no one truth when they are compared.
    """

    revision: int
    value: Any = field(compare=False)


@dataclass(frozen=True)
class PolicyChanges:
    """How the policies of a set differ from those that its workers are built with.

    Attributes:
        revision: grows with every change.
        added: keywords of `add_policy` by policy id, in order.
        removed: policies that workers may be built with and are to have no more.
        mapping: which policy acts for whom; None: as built.
        to_train: which policies learn; None: as built.
    """

    revision: int = 0
    added: Mapping[str, Change] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    mapping: Change | None = None
    to_train: Change | None = None

    def adding(self, policy_id: str, how: Mapping[str, Any]) -> PolicyChanges:
        """With one policy more."""
        number = self.revision + 1
        return replace(self, revision=number, added={**self.added, policy_id: Change(number, how)})

    def removing(self, policy_id: str) -> PolicyChanges:
        """Without this policy."""
        added = {each: change for each, change in self.added.items() if each != policy_id}
        return replace(self, revision=self.revision + 1, added=added, removed=self.removed | {policy_id})

    def arranging(self, mapping: Callable[..., str] | None, to_train: Any) -> PolicyChanges:
        """With another mapping, and others that learn; None changes nothing."""
        number = self.revision + 1
        return replace(
            self,
            revision=number,
            mapping=self.mapping if mapping is None else Change(number, mapping),
            to_train=self.to_train if to_train is None else Change(number, to_train),
        )

    def apply(self, worker: Any, before: PolicyChanges) -> None:
        """Bring a worker from the changes `before` to these. If something raises, doing it again does the rest."""
        replaced = [policy_id for policy_id, change in before.added.items() if self.added.get(policy_id) != change]
        for policy_id in dict.fromkeys([*replaced, *sorted(self.removed - before.removed)]):
            if policy_id in worker.policy_map:
                worker.remove_policy(policy_id=policy_id)
        for policy_id, change in self.added.items():
            if before.added.get(policy_id) != change and policy_id not in worker.policy_map:
                worker.add_policy(policy_id, **change.value)
        if self.mapping is not None and self.mapping != before.mapping:
            worker.set_policy_mapping_fn(self.mapping.value)
        if self.to_train is not None and self.to_train != before.to_train:
            worker.set_is_policy_to_train(self.to_train.value)


class SharedWeights(NamedTuple):
    """Weights of one policy."""

    version: int
    values: Mapping[str, Any]


class SharedFilter(NamedTuple):
    """The filter of one policy; `first_only`: for lives that begin, others keep theirs."""

    filter: Any
    first_only: bool


class Answer(NamedTuple):
    """What a request gave, and the version of the weights that the worker had; of a sample its env steps."""

    version: int
    value: Any


class RolloutActor(Member):
    """Answers the requests of a set. While it cannot take what is new it does nothing else.

    Args:
        worker: a `RolloutWorker`.
        name: which life of which worker.
        stack_dump: written when a request takes too long.
    """

    def __init__(self, worker: Any, name: Name, stack_dump: StackDump) -> None:
        self._worker, self._who, self._stack_dump = worker, described(name), stack_dump
        self._changes, self._version, self._is_new = PolicyChanges(), 0, True
        self._pending: dict[str, Any] = {}
        self._refused: bytes | None = None

    def answer(self, update: Update | None, method: str, args: Any, kwargs: Mapping[str, Any] | None) -> Any:
        """Take what is new, and call a method; `Unfit` until it can be taken."""
        with self._stack_dump.watching():
            if update is not None:
                try:
                    self.take(update.opened(), update.version)
                    self._refused = None
                except Exception as error:  # noqa: BLE001  it travels with the answers
                    error.add_note(f"raised in {self._who} by a change of the set; undo that, or make another one")
                    self._refused = frozen(error)
            return super().answer(None, method, args, kwargs) if self._refused is None else Unfit(self._refused)

    def take(self, models: Mapping[str, Any], version: int) -> None:  # noqa: ARG002  weights have their own
        """Take what is new, together with what could not be taken before."""
        self._pending |= copy.deepcopy(dict(models))
        new, worker = self._pending, self._worker
        if (changes := new.get(CHANGES)) is not None:
            changes.apply(worker, self._changes)
            self._changes = changes
        own, shared = worker.filters, _by_policy(new, FILTER)
        filters = {
            policy_id: each.filter
            for policy_id, each in shared.items()
            if policy_id in own and (self._is_new or not each.first_only)
        }
        rebase_all({policy_id: own[policy_id] for policy_id in filters}, filters)
        weights = {policy_id: w for policy_id, w in _by_policy(new, WEIGHTS).items() if policy_id in worker.policy_map}
        global_vars = new.get(GLOBAL_VARS)
        if weights:
            self._version = max(each.version for each in weights.values())
            worker.set_weights({pid: each.values for pid, each in weights.items()}, global_vars, self._version)
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
        batch = self._worker.sample()
        return Parcel(Answer(self._version, batch.env_steps()), batch)

    def close(self) -> None:
        """Close the envs and the policies."""
        self._worker.stop()
        self._stack_dump.close()


def called(worker: Any, func: Callable[..., Any] | str, keywords: Mapping[str, Any]) -> Any:
    """What a function of a worker, or a method of it, gives."""
    return getattr(worker, func)(**keywords) if isinstance(func, str) else func(worker, **keywords)


def _by_policy(models: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in models.items() if key.startswith(prefix)}


class StackDump:
    """Writes the stacks of all threads when a request takes too long.

    Args:
        timeout: seconds after which a request is late; None: nothing is written.
        path: of the file; None: the standard error of the process.
    """

    def __init__(self, timeout: float | None, path: Path | None) -> None:
        self._after = None if timeout is None else timeout * EARLIER
        self._path = path
        self._file: IO[Any] | None = sys.__stderr__
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a")

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch over a request."""
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


@dataclass(frozen=True)
class WorkerRecipe:
    """What the workers of a set are made of; sent with each start.

    Attributes:
        worker_class: `RolloutWorker`, or what stands for it.
        env_creator: makes a sub-env of a context.
        validate_env: looks at each sub-env.
        default_policy_class: of policies without one.
        config: the settings.
        logdir: of the set; None: nothing is written.
    """

    worker_class: Callable[..., Any]
    env_creator: Callable[..., Any] | None
    validate_env: Callable[..., Any] | None
    default_policy_class: type | None
    config: AlgorithmConfig
    logdir: str | None = None

    def worker(self, index: int, num_workers: int, life: int = 0, spaces: Any = None) -> Any:
        """Build a worker.

        Args:
            index: 0 for the local one.
            num_workers: how many others there are.
            life: which of its lives it begins.
            spaces: by policy id, for a worker without env.
        """
        worker = self.worker_class(
            env_creator=self.env_creator,
            validate_env=self.validate_env,
            default_policy_class=self.default_policy_class,
            config=self.config,
            worker_index=index,
            num_workers=num_workers,
            recreated_worker=life > 0,
            log_dir=None if self.logdir is None else f"{self.logdir}/worker_{index}",
            spaces=spaces,
        )
        if life:
            worker.begin_life(life)
        return worker

    def job(self, name: Name, num_workers: int, resources: Mapping[str, Any], *, apart: bool) -> Job:
        """How a life is begun, in a process of its own if it lives `apart`."""
        build = partial(_actor, self, name, num_workers, apart=apart)
        return Job(build, name, max(1, int(self.config.num_cpus_per_env_runner)), resources=resources)


def _actor(recipe: WorkerRecipe, name: Name, num_workers: int, *, apart: bool) -> RolloutActor:
    worker, stack_dump = recipe.worker(name.worker, num_workers, name.life), StackDump(None, None)
    if apart:
        folder = recipe.logdir and Path(recipe.logdir, f"worker_{name.worker}")
        path = Path(folder, f"stacks_of_life_{name.life}.txt") if folder else None
        stack_dump = StackDump(recipe.config.env_runner_hang_timeout_s, path)
    return RolloutActor(worker, name, stack_dump)
