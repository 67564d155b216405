"""The base of all collectors: draws, controls, facts and shutdown."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Self, TypeAlias

import torch
from tensordict import TensorDictBase

from swath.collectors.background import Background
from swath.collectors.delivery import ENDED
from swath.collectors.messages import WorkerRequest
from swath.collectors.options import AnyOptions, Automatic, whole_number
from swath.collectors.remote import call_at, follow
from swath.collectors.service import CollectorService, assemble
from swath.collectors.state import facts_of, saved_fleet, status_line
from swath.collectors.weights import weights_of
from swath.errors import warn
from swath.group.group import select_view
from swath.options import count, deadline, seconds
from swath.report.display import Progress, as_progress
from swath.seeds import derive
from swath.weights.schemes import WeightSyncScheme, require_schemes
from swath.weights.snapshot import POLICY
from swath.weights.updaters import WeightUpdaterBase
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
        if (bound_method := reference()) is not None:
            bound_method()

    return call


class BaseCollector(ABC):
    """Base of all collectors. After shutdown only `stats()`, `repr` and properties work; all else raises `Closed`.

    Weights are published from any thread, before, during and between draws.
    """

    _progress: Progress | None = None

    def _begin(self, options: AnyOptions, workers: Sequence[WorkerRequest]) -> None:
        """Start the workers and show them; block until all have built env and policy, or close everything.

        Raises:
            TypeError: a weight updater and schemes, or something that is neither.
            ValueError: options contradict each other, or automatic updates have nothing to publish.
        """
        options.require_consistent(len(workers))
        view, self._worker_idx = as_progress(options.progress), options.worker_idx
        self.collection = assemble(type(self).__name__, options, workers, weak_call(self.update_policy_weights_))
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

    def _begin_weights(self, options: AnyOptions) -> None:
        """Set up the updater, sending and receiving schemes, and the first weights of workers.

        Raises:
            TypeError: neither an updater nor schemes.
            ValueError: automatic updates have nothing to publish.
        """
        publisher = self.collection.weights
        publisher.initialize()
        self.weight_updater = options.weight_updater
        for model_id, scheme in require_schemes("weight_sync_schemes", options.weight_sync_schemes).items():
            scheme.init_on_sender(model_id=model_id, context=self)
        if options.automatic != Automatic() and not publisher.has_source():
            raise ValueError(
                "automatic updates of weights have no source: give a policy, an updater, or a scheme's weights"
            )
        publisher.begin()
        if options.weight_recv_schemes is not None:
            self.register_scheme_receiver(options.weight_recv_schemes)

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
            failure = RuntimeError("an env, the policy, a hook or the postproc raised StopIteration; catch it there")
            for note in getattr(error, "__notes__", ()):
                failure.add_note(note)
            raise failure from error

    def _saved_states(self) -> tuple[dict[int, OrderedDict[str, Any]], dict[str, Any]]:
        """Return the state of every worker, and the counters of all."""
        self._require_ready()
        return saved_fleet(self.collection)

    def _require_ready(self) -> None:
        self._background.raise_error()
        self.collection.access.require_open()

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
            The seed for another call, whose seeds do not overlap with seeds of this call; `seed` with `static_seed`.
        """
        root = whole_number("seed", seed)
        self.collection.seed(root, static=static_seed)
        return root if static_seed else derive(root, "next")

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        *,
        weights: Any = None,
        policy: Any = None,
        worker_ids: Any = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
        wait: bool = False,
        timeout_s: float | None = None,
        policy_weights: Any = None,
    ) -> None:
        """Publish weights under the next version. Values are read before this returns, and it waits for no worker.

        With many workers, each takes them with its next request, between two fragments. With one in this process they
        are copied into the policy at once, or right after the running batch; within draws the user's own module acts,
        so that nothing is copied without weights, and in the background a snapshot of it, which gets the module's
        present weights. If there is a weight updater, it delivers the weights instead.

        Args:
            policy_or_weights: a module, a TensorDict, a dict of tensors, nested or as `state_dict()` gives, or
                `{worker: weights}`; `None` for the weights that the collector's own policy has now.
            weights: a TensorDict or dict.
            policy: a module.
            worker_ids: the workers that get them: an int, a list of ints, a device, or a list of devices where policies
                run; not with one worker in this process.
            model_id: which model; `"policy"` by default.
            weights_dict: `{model_id: weights}`, all in one version.
            wait: return when every addressed worker that is up runs this version or a newer one.
            timeout_s: how long to wait, in seconds; `None` for `fragment_timeout_s`.
            policy_weights: the old name of the first argument.

        Raises:
            TypeError: not weights, or `worker_ids` where there is one worker.
            KeyError: names do not fit, or an unknown model.
            ValueError: shapes do not fit, two forms at once, or an unknown worker. In all cases nothing is published.
            RuntimeError: no weights, and no source to fetch them from.
            WorkerLate: `wait`, and a worker does not run the version in time; the weights are published all the same.
        """
        if policy_weights is not None:
            warn("policy_weights= is now policy_or_weights=", DeprecationWarning)
        forms = {"policy_or_weights": policy_or_weights, "policy_weights": policy_weights, "weights": weights}
        models = weights_of(model_id, {**forms, "policy": policy, "weights_dict": weights_dict})
        limit = deadline("timeout_s", timeout_s)
        self._require_ready()
        updater = self.collection.weights.updater
        if updater is None:
            self.collection.weights.require_models(*models)
            self.collection.weights.publish(models, worker_ids)
        else:
            if model_id is not None or weights_dict is not None:
                form, kind = "weights_dict" if model_id is None else "model_id", type(updater).__name__
                raise ValueError(f"{form} is given, but the weight updater {kind} serves the policy alone")
            self.collection.weights.find_workers(worker_ids)
            with self.collection.weights.one_version():
                updater.push_weights(models[POLICY], worker_ids)
        if wait:
            self.collection.weights.wait(worker_ids, limit)

    def publish_weights(self, weights: Any, *, worker_ids: Any = None, model_id: str = POLICY) -> int:
        """Publish weights without the weight updater.

        Args:
            weights: weights, as in `update_policy_weights_`.
            worker_ids: workers, as in `update_policy_weights_`.
            model_id: which model.

        Returns:
            The version; within a push of an updater the one that the push will have.
        """
        self._require_ready()
        self.collection.weights.require_models(model_id)
        return self.collection.weights.publish({model_id: weights}, worker_ids)

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Fetch weights from receivers, or publish weights.

        With registered receivers: take the newest of each; without newer weights do nothing, at once. Without
        receivers: publish the argument without the updater, or call `update_policy_weights_()`, or do nothing without a
        source.

        Args:
            policy_or_weights: a module, a TensorDict or a dict.
            weights: a TensorDict or dict.
            policy: a module.

        Raises:
            ValueError: two sources, or a source and registered receivers.
            RuntimeError: a sender cannot be reached.
        """
        self.collection.access.require_open()
        forms = {"policy_or_weights": policy_or_weights, "weights": weights, "policy": policy}
        source = weights_of(None, forms)[POLICY]
        if self.collection.weights.receivers:
            if source is not None:
                raise ValueError("weights are given, but this collector takes its weights from registered receivers")
            self.collection.weights.receive()
        elif source is not None:
            self.publish_weights(source)
        elif self.collection.weights.updater is not None or self.collection.weights.has_source():
            self.update_policy_weights_()

    def register_scheme_receiver(
        self, weight_recv_schemes: Mapping[str, WeightSyncScheme], *, synchronize_weights: bool = True
    ) -> None:
        """Take weights from schemes from now on: the newest of each at the start of every batch.

        Args:
            weight_recv_schemes: schemes by model; an earlier one for the same model is shut down.
            synchronize_weights: take the newest now, too, if there is one.

        Raises:
            TypeError: not a dict of schemes.
            RuntimeError: a scheme is a sender in this process, or its sender cannot be reached.
        """
        self.collection.access.require_open()
        schemes = require_schemes("weight_recv_schemes", weight_recv_schemes)
        self.collection.weights.receive_from(schemes, self, self._worker_idx)
        for scheme in schemes.values():
            self._at_end.callback(scheme.shutdown)
        if synchronize_weights:
            self.collection.weights.receive()

    @property
    def weight_updater(self) -> WeightUpdaterBase | None:
        """Return the weight updater; an instance, a class or a callable can be assigned, `None` removes it."""
        updater: WeightUpdaterBase | None = self.collection.weights.updater
        return updater

    @weight_updater.setter
    def weight_updater(self, updater: Any) -> None:
        self.collection.access.require_open()
        if isinstance(updater, type) and issubclass(updater, WeightUpdaterBase):
            updater = updater.from_policy(self.collection.weights.policy) or updater()
        elif not isinstance(updater, WeightUpdaterBase) and callable(updater):
            updater = updater()
        if isinstance(updater, WeightUpdaterBase):
            updater.register_collector(self)
        elif updater is not None:
            expected = "an instance or subclass of WeightUpdaterBase, or a callable that makes an instance"
            raise TypeError(f"weight_updater is of type {type(updater).__name__}; give {expected}")
        self.collection.weights.updater = updater

    def init_updater(self, *args: Any, **kwargs: Any) -> None:
        """Call `init` of the weight updater; without one do nothing."""
        self.collection.access.require_open()
        if self.collection.weights.updater is not None:
            self.collection.weights.updater.init(*args, **kwargs)

    def increment_version(self) -> int:
        """Publish the newest weights again under the next version, and return it."""
        return self.collection.weights.publish({})

    @property
    def policy_version(self) -> int:
        """Return the newest published version; 0 at construction."""
        return self.collection.version

    def get_policy_version(self) -> int:
        """Return `policy_version`."""
        return self.collection.version

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
        """Return whether the collector collects in the background, or is paused there."""
        return self._background.running

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow names, dots and `[literal]` from this object, and call the object at the end.

        Raises:
            AttributeError: a part is missing.
            ValueError: arguments for something that cannot be called.
        """
        self.collection.access.require_open()
        return call_at(self, attr_path, args, kwargs)

    def getattr_env(self, name: str) -> Any:
        """Return an attribute of the first worker's env; of several copies, of the first one."""
        return self.collection.open_group.call_first("cascade_execute", "getattr_env", name)

    def getattr_policy(self, name: str) -> Any:
        """Return an attribute of the first worker's policy."""
        return self.collection.open_group.call_first("cascade_execute", "getattr_policy", name)

    def getattr_rb(self, name: str) -> Any:
        """Return an attribute of the replay buffer."""
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

    num_collectors = num_workers

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
        return self._per_worker([worker.options.devices.common for worker in self.collection.jobs.requests.values()])

    @property
    def env_device(self) -> Devices:
        """Return the device of envs."""
        described = self.collection.jobs.described.values()
        return self._per_worker([worker.env_device or torch.device("cpu") for worker in described])

    @property
    def policy_device(self) -> Devices:
        """Return the device of policies; `None` if it was not set and their weights are on the CPU."""
        return self._per_worker([worker.policy_device for worker in self.collection.jobs.described.values()])

    @property
    def storing_device(self) -> Devices:
        """Return the device of batches; `None` sets no device."""
        return self._per_worker([worker.options.devices.storing for worker in self.collection.jobs.requests.values()])

    def _per_worker(self, devices: Sequence[torch.device | None]) -> Devices:
        return devices[0] if self.collection.options.in_process else list(devices)

    def stats(self, workers: str = "aggregate", timeout: float = 10.0) -> dict[str, Any]:  # noqa: ARG002  never waits
        """Return numbers, bools and short strings; ask no worker, never block, work after shutdown.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.
            timeout: has no effect.
        """
        return select_view(workers, *facts_of(self.collection, self._background))

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
        """Stop at the next step, close the envs, end workers and background thread. Any thread may call it again.

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
        limit = SHUTDOWN_S if timeout is None else seconds("timeout", timeout)
        try:
            self._end(limit, close_env=close_env)
        except Exception:
            if raise_on_error:
                raise

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """Call `shutdown`."""
        self.shutdown(timeout, close_env)


DataCollectorBase = BaseCollector
