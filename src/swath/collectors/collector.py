"""`Collector`: experience from one worker in this process."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from swath.collect.background import Background
from swath.collect.worker import never
from swath.collectors.assembly import assemble_here, require_agreement
from swath.collectors.base import GOODBYE_S, SHUTDOWN_S, end_quietly
from swath.collectors.checks import (
    check_direct,
    check_peers_knobs,
    one_source,
    whole_number,
    with_method,
    worker_index,
)
from swath.collectors.controls import InThisProcess
from swath.collectors.dispatch import built_elsewhere, require_here
from swath.collectors.local_outlet import LocalOutlet
from swath.collectors.request import CollectorRequest, Order
from swath.collectors.weight_settings import WeightSettings
from swath.collectors.worker_settings import WorkerSettings
from swath.group.local import LocalFleet
from swath.options import Budget, Hooks, OnEnvError, Survival, Trajectories, TrajFormat, seconds
from swath.report.progress import Progress, as_progress
from swath.rollout.policies.calling import ExplorationType


class _OfAnyBackend(InThisProcess):
    def __new__(cls, *args: Any, **keywords: Any) -> Self:
        """As TorchRL's does, `Collector(backend=…)` returns another class: the one place where building one does so."""
        other = built_elsewhere(cls, args, keywords) if cls is Collector else None
        return super().__new__(cls) if other is None else other


class Collector(_OfAnyBackend):
    """Collects batches `[*B, T]` of experience from one env source, in this process, in the thread that draws.

    Args:
        create_env_fn: a gymnasium id, a callable that returns an env, an env, or a list of one of these. A vector env
            is stepped as it is, and so are any `EnvBase` of TorchRL and any `ParallelEnv` of PettingZoo.
        policy: `None` (random actions), a TensorDict module, an `nn.Module` or a callable.
        policy_factory: builds the policy instead; gets the env if it has a parameter for it.
        frames_per_batch: frames of a batch; rounded up to whole steps of all envs.
        total_frames: the run ends with the first batch that reaches it; `None` and negative numbers mean no end.
        envs_per_worker: how many envs to build and step together; batches are then `[envs_per_worker, T]`.
        create_env_kwargs: keywords for the id or callable, or for the makers of a batched TorchRL env.
        seed: as `set_seed(seed)` after construction.
        device: fills `policy_device` and `storing_device` where these are `None`.
        storing_device: where batches live.
        env_device: where the env runs; gymnasium envs run on the CPU, TorchRL's are moved there (also by `device`).
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
        compile_policy: compile the policy with torch; `True` or a dict of options.
        cudagraph_policy: capture the policy in a CUDA graph; `True` or a dict of options.
        auto_register_policy_transforms: `None` supplies `is_init` and recurrent state where the env does not; `True`
            does so by transforms around the env, if it is one of TorchRL's; `False` supplies neither.
        no_cuda_sync: no explicit CUDA synchronisation; the copies made here wait for their own data in any case.
        compact_obs: no observations under `"next"`; those at the end of episodes are then lost.
        weight_updater: delivers weights in its own way: a `WeightUpdaterBase`, a class of these, or a callable.
        weight_sync_schemes: not here: for collectors with workers elsewhere.
        weight_recv_schemes: schemes by model, whose newest weights are taken at the start of every batch.
        track_policy_version: add `"policy_version"` and `("next", "policy_version")`.
        track_traj_ids: keep trajectory ids.
        worker_idx: index of this collector inside a larger one; part of trajectory ids and seeds.
        interruptor: its `collection_stopped()` is asked after each step; true ends the batch there: the rows that were
            not made are masked, and at least one was made.
        on_env_error: `"raise"`, `"reset"` that env alone, or `"restart"` the whole source.
        check_finite: raise `NonFinite` when an observation, reward or policy output is NaN or infinite.
        progress: show workers, frames/s, staleness and more while it collects: `True`, or a `Progress`.
        backend: where workers live: `"direct"` in this process; `"thread"`, `"process"` or `"ray"` build another
            class. `None` is `"direct"`, or `"process"` if `num_collectors` is given.
        backend_options: further keywords of the class that is built.
        num_collectors: how many workers get a single source.
        sync: elsewhere, whether every batch has a share of every worker.
        return_same_td: `False`; batches own their memory.
        reset_when_done: `True`; an env that is done always begins another episode.
        use_buffers: has no effect; buffers are always used.
        extend_buffer: has no effect if `False`; a replay buffer is always extended.
        **others: keywords of the class that is built elsewhere.

    Raises:
        TypeError: an argument of the wrong kind, both `policy` and `policy_factory`, a policy that cannot be called.
        ValueError: a number out of range, options that contradict each other, envs that differ, a space that cannot be
            served, an action of the wrong shape.
        KeyError: the policy reads an entry that is not there, or gives no action.
    """

    def __init__(
        self,
        create_env_fn: Any,
        policy: Any = None,
        *args: Any,
        policy_factory: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None,
        frames_per_batch: int,
        total_frames: int | None = -1,
        envs_per_worker: int | None = None,
        create_env_kwargs: Mapping[str, Any] | None = None,
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
        no_cuda_sync: bool = False,  # noqa: ARG002  both values hold: copies made here wait for their data
        compact_obs: bool = False,
        weight_updater: Any = None,
        weight_sync_schemes: Mapping[str, Any] | None = None,
        weight_recv_schemes: Mapping[str, Any] | None = None,
        track_policy_version: Any = False,
        track_traj_ids: bool = True,
        worker_idx: int | None = None,
        interruptor: Any = None,
        on_env_error: OnEnvError = "raise",
        check_finite: bool = False,
        progress: Any = None,
        backend: str | None = None,  # noqa: ARG002  another one builds another class
        backend_options: Mapping[str, Any] | None = None,
        num_collectors: int | None = None,
        sync: bool | None = None,
        return_same_td: bool = False,
        reset_when_done: bool = True,
        use_buffers: bool | None = None,
        extend_buffer: bool = True,
        **others: Any,
    ) -> None:
        if args:
            raise TypeError(f"Collector takes at most 2 positional arguments (env, policy), got {2 + len(args)}")
        require_here(others)
        check_direct(num_collectors, sync, backend_options)
        check_peers_knobs(
            return_same_td=return_same_td,
            reset_when_done=reset_when_done,
            use_buffers=use_buffers,
            extend_buffer=extend_buffer,
        )
        if weight_sync_schemes is not None:
            raise ValueError(
                "weight_sync_schemes: a Collector in this process acts with the policy itself; leave it out, or "
                "receive with weight_recv_schemes"
            )
        incoming = WeightSettings.of(policy, policy_factory, weight_updater, (None, None), weight_recv_schemes)
        view = as_progress(progress)
        stopping = with_method("interruptor", interruptor, "collection_stopped")
        self._worker_idx = None if worker_idx is None else worker_index(worker_idx)
        self._frames_per_batch = frames_per_batch
        settings = WorkerSettings(
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
        trajectories = Trajectories(bool(split_trajs), trajs_per_batch, trajs_per_write, traj_format)
        budget = Budget.asked(frames_per_batch, total_frames, init_random_frames)
        worker = replace(
            settings.request(one_source(create_env_fn), policy, frames_per_batch, trajectories),
            worker=self._worker_idx or 0,
            stopped=never if stopping is None else stopping.collection_stopped,
        )
        buffer = with_method("replay_buffer", replay_buffer, "extend")
        require_agreement(settings.entries, trajectories, writes=buffer is not None)
        request = CollectorRequest(
            workers=(worker,),
            order=Order(sync=True),
            budget=budget,
            entries=settings.entries,
            trajectories=trajectories,
            hooks=Hooks(postproc, pre_collect_hook, post_collect_hook),
            survival=Survival(),
            buffer=buffer,
            seed=None if seed is None else whole_number("seed", seed),
            name="Collector",
            index=self._worker_idx or 0,
        )
        self._begin(request, incoming, view)

    def _begin(self, request: CollectorRequest, settings: WeightSettings, view: Progress | None) -> None:
        """Build env and policy; if the rest of the construction fails all is closed but an env of the user's."""
        self._request, collection = request, assemble_here(request)
        fleet = collection.group.fleet
        assert isinstance(fleet, LocalFleet)
        self.collection, self._member = collection, fleet.member
        member = self._member
        member.outside = weakref.ref(self)
        self._background = Background(
            collection,
            enter=lambda: member.acting.enter_background(member.worker),
            leave=lambda: member.acting.leave_background(member.worker),
        )
        weakref.finalize(self, end_quietly, collection, self._background)
        self._outlet = LocalOutlet(collection, member)
        try:
            self._begin_weights(settings)
        except BaseException:
            collection.close(GOODBYE_S, close_env=not request.workers[0].source.is_instance)
            raise
        self._be_ready(view)

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Stop at the next step, close the envs, end the background thread. Twice is fine; from any thread.

        Args:
            timeout: seconds to wait for the step in progress; `None` for 10.
            close_env: whether to close the envs, also an instance that was passed in.
            raise_on_error: whether an error of `env.close()` is raised.

        Raises:
            ValueError: `timeout` is no finite number of seconds; nothing has happened.
            WorkerLate: a step did not return in time; the envs are closed as soon as it does.
            Exception: what `env.close()` raised.
        """
        patience = SHUTDOWN_S if timeout is None else seconds("timeout", timeout)
        try:
            self._end(patience, close_env=close_env)
        except Exception:
            if raise_on_error:
                raise

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """The same as `shutdown`."""
        self.shutdown(timeout, close_env)
