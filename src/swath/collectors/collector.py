"""`Collector`: experience from one worker in this process."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from contextvars import copy_context
from typing import Any, Self

import numpy as np
import torch
from tensordict import TensorDictBase

from swath import collectors
from swath.collectors.base import LocalCollector
from swath.collectors.jobs import worker_requests
from swath.collectors.options import AnyOptions, CollectorOptions, whole_number, with_method
from swath.collectors.remote import ArgLists, KwargLists, call_at, follow, pair
from swath.collectors.state import load_fleet
from swath.nearest import with_options

BACKENDS = ("direct", "thread", "process", "multiprocessing", "ray")
RESERVED = {"create_env_fn", "policy", "backend", "backend_options", "num_collectors", "num_workers", "sync"}


class InThisProcess(LocalCollector):
    """Lets `Collector(backend=…)` return another class, as TorchRL's does; `__init__` below has the signature."""

    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        """Build a collector of another class if the backend needs one; no other class does so."""
        other = _build_elsewhere(args, keywords) if cls is Collector else None
        return super().__new__(cls) if other is None else other


class Collector(InThisProcess):
    """Collects batches `[*B, T]` of experience from one env source, in this process, in the thread that draws.

    Args:
        create_env_fn: a gymnasium id, a callable that returns an env, an env, or a list with one entry. A vector env
            is stepped unchanged, and so are any `EnvBase` of TorchRL and any `ParallelEnv` of PettingZoo.
        policy: `None` (random actions), a TensorDict module, an `nn.Module` or a callable.
        policy_factory: builds the policy instead; gets the env if it has a parameter for it.
        frames_per_batch: frames of a batch; rounded up to whole steps of all envs.
        total_frames: the run ends with the first batch that reaches it; `None` and negative numbers mean no end.
        envs_per_worker: how many envs to build and step together; batches are then `[envs_per_worker, T]`.
        env_processes: the number of processes that the envs live in, each with a share of `envs_per_worker`; or
            each with what a callable returns, if that is a vector env. `None` steps them where the policy acts.
        step_timeout_s: an env process that takes longer for a step or a reset is replaced; its envs have failed.
        overlap: have the policy act for one half of the env processes while the envs of the other half step. The rows
            are those without it, but the policy is called with half as many, and draws for each half.
        create_env_kwargs: keywords for the id or callable, or for the makers of a batched TorchRL env.
        seed: as `set_seed(seed)` after construction.
        device: fills `policy_device` and `storing_device` where these are `None`.
        storing_device: where batches live.
        env_device: where the env runs; gymnasium's run where they were built, TorchRL's move there (also by `device`).
        policy_device: where the policy runs; a module that is elsewhere is copied there.
        max_frames_per_traj: an episode is truncated at this many steps; `None`, 0 and negative numbers mean never.
        init_random_frames: as many frames are collected with random actions first, in whole batches.
        reset_at_each_iter: begin new episodes with every batch.
        set_truncated: mark the last step of each batch as truncated.
        split_trajs: one row per trajectory, padded with zeros, with a mask.
        trajs_per_batch: batches of this many complete episodes; `frames_per_batch` is then the size of a poll.
        traj_format: `"padded"` `[n, T_max]` or `"cat"` `[ΣT]`, for `trajs_per_batch`.
        trajs_per_write: episodes per write to the replay buffer.
        replay_buffer: any object with `extend(td)`; batches are written to it, and iteration yields `None`.
        postproc: turns each batch into what is delivered; a module is moved to the batch's device once.
        pre_collect_hook: called before each fragment.
        post_collect_hook: called with each batch before it is handed out.
        exploration_type: how the policy picks actions.
        trust_policy: call the policy with the TensorDict, unchecked.
        plans: call TensorDict modules without containers, where that gives equal bits.
        compile_policy: compile the policy with torch; `True` or a dict of options, `warmup` among them: calls before.
        cudagraph_policy: capture the policy in a CUDA graph; `True` or a dict of options.
        auto_register_policy_transforms: `None` and `True` supply `is_init` and recurrent state where the env does not,
            zero where an episode begins; `False` supplies neither.
        no_cuda_sync: no explicit CUDA synchronisation; the copies made here wait for their own data in any case.
        compact_obs: no observations under `"next"`; those at the end of episodes are then lost.
        weight_updater: delivers weights in its own way: an instance or subclass of `WeightUpdaterBase`, or a callable.
        weight_sync_schemes: not here: for collectors with workers elsewhere.
        weight_recv_schemes: schemes by model, whose newest weights are taken at the start of every batch.
        track_policy_version: add `"policy_version"` and `("next", "policy_version")`.
        track_traj_ids: keep trajectory ids.
        worker_idx: index of this collector inside a larger one; part of trajectory ids and seeds.
        interruptor: its `collection_stopped()` is asked after each step; true ends the batch there: the rows that were
            not made are masked, and at least one was made.
        on_env_error: `"raise"`, `"reset"` that env alone, or `"restart"` the whole source.
        check_finite: raise `NonFinite` when an observation, reward or policy output is NaN or infinite.
        keep_float64: observations of float64 stay float64, for the policy too; `False` makes them float32 and warns
            once of a value of 2**24 or more, where float32 cannot tell neighbouring integers apart.
        final_observation: `"required"`, or `"missing"` for simulators that reset themselves and do not send the last
            observation of an episode: `("next", "final_observation_missing")`, bool `[*B, T, 1]`, says in which rows
            `"next"` has the first observation of another episode.
        info_keys: entries of the infos of gymnasium's envs, names or paths, to put under `"next"`: float32
            `[*B, T, 1]`, NaN where an info lacks the entry.
        progress: show workers, frames/s, staleness and more while it collects: `True`, or a `Progress`.
        backend: where workers live: `"direct"` in this process; `"thread"`, `"process"` or `"ray"` build another
            class. `None` takes the one of an enclosing `torchrl.service_backend(…)`, else `"direct"`, or `"process"` if
            `num_collectors` is given.
        backend_options: further keywords of the class that is built; they may also be given one by one.
        num_collectors: how many workers get a single source.
        sync: elsewhere, whether every batch has a share of every worker.
        return_same_td: `False`; batches own their memory.
        reset_when_done: `True`; an env that is done always begins another episode.
        use_buffers: has no effect; buffers are always used.
        extend_buffer: has no effect if `False`; a replay buffer is always extended.

    Raises:
        TypeError: an argument of the wrong kind, both `policy` and `policy_factory`, a policy that cannot be called.
        ValueError: a number out of range, options that contradict each other, envs that differ, a space that cannot be
            served, an action of the wrong shape.
        KeyError: the policy reads an entry that is not there, or gives no action.
    """

    @with_options(AnyOptions, documented=CollectorOptions)
    def __init__(self, options: AnyOptions) -> None:
        options.require_direct()
        source = options.create_env_fn
        envs = source if isinstance(source, list | tuple) else [source]
        if len(envs) != 1:
            hint = "envs_per_worker builds it several times; MultiSyncCollector takes one for each worker"
            raise ValueError(f"a Collector takes exactly one env source, got {len(envs)}; {hint}")
        interruptor = with_method("interruptor", options.interruptor, "collection_stopped")
        interrupted = None if interruptor is None else interruptor.collection_stopped
        shares = [options.frames_per_batch]
        self._begin(options, worker_requests(options, envs, options.policy, shares, interrupted=interrupted))

    def fake_tensordict(self) -> TensorDictBase:
        """Return a batch of zeros with the keys, shapes and dtypes of real ones, `[*B, T]`."""
        self.collection.access.require_open()
        device = self.collection.jobs.requests[0].options.devices.storing
        zeros: TensorDictBase = self.collection.delivery.without_ids(self.collection.member.zero_batch()).apply(
            torch.zeros_like
        )
        return zeros if device is None else zeros.to(device)

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return counters, weights, version and seed; simulators and pending fragments are not saved.

        Raises:
            Exception: what stopped the background thread.
        """
        workers, counters = self._saved_states()
        return OrderedDict({**workers[0], **counters})

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore a saved state; new episodes begin in a new life.

        Args:
            state_dict: the dict that `state_dict()` returned.
            strict: whether parts may not be missing.

        Raises:
            KeyError: parts are missing, unless `strict=False`, or weights do not fit.
            ValueError: weights of other shapes. In all cases nothing has changed.
        """
        self.collection.access.require_open()
        load_fleet(self.collection, {0: state_dict}, state_dict, strict=strict)

    def reset(self, index: Any = None) -> None:
        """Begin fresh episodes with the next batch, in all envs or in the ones of `index`.

        Args:
            index: env numbers, or one bool per env.

        Raises:
            ValueError: `index` names no envs, or names some of a vector env that cannot reset single envs.
        """
        spec = self.collection.member.host.spec
        if index is not None and not spec.resettable:
            raise ValueError(f"index={index!r}: this vector env cannot reset single envs; reset all of them")
        envs = None if index is None else _env_numbers(index, spec.num_envs)
        with self.collection.dropping(envs=envs) as calls:
            calls[0] = "reset", envs

    def get_distant_attr(self, path: str) -> Any:
        """Return the attribute at the end of a path."""
        with self.collection.access.control():
            return follow(self, path)

    def map_fn(self, method_name: str, list_of_args: ArgLists = None, list_of_kwargs: KwargLists = None) -> list[Any]:
        """Call a method once per entry; once without arguments if there are no lists.

        Raises:
            ValueError: the lists are not of the same length.
        """
        with self.collection.access.control():
            return [call_at(self, method_name, *call) for call in pair(list_of_args, list_of_kwargs, 1)]

    @property
    def env(self) -> Any:
        """Return the live env, vector env, or list of envs."""
        return self.collection.member.host.env

    @property
    def policy(self) -> Any:
        """Return the policy that acts within draws."""
        return self.collection.member.policy

    def frames_per_batch_worker(self, worker_idx: int | None = None) -> int:
        """Return the frames of one worker's share of a batch.

        Raises:
            ValueError: unknown worker.
        """
        index = self.collection.member.worker_idx
        if worker_idx not in (None, 0, index):
            raise ValueError(f"worker_idx={worker_idx!r}: this collector has worker {index} only")
        return self.collection.batch_frames


def _env_numbers(index: Any, num_envs: int) -> list[int]:
    """Return the numbers of the envs that an index of an array selects."""
    try:
        return sorted({*np.atleast_1d(np.arange(num_envs)[np.asarray(index)]).reshape(-1).tolist()})
    except IndexError as error:
        raise ValueError(f"index={index!r}: {error}; give env numbers below {num_envs}, or one bool per env") from error


def _build_elsewhere(args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Build the collector of another class that `Collector(*args, **keywords)` means; `None` for one in this process.

    Raises:
        TypeError: `num_collectors` is not an int, or the class does not take these arguments.
        ValueError: it is not positive, an unknown backend, keys of `backend_options` that are reserved or given twice,
            or a number of workers that does not match the list of sources, or is passed as `num_workers`.
    """
    rest = dict(keywords)
    number, backend = rest.pop("num_collectors", None), rest.pop("backend", None)
    if number is not None and whole_number("num_collectors", number) < 1:
        raise ValueError(f"num_collectors={number} must be a positive integer")
    if (n_workers := rest.pop("num_workers", None)) is not None:
        raise ValueError(f"num_workers={n_workers!r}: Collector calls it num_collectors; give num_collectors instead")
    if backend is None:
        backend = _service_backend()
    place = ("direct" if number is None else "process") if backend is None else backend
    if place not in BACKENDS:
        raise ValueError(f"backend={backend!r} is unknown; backends are {', '.join(map(repr, BACKENDS))}")
    if place == "direct":
        return None
    sync, options = bool(rest.pop("sync", None)), rest.pop("backend_options", None) or {}
    if reserved := sorted(options.keys() & RESERVED):
        raise ValueError(f"backend_options has the reserved keys {reserved}; pass them to Collector itself")
    if duplicate := sorted(options.keys() & rest):
        raise ValueError(
            f"backend_options has the duplicate keys {duplicate}, which Collector has, too; pass them once"
        )
    source = args[0] if args else rest.get("create_env_fn")
    listed = len(source) if isinstance(source, list | tuple) else None
    if number is not None and listed not in (None, number):
        raise ValueError(f"num_collectors={number} does not match the list of {listed} env sources; leave it out")
    rest |= {**options, "sync": sync}
    if place == "ray":
        return collectors.RayCollector(*args, **{**rest, "num_collectors": number})
    place = "process" if place == "multiprocessing" else place
    return collectors.MultiCollector(*args, **{**rest, "backend": place, "num_workers": number or listed or 1})


def _service_backend() -> str | None:
    """Return the backend of an enclosing `torchrl.service_backend(…)`; `None` outside of one.

    Raises:
        ValueError: Swath does not have that backend.
    """
    # TorchRL has no public way to ask; the names and values of context variables are public in Python.
    names = {variable.name: value for variable, value in copy_context().items()}
    process, backend = names.get("torchrl_service_backend") or (0, None)
    if process != os.getpid():
        return None
    if backend not in BACKENDS:
        backends = ", ".join(map(repr, BACKENDS))
        raise ValueError(
            f"torchrl.service_backend({backend!r}) encloses this Collector, but Swath does not have that backend; "
            f"backends are {backends}: give backend= to the Collector"
        )
    return str(backend)
