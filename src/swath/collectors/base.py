"""What all collectors share: they are drawn from, steered, measured and shut down in the same way."""

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

from swath.collectors.assembly import assemble
from swath.collectors.background import Background
from swath.collectors.delivery import Drawn
from swath.collectors.options import AnyOptions, Automatic, whole_number
from swath.collectors.outlet import WeightOutlet
from swath.collectors.paths import call_at, follow
from swath.collectors.responding import weights_of
from swath.collectors.service import CollectorService
from swath.collectors.state import facts_of, saved_fleet, status_line
from swath.collectors.worker_request import WorkerRequest
from swath.errors import warn
from swath.group.stats import viewed
from swath.options import count, deadline, seconds
from swath.report.progress import Progress, as_progress
from swath.seeds import derive
from swath.weights.schemes import OUTLETS, WeightSyncScheme, require_schemes
from swath.weights.snapshot import POLICY
from swath.weights.updaters import WeightUpdaterBase
from swath.workers.garbage import GarbageWatch

PAUSE_S = 30.0
SHUTDOWN_S = 10.0
GOODBYE_S = 1.0

Where: TypeAlias = torch.device | list[torch.device | None] | None
"""A device; with many workers a list of one per worker. `None` is none in particular."""


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


class BaseCollector(ABC):
    """Base of all collectors; none derives from another. After shutdown all but facts raises `Closed`."""

    _progress: Progress | None = None

    def _begin(self, options: AnyOptions, workers: Sequence[WorkerRequest]) -> None:
        """Bring the workers up, and show them; blocks until all have built env and policy. All or nothing is left.

        Raises:
            TypeError: a weight updater and schemes, or something that is neither.
            ValueError: options contradict each other, or automatic updates have nothing to publish.
        """
        options.require_consistent(len(workers))
        view, mine = as_progress(options.progress), weakref.ref(self)
        self._worker_idx = options.worker_idx

        def publish() -> None:
            if (held := mine()) is not None:
                held.update_policy_weights_()

        self.collection = assemble(type(self).__name__, options, workers, publish)
        self._background, self._at_end = Background(self.collection), ExitStack()
        end = partial(end_quietly, self.collection, self._background)
        if self.collection.member is not None:
            self.collection.member.outside = mine
            weakref.finalize(self, end)
        else:
            self._at_end.callback(GarbageWatch(self, end).end)
        try:
            self._begin_weights(options)
        except BaseException:
            theirs = options.here and workers[0].source.is_instance
            self._end(GOODBYE_S, close_env=not theirs)
            raise
        self._progress = None if view is None else view.watch(self)

    def _end(self, timeout: float, *, close_env: bool = True) -> None:
        """Stop background mode and end the workers; what closing their envs raised is raised."""
        if self._progress is not None:
            self._progress.close()
        with self._at_end:
            try:
                self.collection.close(timeout, close_env=close_env)
            finally:
                self._background.stop(timeout)

    def _draw(self) -> Drawn:
        """The next batch, or the end of the run."""
        if self._background.running:
            raise RuntimeError(
                f"this {self.collection.gate.name} is collecting in the background; pause it or read the replay buffer"
            )
        if self._background.error is not None:
            self._background.raise_kept()
        try:
            return self.collection.draw()
        except StopIteration as error:  # it would end the user's loop as if the run were complete
            raised = RuntimeError("an env, the policy, a hook or the postproc raised StopIteration; catch it there")
            for note in getattr(error, "__notes__", ()):
                raised.add_note(note)
            raise raised from error

    def _saved(self) -> tuple[dict[int, OrderedDict[str, Any]], dict[str, Any]]:
        """What every worker saves, by worker, and the counters of all."""
        self._require_ready()
        return saved_fleet(self.collection)

    def _begin_weights(self, options: AnyOptions) -> None:
        """Set up the updater, schemes that send and that receive, and what workers begin with.

        Raises:
            TypeError: something that is neither.
            ValueError: automatic updates have nothing to publish.
        """
        outlet = self._outlet = OUTLETS[self] = WeightOutlet(self.collection, options.policy)
        self.weight_updater = options.weight_updater
        for model_id, scheme in require_schemes("weight_sync_schemes", options.weight_sync_schemes).items():
            scheme.init_on_sender(model_id=model_id, context=self)
        if options.automatic != Automatic() and not outlet.has_source():
            raise ValueError(
                "automatic updates of weights have no source: give a policy, an updater, or a scheme's weights"
            )
        outlet.begin()
        if options.weight_recv_schemes is not None:
            self.register_scheme_receiver(options.weight_recv_schemes)

    def _require_ready(self) -> None:
        self._background.raise_kept()
        self.collection.gate.require_open()

    @abstractmethod
    def shutdown(self, timeout: float | None = None) -> None:
        """Stop, and leave nothing behind."""

    def __repr__(self) -> str:
        """A status line."""
        return status_line(type(self).__name__, self.collection, self._background)

    def __iter__(self) -> Iterator[TensorDictBase]:
        """An iterator on the one stream of this collector: leaving a loop loses nothing, a second loop goes on."""
        return Batches(self._draw)

    def iterator(self) -> Iterator[TensorDictBase]:
        """The same as `iter(self)`."""
        return iter(self)

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
        """Within the `with` block nothing is written to the replay buffer by the background thread.

        Args:
            timeout: how long to wait for what is in flight, in seconds.
            resume: whether to go on afterwards; `start()` does so later, too.

        Raises:
            ValueError: `timeout` is no finite number of seconds.
            WorkerLate: what is in flight was not written in time; collection goes on.
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
        """Whether it collects in the background; also while `pause` holds it."""
        return self._background.running

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
        are copied into the policy at once, or right after the running batch; there, within draws, the user's own
        module acts, so that without weights there is nothing to copy, and in the background a snapshot of it, which
        gets what the module has now. With a weight updater all this is the updater's business.

        Args:
            policy_or_weights: a module, a TensorDict, a dict of tensors, nested or as `state_dict()` gives, or
                `{worker: weights}`; `None` for the weights that the collector's own policy has now.
            weights: a TensorDict or dict.
            policy: a module.
            worker_ids: whom it is for: an int, a list of ints, a device, or a list of devices where policies run; not
                with one worker in this process.
            model_id: which model; `"policy"` by default.
            weights_dict: `{model_id: weights}`, all in one version.
            wait: return when every addressed worker that is up runs this version or a newer one.
            timeout_s: how long to wait, in seconds; `None` for `fragment_timeout_s`.
            policy_weights: the old name of the first argument.

        Raises:
            TypeError: not weights, or `worker_ids` where there is one worker.
            KeyError: names do not fit, or an unknown model.
            ValueError: shapes do not fit, two forms at once, or no such worker. In all cases nothing is published.
            RuntimeError: no weights, and nothing to fetch them from.
            WorkerLate: `wait`, and somebody does not run it in time; the weights are published all the same.
        """
        if policy_weights is not None:
            warn("policy_weights= is now policy_or_weights=", DeprecationWarning)
        forms = {"policy_or_weights": policy_or_weights, "policy_weights": policy_weights, "weights": weights}
        given = weights_of(model_id, {**forms, "policy": policy, "weights_dict": weights_dict})
        patience = deadline("timeout_s", timeout_s)
        self._require_ready()
        updater = self._outlet.updater
        if updater is None:
            self._outlet.require_models(*given)
            self._outlet.publish(given, worker_ids)
        else:
            if model_id is not None or weights_dict is not None:
                form, kind = "weights_dict" if model_id is None else "model_id", type(updater).__name__
                raise ValueError(f"{form} is given, but the weight updater {kind} serves the policy alone")
            self._outlet.addressed(worker_ids)
            with self._outlet.one_version():
                updater.push_weights(given[POLICY], worker_ids)
        if wait:
            self._outlet.wait(worker_ids, patience)

    def publish_weights(self, weights: Any, *, worker_ids: Any = None, model_id: str = POLICY) -> int:
        """Publish weights past any updater.

        Args:
            weights: as in `update_policy_weights_`.
            worker_ids: as there.
            model_id: which model.

        Returns:
            The version; within a push of an updater that which the push will be.
        """
        self._require_ready()
        self._outlet.require_models(model_id)
        return self._outlet.publish({model_id: weights}, worker_ids)

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Bring weights into this collector.

        With registered receivers: the newest of each; if there is nothing newer nothing happens, and nobody waits.
        Without: those that are passed, past any updater; or as `update_policy_weights_()`, and nothing happens if there
        is no source.

        Args:
            policy_or_weights: a module, a TensorDict or a dict.
            weights: a TensorDict or dict.
            policy: a module.

        Raises:
            ValueError: two sources, or one beside registered receivers.
            RuntimeError: a sender cannot be reached.
        """
        self.collection.gate.require_open()
        given = weights_of(None, {"policy_or_weights": policy_or_weights, "weights": weights, "policy": policy})[POLICY]
        if self._outlet.receivers:
            if given is not None:
                raise ValueError("weights are given, but this collector takes its weights from registered receivers")
            self._outlet.receive()
        elif given is not None:
            self.publish_weights(given)
        elif self._outlet.updater is not None or self._outlet.has_source():
            self.update_policy_weights_()

    def register_scheme_receiver(
        self, weight_recv_schemes: Mapping[str, WeightSyncScheme], *, synchronize_weights: bool = True
    ) -> None:
        """Take weights from these schemes from now on: the newest of each at the start of every batch.

        Args:
            weight_recv_schemes: by model; one that was registered for the same model is shut down.
            synchronize_weights: take the newest now, too, if there is one.

        Raises:
            TypeError: not a dict of schemes.
            RuntimeError: a scheme is a sender in this process, or its sender cannot be reached.
        """
        self.collection.gate.require_open()
        schemes = require_schemes("weight_recv_schemes", weight_recv_schemes)
        self._outlet.receive_from(schemes, self, self._worker_idx)
        for scheme in schemes.values():
            self._at_end.callback(scheme.shutdown)
        if synchronize_weights:
            self._outlet.receive()

    @property
    def weight_updater(self) -> WeightUpdaterBase | None:
        """Delivers weights in its own way; an instance, a class or a callable can be assigned, `None` removes it."""
        updater: WeightUpdaterBase | None = self._outlet.updater
        return updater

    @weight_updater.setter
    def weight_updater(self, updater: Any) -> None:
        self.collection.gate.require_open()
        made = updater
        if isinstance(updater, type) and issubclass(updater, WeightUpdaterBase):
            made = updater.from_policy(self._outlet.policy) or updater()
        elif not isinstance(updater, WeightUpdaterBase) and callable(updater):
            made = updater()
        if isinstance(made, WeightUpdaterBase):
            made.register_collector(self)
        elif made is not None:
            wanted = "an instance of a WeightUpdaterBase, a class of these, or a callable that makes one"
            raise TypeError(f"weight_updater is of type {type(made).__name__}; give {wanted}")
        self._outlet.updater = made

    def init_updater(self, *args: Any, **kwargs: Any) -> None:
        """Call `init` of the weight updater; without one do nothing."""
        self.collection.gate.require_open()
        if self._outlet.updater is not None:
            self._outlet.updater.init(*args, **kwargs)

    def increment_version(self) -> int:
        """Publish the newest weights again under the next version, and return it."""
        return self._outlet.publish({})

    @property
    def policy_version(self) -> int:
        """The newest version that was published; 0 at construction."""
        return self.collection.version

    def get_policy_version(self) -> int:
        """The same as `policy_version`."""
        return self.collection.version

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow names, dots and `[literal]` from this object and call what is found.

        Raises:
            AttributeError: a part is missing.
            ValueError: arguments for something that cannot be called.
        """
        self.collection.gate.require_open()
        return call_at(self, attr_path, args, kwargs)

    def getattr_env(self, name: str) -> Any:
        """An attribute of the first worker's env; of the first of several copies."""
        return self.collection.open_group.call_first("getattr_env", name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the first worker's policy."""
        return self.collection.open_group.call_first("getattr_policy", name)

    def getattr_rb(self, name: str) -> Any:
        """An attribute of the replay buffer."""
        self.collection.gate.require_open()
        return follow(self.collection.buffer, name)

    def get_model(self, model_id: str) -> Any:
        """The model of an id; with workers elsewhere a copy of it, as the first worker has it.

        Raises:
            AttributeError: a path that leads nowhere.
        """
        return self.collection.open_group.call_first("get_model", model_id)

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
        index = count("worker_idx", value, least=0)
        self.collection.move_to(index)
        self._worker_idx = index

    @property
    def pre_collect_hook(self) -> Callable[[], Any] | None:
        """Called before each fragment, where it is made."""
        return self.collection.jobs.hooks.before

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Callable[[], Any] | None) -> None:
        self.collection.set_hooks(before=hook)

    @property
    def post_collect_hook(self) -> Callable[[Any], Any] | None:
        """Called with each fragment, in the worker; in this process with each batch before it is handed out."""
        return self.collection.jobs.hooks.after

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        self.collection.set_hooks(after=hook)

    def set_post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        """The same as assigning `post_collect_hook`."""
        self.post_collect_hook = hook

    @property
    def num_workers(self) -> int:
        """How many workers there are to be."""
        return len(self.collection.group.frames)

    @property
    def num_collectors(self) -> int:
        """How many workers there are to be."""
        return self.num_workers

    @property
    def frames_per_batch(self) -> Any:
        """The number given."""
        return self.collection.options.frames_per_batch

    @property
    def requested_frames_per_batch(self) -> int:
        """Frames of a batch: the number given, rounded up to whole steps."""
        return self.collection.batch_frames

    @property
    def total_frames(self) -> int:
        """Frames of the run; -1 for no end."""
        total = self.collection.group.total
        return -1 if total is None else total

    @property
    def device(self) -> Where:
        """The device given for all."""
        return self._each([one.options.devices.common for one in self.collection.jobs.requests.values()])

    @property
    def env_device(self) -> Where:
        """Where envs run."""
        return self._each([one.env_device or torch.device("cpu") for one in self.collection.jobs.described.values()])

    @property
    def policy_device(self) -> Where:
        """Where policies run, as given or found; `None` if neither says more than the CPU."""
        return self._each([one.policy_device for one in self.collection.jobs.described.values()])

    @property
    def storing_device(self) -> Where:
        """Where batches live; `None` sets no device."""
        return self._each([one.options.devices.storing for one in self.collection.jobs.requests.values()])

    def _each(self, devices: Sequence[torch.device | None]) -> Where:
        return devices[0] if self.collection.options.here else list(devices)

    def stats(self, workers: str = "aggregate", timeout: float = 10.0) -> dict[str, Any]:  # noqa: ARG002  never waits
        """Numbers, bools and short strings on this collector; asks nobody, never blocks, works after shutdown.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.
            timeout: always kept.
        """
        return viewed(workers, *facts_of(self.collection, self._background))

    def __len__(self) -> int:
        """How many batches the run has.

        Raises:
            TypeError: the run has no end, or batches are made of whole episodes.
        """
        if self.total_frames < 0 or self.collection.delivery.trajectories.per_batch is not None:
            raise TypeError("this collector has no len(): its run is endless, or made of whole episodes")
        return math.ceil(self.total_frames / self.requested_frames_per_batch)

    def __bool__(self) -> bool:
        """A collector is true, however many batches it has."""
        return True

    def __enter__(self) -> Self:
        """The collector itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Shut down."""
        self.shutdown()


class LocalCollector(BaseCollector):
    """Base of those whose workers are on this machine."""

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Stop at the next step, close the envs, end workers and background thread. Twice is fine; from any thread.

        Args:
            timeout: seconds to wait for steps in progress and for envs to close; `None` for 10. Workers elsewhere are
                killed then.
            close_env: whether to close the envs, also an instance that was passed in; must be true with many workers,
                in which the envs live.
            raise_on_error: whether an error of `env.close()` is raised.

        Raises:
            ValueError: `timeout` is no finite number of seconds; nothing has happened.
            RuntimeError: `close_env=False`, with many workers.
            WorkerLate: a step in this process did not return in time; the envs are closed as soon as it does.
            Exception: what `env.close()` raised.
        """
        if not (close_env or self.collection.options.here):
            raise RuntimeError("close_env=False: the envs live in the workers and end with them; leave it out")
        patience = SHUTDOWN_S if timeout is None else seconds("timeout", timeout)
        try:
            self._end(patience, close_env=close_env)
        except Exception:
            if raise_on_error:
                raise

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """The same as `shutdown`."""
        self.shutdown(timeout, close_env)


DataCollectorBase = BaseCollector
