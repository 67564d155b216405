"""The base of all collectors: draws, controls, facts and shutdown."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Self, TypeAlias

import torch
from tensordict import TensorDictBase

from swath.collectors.assembly import assemble
from swath.collectors.background import Background
from swath.collectors.delivery import ENDED
from swath.collectors.messages import WorkerRequest
from swath.collectors.options import AnyOptions, whole_number
from swath.collectors.remote import call_at, follow
from swath.collectors.service import CollectorService
from swath.collectors.state import facts_of, saved_fleet, status_line
from swath.collectors.weights import TakesWeights
from swath.group.stats import viewed
from swath.options import count, seconds
from swath.report.display import Progress, as_progress
from swath.seeds import derive
from swath.workers.garbage import GarbageWatch

PAUSE_S = 30.0
SHUTDOWN_S = 10.0
GARBAGE_CLOSE_S = 1.0

Devices: TypeAlias = torch.device | list[torch.device | None] | None
"""A device; with many workers a list of one per worker. `None` if no device was set."""


def end_quietly(collection: CollectorService, background: Background) -> None:
    """End a collection whose collector is collected as garbage, or when the interpreter exits."""
    with suppress(Exception):
        collection.close(GARBAGE_CLOSE_S)
    background.stop(GARBAGE_CLOSE_S)


def weak_call(method: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls a method, unless its object was collected as garbage."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        if (bound := reference()) is not None:
            bound()

    return call


class BaseCollector(TakesWeights, ABC):
    """Base of all collectors; none derives from another. After shutdown all methods but facts raise `Closed`."""

    _progress: Progress | None = None

    def _begin(self, options: AnyOptions, workers: Sequence[WorkerRequest]) -> None:
        """Start the workers and show them; block until all have built env and policy, or close everything.

        Raises:
            TypeError: a weight updater and schemes, or something that is neither.
            ValueError: options contradict each other, or automatic updates have nothing to publish.
        """
        options.require_consistent(len(workers))
        view, self._worker_idx = as_progress(options.progress), options.worker_idx
        publish, receive = weak_call(self.update_policy_weights_), weak_call(self._receive_registered)
        self.collection = assemble(type(self).__name__, options, workers, publish, receive)
        self._background, self._at_end = Background(self.collection), ExitStack()
        end = partial(end_quietly, self.collection, self._background)
        if self.collection.member is not None:
            weakref.finalize(self, end)
        else:
            self._at_end.callback(GarbageWatch(self, end).end)
        try:
            self._begin_weights(options)
        except BaseException:
            keeps_env = options.in_process and workers[0].source.is_instance
            self._end(GARBAGE_CLOSE_S, close_env=not keeps_env)
            raise
        self._progress = None if view is None else view.watch(self)

    def _end(self, timeout: float, *, close_env: bool = True) -> None:
        """Stop background mode and end the workers; raise what closing their envs raised."""
        if self._progress is not None:
            self._progress.close()
        with self._at_end:
            try:
                self.collection.close(timeout, close_env=close_env)
            finally:
                self._background.stop(timeout)

    def _draw(self) -> Any:
        """Return the next batch, or `ENDED`."""
        if self._background.running:
            raise RuntimeError(
                f"this {self.collection.access.name} collects in the background; pause it or read the replay buffer"
            )
        if self._background.error is not None:
            self._background.raise_error()
        try:
            return self.collection.draw()
        except StopIteration as error:  # it would end the user's loop as if the run were complete
            raised = RuntimeError("an env, the policy, a hook or the postproc raised StopIteration; catch it there")
            for note in getattr(error, "__notes__", ()):
                raised.add_note(note)
            raise raised from error

    def _saved(self) -> tuple[dict[int, OrderedDict[str, Any]], dict[str, Any]]:
        """Return the state of every worker, and the counters of all."""
        self._require_ready()
        return saved_fleet(self.collection)

    @abstractmethod
    def shutdown(self, timeout: float | None = None) -> None:
        """Stop, and end everything that the collector has started."""

    def __repr__(self) -> str:
        """Return a status line."""
        return status_line(type(self).__name__, self.collection, self._background)

    def __iter__(self) -> Iterator[TensorDictBase]:
        """Return the collector itself: leaving a loop loses nothing, a second loop goes on."""
        return self

    def iterator(self) -> Iterator[TensorDictBase]:
        """Return `iter(self)`."""
        return self

    def __next__(self) -> TensorDictBase:
        """Return the next batch; where batches are written to a replay buffer it is `None`, whatever the type says.

        An exception does not end the stream: draw again.
        """
        batch: TensorDictBase = self._draw()
        if batch is ENDED:
            raise StopIteration
        return batch

    def next(self) -> TensorDictBase | None:
        """Return the next batch; `None` at the end, and where batches are written to a replay buffer."""
        batch: TensorDictBase | None = self._draw()
        return None if batch is ENDED else batch

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed envs, action sampling and the generators as the workers see them; begin fresh episodes.

        Args:
            seed: the root seed.
            static_seed: give every env `seed` itself.

        Returns:
            The seed for another call, whose seeds do not overlap with these; `seed` with `static_seed`.
        """
        root = whole_number("seed", seed)
        self.collection.access.require_open()
        self.collection.seed(root, static=static_seed)
        return root if static_seed else derive(root, "next")

    def start(self) -> None:
        """Collect into the replay buffer in a background thread, until the total, `pause` or shutdown.

        In this process the thread acts on a copy of the policy made now; `update_policy_weights_` renews it. No-op if
        it is running.

        Raises:
            RuntimeError: there is no replay buffer.
            Exception: what stopped the thread before.
        """
        self._require_ready()
        if self.collection.buffer is None:
            raise RuntimeError("start() collects into a replay buffer in the background: pass replay_buffer=")
        self._background.start()

    @contextmanager
    def pause(self, timeout: float = PAUSE_S, *, resume: bool = True) -> Iterator[None]:
        """Keep the background thread from writing to the replay buffer within the `with` block.

        Args:
            timeout: how long to wait until pending fragments are written, in seconds.
            resume: whether to go on afterwards; `start()` does so later, too.

        Raises:
            ValueError: `timeout` is not a finite number of seconds.
            WorkerLate: pending fragments were not written in time; collection goes on.
            Exception: what stopped the thread.
        """
        self._require_ready()
        self._background.pause(seconds("timeout", timeout))
        try:
            yield
        finally:
            if resume:
                self._background.resume()
            else:
                self._background.stop(timeout)

    def is_running(self) -> bool:
        """Return whether it collects in the background, or is paused."""
        return self._background.running

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow names, dots and `[literal]` from this object and call what is found.

        Raises:
            AttributeError: a part is missing.
            ValueError: arguments for something that cannot be called.
        """
        self.collection.access.require_open()
        return call_at(self, attr_path, args, kwargs)

    def getattr_env(self, name: str) -> Any:
        """Return an attribute of the first worker's env; of the first of several copies."""
        return self.collection.open_group.call_first("cascade_execute", "getattr_env", name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the first worker's policy."""
        return self.collection.open_group.call_first("cascade_execute", "getattr_policy", name)

    def getattr_rb(self, name: str) -> Any:
        """An attribute of the replay buffer."""
        self.collection.access.require_open()
        return follow(self.collection.buffer, name)

    def get_model(self, model_id: str) -> Any:
        """Return the model of an id; with workers elsewhere a copy of the first worker's.

        Raises:
            AttributeError: a part of the path is missing.
        """
        return self.collection.open_group.call_first("get_model", model_id)

    @property
    def worker_idx(self) -> int:
        """Return the index of this collector inside a larger one; setting another one begins fresh episodes.

        In trajectory ids and seeds worker `j` of `W` is worker `worker_idx * W + j`.

        Raises:
            RuntimeError: it was never set.
        """
        if self._worker_idx is None:
            raise RuntimeError("worker_idx was never set; pass worker_idx= or assign it")
        return self._worker_idx

    @worker_idx.setter
    def worker_idx(self, value: int) -> None:
        index = count("worker_idx", value, minimum=0)
        self.collection.move_to(index)
        self._worker_idx = index

    @property
    def pre_collect_hook(self) -> Callable[[], Any] | None:
        """Return the function that is called before each fragment, where it is made."""
        return self.collection.jobs.hooks.before

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Callable[[], Any] | None) -> None:
        self.collection.set_hooks(before=hook)

    @property
    def post_collect_hook(self) -> Callable[[Any], Any] | None:
        """Return the function that is called with each fragment in the worker; in this process with each batch."""
        return self.collection.jobs.hooks.after

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        self.collection.set_hooks(after=hook)

    def set_post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        """Set `post_collect_hook`."""
        self.post_collect_hook = hook

    @property
    def num_workers(self) -> int:
        """Return the number of workers, also of those that were lost."""
        return len(self.collection.group.shares)

    @property
    def num_collectors(self) -> int:
        """Return the number of workers, also of those that were lost."""
        return self.num_workers

    @property
    def frames_per_batch(self) -> Any:
        """Return the argument `frames_per_batch`."""
        return self.collection.options.frames_per_batch

    @property
    def requested_frames_per_batch(self) -> int:
        """Return the frames of a batch: `frames_per_batch`, rounded up to whole steps."""
        return self.collection.batch_frames

    @property
    def total_frames(self) -> int:
        """Return the frames of the run; -1 for no end."""
        total = self.collection.group.total
        return -1 if total is None else total

    @property
    def device(self) -> Devices:
        """Return the argument `device`."""
        return self._one_or_all([worker.options.devices.common for worker in self.collection.jobs.requests.values()])

    @property
    def env_device(self) -> Devices:
        """Return the device of envs."""
        described = self.collection.jobs.described.values()
        return self._one_or_all([worker.env_device or torch.device("cpu") for worker in described])

    @property
    def policy_device(self) -> Devices:
        """Return the device of policies; `None` if it was not set and their weights are on the CPU."""
        return self._one_or_all([worker.policy_device for worker in self.collection.jobs.described.values()])

    @property
    def storing_device(self) -> Devices:
        """Return the device of batches; `None` sets no device."""
        return self._one_or_all([worker.options.devices.storing for worker in self.collection.jobs.requests.values()])

    def _one_or_all(self, devices: Sequence[torch.device | None]) -> Devices:
        return devices[0] if self.collection.options.in_process else list(devices)

    def stats(self, workers: str = "aggregate", timeout: float = 10.0) -> dict[str, Any]:  # noqa: ARG002  never waits
        """Return numbers, bools and short strings; ask no worker, never block, work after shutdown.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.
            timeout: has no effect.
        """
        return viewed(workers, *facts_of(self.collection, self._background))

    def __len__(self) -> int:
        """Return the number of batches of the run.

        Raises:
            TypeError: the run has no end, or batches consist of whole episodes.
        """
        if self.total_frames < 0 or self.collection.delivery.trajectories.per_batch is not None:
            raise TypeError("this collector has no len(): its run is endless, or its batches consist of whole episodes")
        return math.ceil(self.total_frames / self.requested_frames_per_batch)

    def __bool__(self) -> bool:
        """Return true, whatever the number of batches."""
        return True

    def __enter__(self) -> Self:
        """Return the collector itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Shut down."""
        self.shutdown()


class LocalCollector(BaseCollector):
    """Base of collectors whose workers are on this machine."""

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Stop at the next step, close the envs, end workers and background thread. Twice is fine; from any thread.

        Args:
            timeout: seconds to wait for steps in progress and for envs to close; `None` for 10. Workers elsewhere are
                killed then.
            close_env: whether to close the envs, also an instance that was passed in; must be true with many workers,
                in which the envs live.
            raise_on_error: whether an error of `env.close()` is raised.

        Raises:
            ValueError: `timeout` is not a finite number of seconds; nothing has happened.
            RuntimeError: `close_env=False`, with many workers.
            WorkerLate: a step in this process did not return in time; the envs are closed as soon as it does.
            Exception: what `env.close()` raised.
        """
        if not (close_env or self.collection.options.in_process):
            raise RuntimeError("close_env=False: the envs live in the workers and end with them; leave it out")
        patience = SHUTDOWN_S if timeout is None else seconds("timeout", timeout)
        try:
            self._end(patience, close_env=close_env)
        except Exception:
            if raise_on_error:
                raise

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Call `shutdown`."""
        self.shutdown(timeout, close_env)


DataCollectorBase = BaseCollector
