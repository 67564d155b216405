"""What all collectors share: they are drawn from, steered, measured and shut down in the same way."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn, Self

from tensordict import TensorDictBase

from swath.collectors.assembly import move_fleet, seed_all
from swath.collectors.background import Background
from swath.collectors.checks import whole_number, worker_index
from swath.collectors.delivery import Drawn, Hooks
from swath.collectors.messages import Description
from swath.collectors.paths import call_at, follow
from swath.collectors.request import CollectorRequest
from swath.collectors.service import CollectorService
from swath.collectors.status import status_line
from swath.collectors.weight_methods import TakesWeights
from swath.collectors.worker_request import Seeding
from swath.group.stats import viewed
from swath.options import seconds
from swath.report.progress import Progress
from swath.seeds import derive

PAUSE_S = 30.0
SHUTDOWN_S = 10.0
GOODBYE_S = 1.0


class Batches(Iterator[TensorDictBase]):
    """An iterator on a collector's one stream. An exception does not end it: draw again."""

    def __init__(self, draw: Callable[[], Drawn]) -> None:
        self._draw = draw

    def __next__(self) -> TensorDictBase:
        """The next batch; where batches are written to a replay buffer it is `None`, whatever the type says."""
        drawn = self._draw()
        if drawn.ended:
            raise StopIteration
        batch: TensorDictBase = drawn.batch
        return batch


def end_quietly(collection: CollectorService, background: Background) -> None:
    """End what was left when a collector is collected as garbage or the interpreter exits."""
    with suppress(Exception):
        collection.close(GOODBYE_S)
    background.stop(GOODBYE_S)


class BaseCollector(TakesWeights, ABC):
    """Base of all collectors; none derives from another. After shutdown all but facts raises `Closed`."""

    collection: CollectorService
    _request: CollectorRequest
    _worker_idx: int | None
    _progress: Progress | None = None

    @abstractmethod
    def described(self) -> Description:
        """What its batches and weights are like, as those of one worker."""

    def _be_ready(self, view: Progress | None) -> None:
        """Take weights from elsewhere at every draw, and be shown, if that is wished."""
        self.collection.plan.renewal.receive = self._outlet.receive
        self._progress = None if view is None else view.watch(self)

    def _end(self, timeout: float, *, close_env: bool = True) -> None:
        """Stop background mode and end the workers; what closing their envs raised is raised."""
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.close()
        try:
            with self._background.ending(timeout):
                self.collection.close(timeout, close_env=close_env)
        finally:
            self._outlet.close()

    def _draw(self) -> Drawn:
        """The next batch, or the end of the run."""
        if self._background.running:
            raise RuntimeError(
                f"this {self.collection.gate.name} is collecting in the background; pause it or read the replay buffer"
            )
        self._background.raise_kept()
        try:
            return self.collection.draw()
        except StopIteration as error:  # it would end the user's loop as if the run were complete
            raised = RuntimeError("an env, the policy, a hook or the postproc raised StopIteration; catch it there")
            for note in getattr(error, "__notes__", ()):
                raised.add_note(note)
            raise raised from error

    @abstractmethod
    def shutdown(self, timeout: float | None = None) -> None:
        """Stop, and leave nothing behind."""

    @property
    @abstractmethod
    def _hooks(self) -> Hooks:
        """The functions that are called around fragments."""

    @abstractmethod
    def _set_hooks(self, *, before: Any = ..., after: Any = ...) -> None:
        """Set one of them, or both."""

    @abstractmethod
    def _facts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Numbers, bools and short strings: of all together, and by worker."""

    def __repr__(self) -> str:
        """A status line."""
        return status_line(self.collection, self._background)

    def __iter__(self) -> Iterator[TensorDictBase]:
        """An iterator on the one stream of this collector: leaving a loop loses nothing, a second loop goes on."""
        return Batches(self._draw)

    def iterator(self) -> Iterator[TensorDictBase]:
        """The same as `iter(self)`."""
        return Batches(self._draw)

    def next(self) -> TensorDictBase | None:
        """The next batch; `None` at the end, and where batches are written to a replay buffer."""
        batch: TensorDictBase | None = self._draw().batch
        return batch

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed envs, action sampling and the generators as the workers see them; begin fresh episodes.

        Args:
            seed: the root seed.
            static_seed: give every env `seed` itself.

        Returns:
            The number with which another call goes on without overlap; `seed` with `static_seed`.
        """
        root = whole_number("seed", seed)
        self.collection.gate.require_open()
        seed_all(self.collection, Seeding(root, static_seed))
        return root if static_seed else derive(root, "next")

    def start(self) -> None:
        """Collect into the replay buffer in a background thread, until the total, `pause` or shutdown.

        In this process the thread acts on a copy of the policy made now; `update_policy_weights_` renews it. No-op if
        it is running.

        Raises:
            RuntimeError: there is no replay buffer.
            Exception: what stopped the thread before.
        """
        self.collection.gate.require_open()
        if self.collection.buffer is None:
            raise RuntimeError("start() collects into a replay buffer in the background: pass replay_buffer=")
        self._background.raise_kept()
        self._background.start()

    @contextmanager
    def pause(self, timeout: float = PAUSE_S, *, resume: bool = True) -> Iterator[None]:
        """Within the `with` block nothing is written to the replay buffer by the background thread.

        Args:
            timeout: how long to wait for what is in flight, in seconds.
            resume: whether to go on afterwards; `start()` does so later, too.

        Raises:
            ValueError: `timeout` is no finite number of seconds.
            WorkerLate: what is in flight was not written in time; collection goes on.
            Exception: what stopped the thread.
        """
        self.collection.gate.require_open()
        self._background.raise_kept()
        self._background.pause(seconds("timeout", timeout))
        try:
            yield
        finally:
            if resume:
                self._background.resume()
            else:
                self._background.stop(timeout)

    def is_running(self) -> bool:
        """Whether it collects in the background; also while `pause` holds it."""
        return self._background.running

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow names, dots and `[literal]` from this object and call what is found.

        Raises:
            AttributeError: a part is missing.
            ValueError: arguments for something that cannot be called.
        """
        self.collection.gate.require_open()
        return call_at(self, attr_path, args, kwargs)

    def getattr_rb(self, name: str) -> Any:
        """An attribute of the replay buffer."""
        self.collection.gate.require_open()
        return follow(self.collection.buffer, name)

    @property
    def worker_idx(self) -> int:
        """Index of this collector inside a larger one; another one begins fresh episodes.

        In trajectory ids and seeds worker `j` of `W` is worker `worker_idx * W + j`.

        Raises:
            RuntimeError: it was never set.
        """
        if self._worker_idx is None:
            raise RuntimeError("worker_idx was never set; pass worker_idx= or assign it")
        return self._worker_idx

    @worker_idx.setter
    def worker_idx(self, value: int) -> None:
        index = worker_index(value)
        move_fleet(self.collection, index)
        self._worker_idx = index

    @property
    def pre_collect_hook(self) -> Callable[[], Any] | None:
        """Called before each fragment, where it is made."""
        return self._hooks.before

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Callable[[], Any] | None) -> None:
        self.collection.gate.require_open()
        self._set_hooks(before=hook)

    @property
    def post_collect_hook(self) -> Callable[[Any], Any] | None:
        """Called with each fragment, in the worker; in this process with each batch before it is handed out."""
        return self._hooks.after

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        self.collection.gate.require_open()
        self._set_hooks(after=hook)

    def set_post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        """The same as assigning `post_collect_hook`."""
        self.post_collect_hook = hook

    @property
    def num_workers(self) -> int:
        """How many workers there are to be."""
        return len(self.collection.plan.frames)

    @property
    def num_collectors(self) -> int:
        """How many workers there are to be."""
        return self.num_workers

    @property
    def frames_per_batch(self) -> Any:
        """The number given."""
        return self._request.options.frames_per_batch

    @property
    def requested_frames_per_batch(self) -> int:
        """Frames of a batch: the number given, rounded up to whole steps."""
        return self.collection.batch_frames

    @property
    def total_frames(self) -> int:
        """Frames of the run; -1 for no end."""
        total = self.collection.budget.total_frames
        return -1 if total is None else total

    def stats(self, workers: str = "aggregate", timeout: float = 10.0) -> dict[str, Any]:  # noqa: ARG002  never waits
        """Numbers, bools and short strings on this collector; asks nobody, never blocks, works after shutdown.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.
            timeout: always kept.
        """
        return viewed(workers, *self._facts())

    def __len__(self) -> int:
        """How many batches the run has.

        Raises:
            TypeError: the run has no end, or batches are made of whole episodes.
        """
        if self.total_frames < 0 or self.collection.shaper.trajectories.per_batch is not None:
            raise TypeError("this collector has no len(): its run is endless, or made of whole episodes")
        return math.ceil(self.total_frames / self.requested_frames_per_batch)

    def __bool__(self) -> bool:
        """A collector is true, however many batches it has."""
        return True

    def __reduce__(self) -> NoReturn:
        """Refused: the envs and threads of a collector exist once, where it was built.

        Raises:
            TypeError: always; the message names the way out.
        """
        raise TypeError(
            f"{type(self).__name__} cannot be copied or pickled; build another one where it is needed, "
            "and carry its state over with state_dict() and load_state_dict()"
        )

    def __enter__(self) -> Self:
        """The collector itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Shut down."""
        self.shutdown()


DataCollectorBase = BaseCollector
