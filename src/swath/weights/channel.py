"""How weights get to workers: the newest is put where all can read it, and rides along with the next request.

    publish(snapshots) ──share──▶ register ──update_for(life)──▶ Update ──▶ an argument of the next request
                                     │ replaced, and in no request that is being sent
                                     └─▶ release

Slow readers skip versions. Publishing waits for no worker.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import nn

from swath.weights.register import Life, Register, Sent
from swath.weights.snapshot import Snapshot, fitting

Models: TypeAlias = Mapping[str, Any]
"""Snapshots by model id, or whatever else the workers of a service take; `None` for a model without weights."""

Who = TypeVar("Who", bound=Hashable)


class Shared(Protocol):
    """A value that was put where all workers can read it."""

    def open(self) -> Any:
        """The value."""

    def release(self) -> None:
        """No further request will name it."""


@dataclass(frozen=True)
class Update:
    """What a request brings a worker that runs older weights; travels as one of its arguments.

    Attributes:
        version: what the worker runs when it has applied this.
        models: shared snapshots by model id; none if only the version has changed.
    """

    version: int
    models: Mapping[str, Shared]

    def apply(self, find: Callable[[str], nn.Module]) -> None:
        """Copy the values into the models that `find` gives: into all of them, or into none.

        Raises:
            KeyError: a model has no such weight.
            ValueError: it has another shape there. In both cases nothing has changed.
        """
        for change in [fitting(shared.open(), find(model_id)) for model_id, shared in self.models.items()]:
            change()


class Channel:
    """Versioned weights for the workers of one service. Any thread may use it.

    Args:
        share: puts a value where all workers can read it.
    """

    def __init__(self, share: Callable[[Any], Shared]) -> None:
        self._share = share
        self._publishing = threading.Lock()
        self._changing = threading.RLock()  # neither this
        self._lock = threading.Lock()  # nor this is held while something is copied
        self._sending: dict[int, Any] = {}
        self._register: Register[Shared] = Register()
        self._kept: dict[int, Shared] = {}
        self._named: Counter[int] = Counter()

    @property
    def version(self) -> int:
        """The newest that was published; 0 is the state at construction."""
        return self._register.mark.version

    def publish(self, models: Models, workers: Collection[int] | None = None, version: int | None = None) -> int:
        """Make these the newest weights of all workers or of some; others keep theirs and their version.

        Blocks while the values are copied to where workers can read them, and while another thread publishes. What
        goes wrong there leaves channel and version as they were.

        Args:
            models: by id; models not named keep their weights. With none at all only the version changes.
            workers: indices; `None` for all, also for those to come.
            version: the number that this gets, as after `load_state_dict`; the next one by default.

        Returns:
            The version.
        """
        if workers is not None:
            return self.publish_each(dict.fromkeys(workers, models), version)
        with self._shared({None: models}) as shared:
            return self._register.put(shared[None], version).version

    def publish_each(
        self, models: Mapping[int, Models], version: int | None = None, others: Models | None = None
    ) -> int:
        """As `publish`, to some workers, each its own, as one version; `others`, if given, to all others in it."""
        for_others = {} if others is None else {None: others}
        with self._shared({**models, **for_others}) as shared:
            for_all = shared.pop(None, None)
            if for_all is not None:
                version = self._register.put(for_all, version).version
            own = {worker: each for worker, each in shared.items() if worker is not None}
            return self._register.put_each(own, version).version

    def withdraw(self, model_ids: Collection[str]) -> None:
        """Send these models to nobody any more: there are no such, until they are published again."""
        with self._changing, self._lock:
            self._register.withdraw(model_ids)
        self._sweep()

    @contextmanager
    def update_for(self, life: Life) -> Iterator[Update | None]:
        """What a life of a worker has not been sent yet, for a request that is sent within this context.

        `None` if it has the newest that is meant for it. Requests to one worker are sent one after another, so that
        none overtakes the one that brings the weights. After an exception inside it counts as not sent.
        """
        worker, _ = life
        with self._turn(worker):
            with self._lock:
                before = self._register.sent(worker)
                due = self._register.due(life)
                update = None if due is None else self._naming(due[0].version, due[1])
            try:
                yield update
            except BaseException:
                if update is not None:
                    self._not_sent(worker, before)
                raise
            finally:
                self._forget(update)

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Nothing becomes the newest meanwhile, but by this thread: requests sent within bring the same weights.

        Whoever publishes waits for the end of it; it must be short.
        """
        with self._changing:
            yield

    def version_of(self, worker: int) -> int:
        """What the worker runs when it has answered all it was sent; 0 before it was sent any."""
        with self._lock:
            sent = self._register.sent(worker)
        return sent.mark.version if sent else 0

    def version_for(self, worker: int) -> int:
        """The newest that is meant for the worker."""
        with self._lock:
            return self._register.newest(worker).version

    def newest(self, worker: int) -> dict[str, Snapshot]:
        """Copies of the weights that are meant for the worker; without models that were never published."""
        with self._lock:
            update = self._naming(self.version, self._register.meant(worker))
        try:
            return {model_id: copy.deepcopy(shared.open()) for model_id, shared in update.models.items()}
        finally:
            self._forget(update)

    def joined(self, worker: int, *, own_weights: bool = False) -> None:
        """A worker was added.

        Args:
            worker: its index.
            own_weights: all its lives are built with weights of its own, which stay until the next publication.
        """
        with self._lock:
            self._register.joined(worker, own_weights=own_weights)

    def left(self, worker: int) -> None:
        """A worker is gone for good; what only it would have been sent is released."""
        with self._lock:
            self._register.left(worker)
        self._sweep()

    def lost(self, life: Life) -> None:
        """What this life was sent did not arrive; it is sent again."""
        worker, number = life
        with self._lock:
            sent = self._register.sent(worker)
            if sent is not None and sent.life == number:
                self._register.resend(worker)

    @contextmanager
    def _shared(self, models: Mapping[Who, Models]) -> Iterator[dict[Who, dict[str, Shared]]]:
        """Each snapshot, once, where workers can read it; the body then changes the register, in one go."""
        given = {who: _without_none(each) for who, each in models.items()}
        with self._publishing:
            made = self._put({id(snapshot): snapshot for each in given.values() for snapshot in each.values()})
        with self._changing, self._lock:
            self._kept.update({id(shared): shared for shared in made.values()})
            yield {
                who: {model_id: made[id(snapshot)] for model_id, snapshot in each.items()}
                for who, each in given.items()
            }
        self._sweep()

    def _put(self, snapshots: Mapping[int, Any]) -> dict[int, Shared]:
        made: dict[int, Shared] = {}
        try:
            for key, snapshot in snapshots.items():
                made[key] = self._share(snapshot)
        except BaseException:
            for shared in made.values():
                shared.release()
            raise
        return made

    def _not_sent(self, worker: int, before: Sent | None) -> None:
        with self._lock:
            self._register.resend(worker, before)

    def _turn(self, worker: int) -> Any:
        with self._lock:
            return self._sending.setdefault(worker, threading.RLock())

    def _naming(self, version: int, models: Mapping[str, Shared]) -> Update:
        """An update that keeps what it names from being released, until it is forgotten."""
        self._named.update(map(id, models.values()))
        return Update(version, models)

    def _forget(self, update: Update | None) -> None:
        if update is not None and update.models:
            with self._lock:
                self._named -= Counter(map(id, update.models.values()))
            self._sweep()

    def _sweep(self) -> None:
        """Release what nobody will be sent any more."""
        with self._lock:
            used = {*map(id, self._register.items()), *self._named}
            unused = [self._kept.pop(key) for key in set(self._kept) - used]
        for shared in unused:
            shared.release()


def _without_none(models: Models) -> dict[str, Any]:
    return {model_id: snapshot for model_id, snapshot in models.items() if snapshot is not None}
