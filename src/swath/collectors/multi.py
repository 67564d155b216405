"""`MultiSyncCollector` and `MultiAsyncCollector`: experience from many workers on this machine."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import torch

from swath.collectors.base import BaseCollector, LocalCollector
from swath.collectors.collector import Collector
from swath.collectors.jobs import expand, sources_of, worker_requests
from swath.collectors.options import AnyOptions, MultiOptions
from swath.collectors.remote import TRAJ_POOL, ArgLists, KwargLists, pair, require_parts
from swath.collectors.state import COUNTERS, load_fleet
from swath.errors import warn_of_no_effect
from swath.nearest import with_options
from swath.options import count


class ManyWorkers(BaseCollector):
    """Base of collectors with many workers.

    Control calls are answered between two fragments; facts ask no worker and never wait.
    """

    def reset(self, reset_idx: Any = None) -> None:
        """Begin fresh episodes in all envs, or in those of some workers; drop their pending fragments.

        Args:
            reset_idx: one bool per worker.

        Raises:
            ValueError: not one bool per worker.
            WorkerLate: a worker did not answer in time.
        """
        workers = None if reset_idx is None else self._workers_of(reset_idx)
        collection = self.collection
        with collection.dropping(workers) as calls:
            calls.update(dict.fromkeys(collection.group.shares if workers is None else workers, ("reset",)))

    def get_distant_attr(self, path: str) -> list[Any]:
        """Return the object at the end of a path in each worker, in order; leave out workers that are gone for good.

        Args:
            path: as in `"policy.layers[0].weight"`, `"env.limit"`, or `"env[0].limit"` of the first of several envs.

        Raises:
            AttributeError: a part is missing.
            WorkerLate: a worker did not answer in time, or did not come back.
        """
        group = self.collection.open_group
        return list(group.call_each(group.to_all("get_distant_attr", path)).values())

    def map_fn(self, method_name: str, list_of_args: ArgLists = None, list_of_kwargs: KwargLists = None) -> list[Any]:
        """Call a method of every worker, each with its own arguments; return the answers in order of workers.

        Workers that are being replaced are waited for; those that are gone for good are left out.

        Raises:
            ValueError: not one entry per worker, or lists of different lengths.
            WorkerLate: a worker did not answer in time, or did not come back.
        """
        group, workers = self.collection.open_group, sorted(self.collection.jobs.described)
        entries = pair(list_of_args, list_of_kwargs, len(workers))
        if len(entries) != len(workers):
            raise ValueError(f"Expected {len(workers)} argument entries, one per worker, got {len(entries)}")
        pairs = zip(workers, entries, strict=True)
        calls = {worker: ("map_fn", method_name, [args], [kwargs]) for worker, (args, kwargs) in pairs}
        return [answer for (answer,) in group.call_each(calls).values()]

    def frames_per_batch_worker(self, worker_idx: int | None = None) -> int:
        """Return the frames of one request to a worker.

        Raises:
            ValueError: unknown worker.
        """
        shares = self.collection.group.shares
        worker = min(shares) if worker_idx is None else worker_idx
        if worker not in shares:
            raise ValueError(f"worker_idx={worker_idx!r} is unknown; workers are {sorted(shares)}")
        return shares[worker]

    def fake_tensordict(self) -> Any:
        """Raise `NotImplementedError`."""
        raise NotImplementedError("fake_tensordict() needs the env in this process; use Collector")

    def _workers_of(self, reset_idx: Any) -> list[int]:
        flags, n_workers = np.asarray(reset_idx), len(self.collection.jobs.described)
        if flags.dtype != np.bool_ or flags.size != n_workers:
            raise ValueError(f"reset_idx={reset_idx!r} must be one bool per worker ({n_workers})")
        return [int(worker) for worker in np.flatnonzero(flags)]


class OneOfTwo(ManyWorkers, LocalCollector):
    """Let `MultiCollector(sync=…)` build one of its subclasses; `__init__` below has the signature."""

    def __new__(cls, *_args: Any, sync: bool | None = None, **_keywords: Any) -> Self:
        """Choose the subclass; raise `TypeError` without `sync`."""
        if cls is not MultiCollector:
            return super().__new__(cls)
        if sync is None:
            raise TypeError("MultiCollector does not say in which order batches come; give sync=True or sync=False")
        subclass: Any = MultiSyncCollector if sync else MultiAsyncCollector
        return super().__new__(subclass)  # type: ignore[no-any-return]


class MultiCollector(OneOfTwo):
    """Build a `MultiSyncCollector` or a `MultiAsyncCollector`, which differ only in the order of batches.

    Args:
        create_env_fn: an env source, or a list of one per worker: a gymnasium id, a callable that returns an env, an
            env. Sources go to the workers by cloudpickle, lambdas too.
        policy: `None` (random actions), a TensorDict module, an `nn.Module` or a callable; workers act on copies of it.
        policy_factory: builds the policy in each worker instead; a list has one per worker.
        frames_per_batch: frames of a batch; a sequence has one number per worker.
        total_frames: the run ends with the first batch that reaches it; `None` and negative numbers mean no end.
        sync: whether every batch has a share of every worker, for `MultiCollector`; `None`, or what the class does, for
            the two.
        num_workers: how many workers get a single source.
        envs_per_worker: how many envs each worker builds and steps together.
        env_processes: the number of processes that a worker's envs live in, each with a share of
            `envs_per_worker`; or each with what a callable returns, if that is a vector env. `None` steps them where
            the policy acts.
        step_timeout_s: an env process that takes longer for a step or a reset is replaced; its envs have failed.
        overlap: have the policy act for one half of the env processes while the envs of the other half step. The rows
            are those without it, but the policy is called with half as many, and draws for each half.
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
        plans: call TensorDict modules without containers, where that gives equal bits.
        compile_policy: compile the policy with torch; `True` or a dict of options, `warmup` among them: calls before.
        cudagraph_policy: capture the policy in a CUDA graph; `True` or a dict of options.
        auto_register_policy_transforms: `None` and `True` supply `is_init` and recurrent state where the env does not,
            zero where an episode begins; `False` supplies neither.
        no_cuda_sync: no explicit CUDA synchronisation; copies wait for their own data in any case.
        compact_obs: no observations under `"next"`.
        weight_updater: delivers weights in its own way: an instance or subclass of `WeightUpdaterBase`, or a callable.
        weight_sync_schemes: schemes by model: what can be updated. With one for `"policy"`, `policy` may be given
            together with `policy_factory`: it is then only where weights come from.
        weight_recv_schemes: schemes by model, whose newest weights are taken at the start of every batch.
        track_policy_version: add `"policy_version"` and `("next", "policy_version")`.
        track_traj_ids: keep trajectory ids.
        worker_idx: index of this collector inside a larger one.
        preemptive_threshold: synchronous only; once this part of the shares is in, the rest stop at their next step.
        cat_results: `None` or `"stack"` for `[W, *B, T]`; synchronous only: an int to concatenate along.
        num_threads: torch threads of this process until shutdown; `None` leaves them.
        num_sub_threads: torch threads of each process; threads share the ones of this process.
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
        keep_float64: observations of float64 stay float64, for the policy too; `False` makes them float32 and warns
            once of a value of 2**24 or more, where float32 cannot tell neighbouring integers apart.
        final_observation: `"required"`, or `"missing"` for simulators that reset themselves and do not send the last
            observation of an episode: `("next", "final_observation_missing")`, bool `[*B, T, 1]`, says in which rows
            `"next"` has the first observation of another episode.
        info_keys: entries of the infos of gymnasium's envs, names or paths, to put under `"next"`: float32
            `[*B, T, 1]`, NaN where an info lacks the entry.
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

    @with_options(MultiOptions)
    def __init__(self, options: MultiOptions) -> None:
        name, threads = type(self).__name__, options.num_threads
        if options.sync not in (None, self._sync):
            raise ValueError(f"sync={options.sync} is not what {name} does; leave it out, or use MultiCollector")
        if options.collector_class not in (None, Collector):
            raise TypeError(
                f"collector_class={options.collector_class!r} must be None or Collector; RayCollector takes others"
            )
        if options.backend not in ("process", "thread", "inline"):
            raise ValueError(f"backend={options.backend!r} must be 'process' or 'thread'; for 'ray' use RayCollector")
        if threads is not None:
            count("num_threads", threads)
        if count("num_sub_threads", options.num_sub_threads) != 1 and options.backend == "thread":
            warn_of_no_effect("num_sub_threads", "threads share torch's with this process; set num_threads")
        envs = sources_of(options.create_env_fn, options.num_workers, "num_workers")
        shares = _shares(options.frames_per_batch, len(envs), sync=self._sync)
        all_options = AnyOptions(**{**vars(options), "sync": self._sync})
        per_worker, masked = options.num_sub_threads, options.preemptive_threshold is not None
        requests = worker_requests(all_options, envs, options.policy, shares, threads=per_worker, masked=masked)
        self._begin(all_options, requests)
        if threads is not None:
            self._at_end.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(threads)

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return `worker0`, `worker1`, … each with its weights, transforms, seed and life; and the counters of all.

        Simulators and pending fragments are not saved. A worker that is being replaced, or gone, is saved with the
        newest weights for it, and without transforms.

        Raises:
            WorkerLate: a worker did not answer in time.
            Exception: what stopped the background thread.
        """
        workers, counters = self._saved_states()
        for part in workers.values():
            del part[TRAJ_POOL]
        return OrderedDict({f"worker{worker}": part for worker, part in workers.items()} | counters)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore a state of `state_dict`; drop pending fragments, and begin new episodes in new lives.

        Raises:
            TypeError: not a state dict.
            KeyError: parts are missing, unless `strict=False`, or weights do not fit.
            ValueError: weights of other shapes, or of more workers, unless `strict=False`.
            WorkerLate: a worker did not answer in time.
        """
        self.collection.access.require_open()
        names = {f"worker{worker}": worker for worker in sorted(self.collection.jobs.described)}
        require_parts(state_dict, (*names, *COUNTERS), strict=strict)
        others = [name for name in state_dict if name.startswith("worker") and name not in names]
        if others and strict:
            raise ValueError(f"the state dict has {others}, too; this collector has {len(names)} workers")
        no_ids = {TRAJ_POOL: {"traj_id": torch.tensor(0)}}
        parts = {worker: {**no_ids, **state_dict[name]} for name, worker in names.items() if name in state_dict}
        load_fleet(self.collection, parts, state_dict, strict=strict)


_ARGUMENTS = str(MultiCollector.__doc__).partition("\n\n")[2]


class MultiSyncCollector(MultiCollector):
    """Batches `[W, *B, T]` with a share of every worker, from processes or threads on this machine."""

    __doc__ = f"{__doc__}\n\n{_ARGUMENTS}"
    _sync = True


class MultiAsyncCollector(MultiCollector):
    """Batches `[*B, T]` of one worker each, the first that is ready first served."""

    __doc__ = f"{__doc__}\n\n{_ARGUMENTS}"
    _sync = False


class AsyncCollector(MultiAsyncCollector):
    """Refuse to be built: it is TorchRL's name for what `Collector(env, policy, backend="process")` is here.

    Raises:
        NotImplementedError: always.
    """

    def __init__(self, *_args: Any, **_keywords: Any) -> None:
        raise NotImplementedError(
            "AsyncCollector(env, policy, …) is Collector(env, policy, backend='process', …) here: one worker, in "
            "another process"
        )


def _shares(frames_per_batch: Any, n_workers: int, *, sync: bool) -> list[int]:
    """Return the frames of one request to each worker.

    Args:
        frames_per_batch: of a batch, or of each worker's share.
        n_workers: W.
        sync: whether a batch has a share of every worker.

    Raises:
        ValueError: not positive integers, or a sequence of another length.
    """
    if isinstance(frames_per_batch, list | tuple):
        shares = [count("frames_per_batch", share) for share in expand("frames_per_batch", frames_per_batch, n_workers)]
        return shares if sync else [sum(shares)] * n_workers
    frames = count("frames_per_batch", frames_per_batch)
    return [-(-frames // n_workers) if sync else frames] * n_workers
