"""`MultiSyncCollector` and `MultiAsyncCollector`: experience from many workers on this machine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from swath.collect.saving import TRAJ_POOL, require_state
from swath.collectors.assembly import require_agreement
from swath.collectors.base import SHUTDOWN_S, BaseCollector
from swath.collectors.checks import check_peers_knobs, whole_number, with_method, worker_index
from swath.collectors.many import ManyWorkers
from swath.collectors.request import CollectorRequest, Order
from swath.collectors.state import OWN, load_fleet, saved_fleet
from swath.collectors.weight_settings import WeightSettings
from swath.collectors.worker_settings import requests_of, settings_of, shares_of, sources_of, total_of
from swath.errors import warn_of_no_effect
from swath.nearest import spelled
from swath.options import (
    RESTARTS,
    Budget,
    Hooks,
    OnEnvError,
    Restarts,
    Survival,
    Trajectories,
    TrajFormat,
    count,
    seconds,
)
from swath.report.progress import as_progress
from swath.rollout.policies.calling import ExplorationType
from swath.weight_update.kinds import SharedMemWeightSyncScheme
from swath.weights.due import Automatic


class LocalMultiCollector(ManyWorkers):
    """What `MultiSyncCollector` and `MultiAsyncCollector` have in common: they differ in the order of batches alone.

    Args:
        create_env_fn: an env source, or a list of one per worker: a gymnasium id, a callable that returns an env, an
            env. Sources go to the workers by cloudpickle, lambdas too.
        policy: `None` (random actions), a TensorDict module, an `nn.Module` or a callable; workers act on copies of it.
        policy_factory: builds the policy in each worker instead; a list has one per worker.
        frames_per_batch: frames of a batch; a sequence has one number per worker.
        total_frames: the run ends with the first batch that reaches it; `None` and negative numbers mean no end.
        sync: `None`, or what the class does.
        num_workers: how many workers get a single source.
        envs_per_worker: how many envs each worker builds and steps together.
        create_env_kwargs: keywords for the id or callable; a list has one dict per worker.
        seed: as `set_seed(seed)` after construction.
        device: fills the other devices where these are `None`; all four may be lists, one entry per worker.
        storing_device: where batches live.
        env_device: where envs run.
        policy_device: where policies run.
        max_frames_per_traj: an episode is truncated at this many steps.
        init_random_frames: as many frames are collected with random actions first, in whole batches.
        reset_at_each_iter: begin new episodes with every fragment.
        set_truncated: mark the last step of each fragment as truncated.
        split_trajs: one row per trajectory, padded with zeros, with a mask.
        trajs_per_batch: batches of this many complete episodes; `frames_per_batch` is then the size of a poll.
        traj_format: `"padded"` `[n, T_max]` or `"cat"` `[ΣT]`, for `trajs_per_batch`.
        trajs_per_write: episodes per write to the replay buffer.
        replay_buffer: any object with `extend(td)`; batches are written to it, and iteration yields `None`.
        postproc: turns each batch into what is delivered.
        pre_collect_hook: called before each fragment, in the worker.
        post_collect_hook: called with each fragment `[*B, T]`, in the worker.
        exploration_type: how the policy picks actions.
        trust_policy: call the policy with the TensorDict, unchecked.
        compile_policy: compile the policy with torch; `True` or a dict of options.
        cudagraph_policy: capture the policy in a CUDA graph; `True` or a dict of options.
        auto_register_policy_transforms: `None` supplies `is_init` and recurrent state where the env does not; `True`
            does so by transforms around the env, if it is one of TorchRL's; `False` supplies neither.
        no_cuda_sync: no explicit CUDA synchronisation; copies wait for their own data in any case.
        compact_obs: no observations under `"next"`.
        weight_updater: delivers weights in its own way: a `WeightUpdaterBase`, a class of these, or a callable.
        weight_sync_schemes: schemes by model: what can be updated. With one for `"policy"`, `policy` may be given
            beside `policy_factory`: it is then only where weights come from.
        weight_recv_schemes: schemes by model, whose newest weights are taken at the start of every batch.
        track_policy_version: add `"policy_version"` and `("next", "policy_version")`.
        track_traj_ids: keep trajectory ids.
        worker_idx: index of this collector inside a larger one.
        preemptive_threshold: synchronous only; once this part of the shares is in, the rest stop at their next step.
        cat_results: `None` or `"stack"` for `[W, *B, T]`; synchronous only: an int to concatenate along.
        num_threads: torch threads of this process until shutdown; `None` leaves them.
        num_sub_threads: torch threads of each process; threads share those of this one.
        init_fn: runs first in each worker, before env and policy.
        update_at_each_batch: publish the policy's weights whenever a batch is drawn.
        backend: `"process"` or `"thread"`.
        prefetch: how many batches or fragments are asked for ahead; `None` for 0 if synchronous, else 1.
        max_staleness: asynchronous only; fragments more versions behind are dropped and counted.
        restarts: how often workers that died are replaced.
        min_workers: with fewer that live or are coming back the run ends; `None` means all.
        fragment_timeout_s: a worker that takes longer for a fragment is replaced; `None` for no deadline.
        placement_timeout_s: a worker that is not ready by then is not coming; `None` for no deadline.
        on_env_error: `"raise"`, `"reset"` that env alone, or `"restart"` the worker.
        check_finite: raise `NonFinite` when an observation, reward or policy output is NaN or infinite.
        progress: show workers, frames/s, staleness and more while it collects: `True`, or a `Progress`.
        collector_class: `None` or `Collector`.
        return_same_td: `False`; batches own their memory.
        reset_when_done: `True`; an env that is done always begins another episode.
        use_buffers: has no effect; buffers are always used.
        extend_buffer: has no effect if `False`; a replay buffer is always extended.

    Raises:
        TypeError: an argument of the wrong kind, or a policy or env that cannot be pickled.
        ValueError: a number out of range, options that contradict each other, workers whose shares differ.
        PlacementFailed: workers were not ready in time.
        Exception: what building an env or a policy raised, as its own type.
    """

    _sync: ClassVar[bool]

    @spelled
    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *args: Any,
        policy_factory: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        frames_per_batch: int | Sequence[int],
        total_frames: int | None = -1,
        sync: bool | None = None,
        num_workers: int | None = None,
        envs_per_worker: int | None = None,
        create_env_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        seed: int | None = None,
        device: Any = None,
        storing_device: Any = None,
        env_device: Any = None,
        policy_device: Any = None,
        max_frames_per_traj: int | None = None,
        init_random_frames: int | None = None,
        reset_at_each_iter: bool = False,
        set_truncated: bool = False,
        split_trajs: bool | None = None,
        trajs_per_batch: int | None = None,
        traj_format: TrajFormat | None = None,
        trajs_per_write: int | None = None,
        replay_buffer: Any = None,
        postproc: Callable[[Any], Any] | None = None,
        pre_collect_hook: Callable[[], Any] | None = None,
        post_collect_hook: Callable[[Any], Any] | None = None,
        exploration_type: ExplorationType | str = ExplorationType.RANDOM,
        trust_policy: bool | None = None,
        compile_policy: bool | Mapping[str, Any] | None = None,
        cudagraph_policy: bool | Mapping[str, Any] | None = None,
        auto_register_policy_transforms: bool | None = None,
        no_cuda_sync: bool = False,  # noqa: ARG002  both values hold: copies wait for their data
        compact_obs: bool = False,
        weight_updater: Any = None,
        weight_sync_schemes: Mapping[str, Any] | None = None,
        weight_recv_schemes: Mapping[str, Any] | None = None,
        track_policy_version: Any = False,
        track_traj_ids: bool = True,
        worker_idx: int | None = None,
        preemptive_threshold: float | None = None,
        cat_results: str | int | None = None,
        num_threads: int | None = None,
        num_sub_threads: int = 1,
        init_fn: Callable[[], Any] | None = None,
        update_at_each_batch: bool = False,
        backend: str = "process",
        prefetch: int | None = None,
        max_staleness: int | None = None,
        restarts: Restarts = RESTARTS,
        min_workers: int | None = None,
        fragment_timeout_s: float | None = 600.0,
        placement_timeout_s: float | None = 300.0,
        on_env_error: OnEnvError = "raise",
        check_finite: bool = False,
        progress: Any = None,
        collector_class: Any = None,
        return_same_td: bool = False,
        reset_when_done: bool = True,
        use_buffers: bool | None = None,
        extend_buffer: bool = True,
    ) -> None:
        if sync not in (None, self._sync):
            raise ValueError(f"sync={sync} is not what {type(self).__name__} does; leave it out, or use MultiCollector")
        name = type(self).__name__
        if args:
            raise TypeError(f"{name} takes at most 2 positional arguments (env, policy), got {2 + len(args)}")
        check_peers_knobs(
            return_same_td=return_same_td,
            reset_when_done=reset_when_done,
            use_buffers=use_buffers,
            extend_buffer=extend_buffer,
        )
        require_plain(collector_class)
        self._worker_idx = None if worker_idx is None else worker_index(worker_idx)
        self._frames_per_batch = frames_per_batch
        envs = sources_of(create_env_fn, num_workers, "num_workers")
        n_workers = len(envs)
        threads = None if num_threads is None else count("num_threads", num_threads)
        order = Order(self._sync, prefetch, max_staleness, preemptive_threshold, cat_results)
        buffer = with_method("replay_buffer", replay_buffer, "extend")
        trajectories = Trajectories(bool(split_trajs), trajs_per_batch, trajs_per_write, traj_format)
        weight_settings = WeightSettings.of(
            policy,
            policy_factory,
            weight_updater,
            (weight_sync_schemes, SharedMemWeightSyncScheme),
            weight_recv_schemes,
        )
        view = as_progress(progress)
        settings = settings_of(
            n_workers,
            policy_factory=policy_factory,
            create_env_kwargs=create_env_kwargs,
            envs_per_worker=envs_per_worker,
            device=device,
            storing_device=storing_device,
            env_device=env_device,
            policy_device=policy_device,
            max_frames_per_traj=max_frames_per_traj,
            reset_at_each_iter=reset_at_each_iter,
            set_truncated=set_truncated,
            exploration_type=exploration_type,
            trust_policy=trust_policy,
            compile_policy=compile_policy,
            cudagraph_policy=cudagraph_policy,
            auto_register_policy_transforms=auto_register_policy_transforms,
            compact_obs=compact_obs,
            track_policy_version=track_policy_version,
            track_traj_ids=track_traj_ids,
            on_env_error=on_env_error,
            check_finite=check_finite,
        )
        require_agreement(settings[0].entries, trajectories, writes=buffer is not None)
        shares = shares_of(frames_per_batch, n_workers, sync=self._sync)
        request = CollectorRequest(
            workers=requests_of(
                envs,
                weight_settings.acting,
                settings,
                shares,
                trajectories,
                threads=threads_of_worker(num_sub_threads, backend),
                masked=preemptive_threshold is not None,
            ),
            order=order,
            budget=Budget.asked(total_of(frames_per_batch), total_frames, init_random_frames),
            entries=settings[0].entries,
            trajectories=trajectories,
            hooks=Hooks(postproc, pre_collect_hook, post_collect_hook),
            survival=Survival(restarts, min_workers, fragment_timeout_s, placement_timeout_s),
            automatic=Automatic.asked(after_each_batch=update_at_each_batch, before_first=self._sync),
            buffer=buffer,
            seed=None if seed is None else whole_number("seed", seed),
            name=name,
            index=self._worker_idx or 0,
            backend=local_backend(backend),
            init_fn=init_fn,
        )
        self._begin(request, weight_settings, view)
        self._threads_before: int | None = None
        if threads is not None:
            self._threads_before = torch.get_num_threads()
            torch.set_num_threads(threads)

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Stop background mode, ask workers to close their envs, then end them. Twice is fine; from any thread.

        Args:
            timeout: seconds that workers have to close their envs; `None` for 10. Then they are killed.
            close_env: must be true: the envs live in the workers.
            raise_on_error: whether an error of `env.close()` is raised.

        Raises:
            RuntimeError: `close_env=False`.
            ValueError: `timeout` is no finite number of seconds; nothing has happened.
            Exception: what `env.close()` raised.
        """
        if not close_env:
            raise RuntimeError("close_env=False: the envs live in the workers and end with them; leave it out")
        patience = SHUTDOWN_S if timeout is None else seconds("timeout", timeout)
        try:
            self._end(patience)
        except Exception:
            if raise_on_error:
                raise
        finally:
            before, self._threads_before = self._threads_before, None
            if before is not None:
                torch.set_num_threads(before)

    def state_dict(self) -> OrderedDict[str, Any]:
        """`worker0`, `worker1`, … each with its weights, transforms, seed and life; and the counters of all.

        Simulators and what is in flight are not saved. A worker that is being replaced, or gone, is given with the
        newest weights meant for it, and without transforms.

        Raises:
            WorkerLate: a worker did not answer in time.
            Exception: what stopped the background thread.
        """
        self.collection.gate.require_open()
        self._background.raise_kept()
        workers, own = saved_fleet(self.collection)
        for part in workers.values():
            del part[TRAJ_POOL]
        return OrderedDict({f"worker{worker}": part for worker, part in workers.items()} | own)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore what `state_dict` saved; what is in flight is dropped, and new episodes begin in new lives.

        Raises:
            TypeError: no state dict.
            KeyError: parts are missing, unless `strict=False`, or weights do not fit.
            ValueError: weights of other shapes, or of more workers, unless `strict=False`.
            WorkerLate: a worker did not answer in time.
        """
        self.collection.gate.require_open()
        require_state(state_dict)
        names = {f"worker{worker}": worker for worker in sorted(self.collection.jobs.described)}
        missing = [part for part in (*names, *OWN) if part not in state_dict]
        if missing and strict:
            raise KeyError(f"the state dict lacks {missing}; pass strict=False to restore what is there")
        others = [name for name in state_dict if name.startswith("worker") and name not in names]
        if others and strict:
            raise ValueError(f"the state dict has {others}, too; this collector has {len(names)} workers")
        none = {TRAJ_POOL: {"traj_id": torch.tensor(0)}}
        parts = {worker: {**none, **state_dict[name]} for name, worker in names.items() if name in state_dict}
        load_fleet(self.collection, parts, state_dict, strict=strict)

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """The same as `shutdown`."""
        self.shutdown(timeout, close_env)


class MultiSyncCollector(LocalMultiCollector):
    """Batches `[W, *B, T]` with a share of every worker, from processes or threads on this machine."""

    __doc__ = f"{__doc__}\n\n{LocalMultiCollector.__doc__}"
    _sync = True


class MultiAsyncCollector(LocalMultiCollector):
    """Batches `[*B, T]` of one worker each, the first that is ready first served."""

    __doc__ = f"{__doc__}\n\n{LocalMultiCollector.__doc__}"
    _sync = False


def MultiCollector(*args: Any, sync: bool, **keywords: Any) -> LocalMultiCollector:  # noqa: N802  TorchRL's name
    """A `MultiSyncCollector` or a `MultiAsyncCollector`.

    Args:
        *args: of that class.
        sync: whether every batch has a share of every worker.
        **keywords: of that class.
    """
    return (MultiSyncCollector if sync else MultiAsyncCollector)(*args, **keywords)


def local_backend(name: str) -> str:
    """Where the workers of this machine live.

    Raises:
        ValueError: another word.
    """
    if name not in ("process", "thread", "inline"):
        raise ValueError(f"backend={name!r} must be 'process' or 'thread'; for 'ray' use RayCollector")
    return name


def threads_of_worker(number: int, backend: str) -> int:
    """Torch's threads in a worker; threads of this process have none of their own.

    Raises:
        ValueError: it is not an integer, or below 1.
    """
    threads = count("num_sub_threads", number)
    if backend == "thread" and threads != 1:
        warn_of_no_effect("num_sub_threads", "threads share torch's with this process; set num_threads")
    return threads


def require_plain(collector_class: Any) -> None:
    """Raise `TypeError` unless it is `None` or our `Collector`, which is not imported here: it imports this module."""
    ours = isinstance(collector_class, type) and issubclass(collector_class, BaseCollector)
    if collector_class is not None and not (ours and collector_class.__name__ == "Collector"):
        raise TypeError(f"collector_class={collector_class!r} must be None or Collector; RayCollector takes others")
