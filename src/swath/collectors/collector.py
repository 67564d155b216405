"""`Collector`: experience from one worker in this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from swath.collect.background import Background
from swath.collectors import state
from swath.collectors.assembly import CollectionRequest, PolicyRequest, assemble
from swath.collectors.base import BaseCollector
from swath.collectors.checks import Unserved, require_served
from swath.collectors.devices import Devices
from swath.collectors.paths import follow
from swath.collectors.policy_source import require_one_source
from swath.collectors.status import collector_stats, status_line
from swath.collectors.weight_arguments import WeightArguments, renamed
from swath.options import (
    Budget,
    Entries,
    EpisodeRules,
    Faults,
    Hooks,
    OnEnvError,
    Trajectories,
    optional_count,
)
from swath.rollout.exploration import ExplorationType, as_exploration_type
from swath.rollout.hosts.sources import Source
from swath.seeds import derive
from swath.weights.loading import plan

SHUTDOWN_S = 10.0
PAUSE_S = 30.0


class Collector(BaseCollector):
    """Collects batches `[*B, T]` of experience from one env source, in this process, in the thread that draws.

    Args:
        create_env_fn: a gymnasium id, a callable that returns an env, an env, or a list of one of these. A vector env
            is stepped as it is.
        policy: `None` (random actions), a TensorDict module, an `nn.Module` or a callable.
        policy_factory: builds the policy instead; gets the env if it has a parameter for it.
        frames_per_batch: frames of a batch; rounded up to whole steps of all envs.
        total_frames: the run ends with the first batch that reaches it; `None` and negative numbers mean no end.
        envs_per_worker: how many envs to build and step together; batches are then `[envs_per_worker, T]`.
        create_env_kwargs: keywords for the id or callable.
        seed: as `set_seed(seed)` after construction.
        device: fills `policy_device` and `storing_device` where these are `None`.
        storing_device: where batches live.
        env_device: where the env runs; gymnasium envs run on the CPU.
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
        auto_register_policy_transforms: `False` supplies neither `is_init` nor recurrent state.
        no_cuda_sync: no explicit CUDA synchronisation; the copies made here wait for their own data in any case.
        compact_obs: no observations under `"next"`; those at the end of episodes are then lost.
        track_policy_version: add `"policy_version"` and `("next", "policy_version")`.
        track_traj_ids: keep trajectory ids.
        worker_idx: index of this collector inside a larger one; part of trajectory ids and seeds.
        interruptor: its `collection_stopped()` is asked once a step; true ends the batch early, with masked rows.
        on_env_error: `"raise"`, `"reset"` that env alone, or `"restart"` the whole source.
        check_finite: raise `NonFinite` when an observation, reward or policy output is NaN or infinite.
        backend: `None` or `"direct"`.
        num_collectors: `None` or 1.
        sync: `None`.
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
        traj_format: str | None = None,
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
        no_cuda_sync: bool = False,
        compact_obs: bool = False,
        track_policy_version: Any = False,
        track_traj_ids: bool = True,
        worker_idx: int | None = None,
        interruptor: Any = None,
        on_env_error: OnEnvError = "raise",
        check_finite: bool = False,
        backend: str | None = None,
        num_collectors: int | None = None,
        sync: bool | None = None,
        return_same_td: bool = False,
        reset_when_done: bool = True,
        use_buffers: bool | None = None,
        extend_buffer: bool = True,
    ) -> None:
        if args:
            raise TypeError(f"Collector takes at most 2 positional arguments (env, policy), got {2 + len(args)}")
        require_served(
            Unserved(backend, num_collectors, sync, return_same_td, reset_when_done, use_buffers, extend_buffer)
        )
        require_one_source(policy, policy_factory)
        self._devices = Devices.resolve(device, env_device, policy_device, storing_device)
        self._worker_idx = worker_idx
        self._no_cuda_sync = no_cuda_sync
        self._frames_per_batch = frames_per_batch
        request = CollectionRequest(
            source=Source(_one(create_env_fn), create_env_kwargs or {}, envs_per_worker),
            policy=PolicyRequest(
                policy,
                policy_factory,
                trust=trust_policy,
                recurrent=auto_register_policy_transforms is not False,
                exploration=as_exploration_type(exploration_type),
                compile=compile_policy,
                cudagraph=cudagraph_policy,
            ),
            devices=self._devices,
            budget=Budget.asked(frames_per_batch, total_frames, init_random_frames),
            episodes=EpisodeRules(
                optional_count("max_frames_per_traj", max_frames_per_traj), reset_at_each_iter, set_truncated
            ),
            entries=Entries(track_traj_ids, bool(track_policy_version), compact_obs),
            trajectories=Trajectories.asked(split_trajs, trajs_per_batch, trajs_per_write, traj_format),
            faults=Faults(on_env_error, check_finite),
            hooks=Hooks(postproc, pre_collect_hook, post_collect_hook),
            worker=worker_idx or 0,
            stopped=None if interruptor is None else interruptor.collection_stopped,
            buffer=_with_extend(replay_buffer),
        )
        self._collection, self._policy, self._given = assemble(request)
        self._background = Background(self._collection)
        if seed is not None:
            self.set_seed(seed)

    # ---- drawing

    def _draw(self) -> tuple[Any, bool]:
        if self._background.running:
            raise RuntimeError("this Collector is collecting in the background; pause it or read the replay buffer")
        self._background.raise_kept()
        drawn = self._collection.draw()
        return drawn.batch, drawn.ended

    def fake_tensordict(self) -> TensorDictBase:
        """A batch of zeros with the keys, shapes and dtypes of real ones, `[*B, T]`."""
        return state.zero_batch(self._collection)

    # ---- control

    def reset(self, index: Sequence[bool] | torch.Tensor | None = None) -> None:
        """Begin fresh episodes with the next batch, in all envs or in those of `index` (one bool per env)."""
        self._collection.begin_episodes(None if index is None else _chosen(index, self._num_envs))

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed envs, action sampling and the generators as this collector sees them; begin fresh episodes.

        Args:
            seed: the root seed.
            static_seed: give every env `seed` itself.

        Returns:
            The number with which another call goes on without overlap; `seed` with `static_seed`.
        """
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed is a {type(seed).__name__}; it must be an int")
        self._collection.set_seed(seed, static=static_seed)
        return seed if static_seed else derive(seed, "next")

    def start(self) -> None:
        """Collect into the replay buffer in a background thread, until the total, `pause` or shutdown.

        Raises:
            RuntimeError: there is no replay buffer.
        """
        self._collection.gate.require_open()
        if self._collection.buffer is None:
            raise RuntimeError("start() collects into a replay buffer in the background: pass replay_buffer=")
        self._background.raise_kept()
        self._background.start()

    @contextmanager
    def pause(self, timeout: float = PAUSE_S, *, resume: bool = True) -> Iterator[None]:
        """Within the `with` block nothing is written to the replay buffer.

        Raises:
            WorkerLate: what is in flight was not written within `timeout` seconds; collection goes on.
        """
        self._background.raise_kept()
        if self._background.running:
            self._background.pause(timeout)
        try:
            yield
        finally:
            if resume:
                self._background.resume()

    def is_running(self) -> bool:
        """Whether it collects in the background."""
        return self._background.running

    def shutdown(self, timeout: float | None = None, close_env: bool = True, raise_on_error: bool = True) -> None:
        """Stop at the next step, close the envs, end the background thread. Twice is fine; from any thread.

        Args:
            timeout: seconds to wait for the step in progress; `None` for 10.
            close_env: whether to close the envs, also an instance that was passed in.
            raise_on_error: whether an error of `env.close()` is raised.
        """
        patience = SHUTDOWN_S if timeout is None else timeout
        try:
            self._collection.close(patience, close_env=close_env)
        except Exception:
            if raise_on_error:
                raise
        finally:
            self._background.join(patience)

    def async_shutdown(self, timeout: float | None = None, close_env: bool = True) -> None:
        """The same as `shutdown`."""
        self.shutdown(timeout, close_env)

    def __del__(self) -> None:
        """Close what was left open, without ever raising."""
        if "_collection" in self.__dict__ and not self._collection.gate.closed:
            self.shutdown(timeout=1.0, raise_on_error=False)

    # ---- weights

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
        **kwargs: Any,
    ) -> None:
        """Copy weights into the policy, at once or right after the running batch, and count the version up.

        Without weights there is nothing to copy: the module is the user's own. A copy that `policy_device` forced is
        renewed from it.

        Args:
            policy_or_weights: a module, a TensorDict, or a dict of tensors, nested or as `state_dict()` gives.
            weights: a TensorDict or dict.
            policy: a module.
            worker_ids: not here: there is one worker.
            model_id: `"policy"`.
            weights_dict: `{"policy": weights}`.
            wait: wait for the running batch, if there is one.
            timeout_s: how long to wait, in seconds.
            **kwargs: `policy_weights`, the old name of the first argument.

        Raises:
            TypeError: not weights, or `worker_ids`.
            KeyError: names do not fit, or an unknown model.
            ValueError: shapes do not fit, or two forms at once. In all cases nothing has changed.
        """
        old_name = renamed(kwargs)
        if worker_ids is not None:
            raise TypeError("worker_ids: a Collector in this process has one worker; leave it out")
        first = policy_or_weights if old_name is None else old_name
        source = WeightArguments(first, weights, policy, model_id, weights_dict).source()
        self._publish(source)
        if wait:
            with self._collection.gate.control(*(() if timeout_s is None else (timeout_s,))):
                pass

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Copy weights into this collector's policy; see `update_policy_weights_`."""
        self._publish(WeightArguments(policy_or_weights, weights, policy).source())

    def publish_weights(self, weights: Any, *, worker_ids: Any = None, model_id: str = "policy") -> int:
        """Copy weights into the policy; returns the new version."""
        if worker_ids is not None:
            raise TypeError("worker_ids: a Collector in this process has one worker; leave it out")
        return self._publish(WeightArguments(weights, model_id=model_id).source())

    def increment_version(self) -> int:
        """Publish the weights there are under the next version."""
        return self._publish(None)

    @property
    def policy_version(self) -> int:
        """The newest version that was published; 0 at construction."""
        return self._collection.version

    def get_policy_version(self) -> int:
        """The same as `policy_version`."""
        return self._collection.version

    def _publish(self, source: Any) -> int:
        self._background.raise_kept()
        self._collection.gate.require_open()
        if source is None and self._given is not self._policy and isinstance(self._given, nn.Module):
            source = self._given
        if source is None or not isinstance(self._policy, nn.Module):
            return self._collection.publish(None)
        return self._collection.publish(plan(self._policy, source))

    # ---- state and facts

    def state_dict(self) -> OrderedDict[str, Any]:
        """Counters, weights, version and seed; simulators and what is in flight are not saved."""
        self._background.raise_kept()
        with self._collection.gate.control():
            return state.save(self._collection, self._policy)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore what `state_dict` saved; new episodes begin in a new life.

        Raises:
            KeyError: parts are missing, unless `strict=False`.
        """
        with self._collection.gate.control():
            state.load(self._collection, self._policy, state_dict, strict=strict)

    def stats(self, workers: str = "aggregate", timeout: float = 10.0) -> dict[str, Any]:  # noqa: ARG002  never waits
        """Numbers, bools and short strings on this collector; asks nobody, never blocks, works after shutdown.

        Args:
            workers: `"aggregate"`, `"per_worker"` or `"both"`.
            timeout: always kept.
        """
        return collector_stats(self._collection, self._background, workers)

    def __repr__(self) -> str:
        """A status line."""
        return status_line(self._collection)

    @property
    def env(self) -> Any:
        """The live env, vector env, or list of envs."""
        return self._collection.worker.host.env

    @property
    def policy(self) -> Any:
        """The policy that acts."""
        return self._policy

    @property
    def frames_per_batch(self) -> int:
        """The number given."""
        return self._frames_per_batch

    @property
    def requested_frames_per_batch(self) -> int:
        """Frames of a batch: the number given, rounded up to whole steps."""
        return self._collection.batch_frames

    def frames_per_batch_worker(self, worker_idx: int | None = None) -> int:  # noqa: ARG002  there is one worker
        """Frames asked of one worker."""
        return self._collection.batch_frames

    @property
    def total_frames(self) -> int:
        """Frames of the run; -1 for no end."""
        total = self._collection.budget.total_frames
        return -1 if total is None else total

    @property
    def _whole_episodes(self) -> bool:
        return self._collection.shaper.assembler is not None

    @property
    def _num_envs(self) -> int:
        return self._collection.worker.host.spec.num_envs

    @property
    def env_device(self) -> torch.device:
        """Where the env runs."""
        return self._devices.env or torch.device("cpu")

    @property
    def policy_device(self) -> torch.device | None:
        """Where the policy runs; `None` leaves it where it is."""
        return self._devices.policy

    @property
    def storing_device(self) -> torch.device | None:
        """Where batches live; `None` sets no device."""
        return self._devices.storing

    @property
    def worker_idx(self) -> int:
        """Index of this collector inside a larger one.

        Raises:
            RuntimeError: it was never set.
        """
        if self._worker_idx is None:
            raise RuntimeError("worker_idx was never set; pass worker_idx= or assign it")
        return self._worker_idx

    @worker_idx.setter
    def worker_idx(self, value: int) -> None:
        with self._collection.gate.control():
            self._worker_idx = value
            self._collection.worker.move_to(value)

    @property
    def pre_collect_hook(self) -> Callable[[], Any] | None:
        """Called before each fragment."""
        return self._collection.shaper.hooks.before

    @pre_collect_hook.setter
    def pre_collect_hook(self, hook: Callable[[], Any] | None) -> None:
        self._collection.shaper.set_hooks(before=hook)

    @property
    def post_collect_hook(self) -> Callable[[Any], Any] | None:
        """Called with each batch before it is handed out."""
        return self._collection.shaper.hooks.after

    @post_collect_hook.setter
    def post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        self._collection.shaper.set_hooks(after=hook)

    def set_post_collect_hook(self, hook: Callable[[Any], Any] | None) -> None:
        """The same as assigning `post_collect_hook`."""
        self.post_collect_hook = hook

    # ---- reaching inside

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow names, dots and `[literal]` from this object and call what is found.

        Raises:
            AttributeError: a part is missing.
            ValueError: arguments for something that cannot be called.
        """
        found = follow(self, attr_path)
        if callable(found):
            return found(*args, **kwargs)
        if args or kwargs:
            raise ValueError(f"{attr_path!r} is a {type(found).__name__}, which takes no arguments")
        return found

    def get_distant_attr(self, path: str) -> Any:
        """The attribute at the end of a path."""
        return follow(self, path)

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method once per entry.

        Raises:
            ValueError: the lists are not of the same length.
        """
        positional = list_of_args if list_of_args is not None else [()] * len(list_of_kwargs or [{}])
        named = list_of_kwargs if list_of_kwargs is not None else [{}] * len(positional)
        if len(positional) != len(named):
            raise ValueError(f"list_of_args ({len(positional)}) and list_of_kwargs ({len(named)}) need the same length")
        method = follow(self, method_name)
        return [method(*args, **kwargs) for args, kwargs in zip(positional, named, strict=True)]

    def getattr_env(self, name: str) -> Any:
        """An attribute of the env."""
        return follow(self.env, name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the policy."""
        return follow(self._policy, name)

    def getattr_rb(self, name: str) -> Any:
        """An attribute of the replay buffer."""
        return follow(self._collection.buffer, name)

    def get_model(self, model_id: str) -> Any:
        """The model of an id.

        Raises:
            KeyError: no such model.
        """
        if model_id != "policy":
            raise KeyError(f"no model {model_id!r}; known are ['policy']")
        return self._policy


def _one(source: Any) -> Any:
    """The one source, also from a list."""
    if isinstance(source, list | tuple):
        if len(source) != 1:
            raise ValueError(f"backend 'direct' takes exactly one env source, got {len(source)}")
        return source[0]
    return source


def _chosen(index: Any, num_envs: int) -> list[int]:
    flags = torch.as_tensor(index).reshape(-1)
    if flags.dtype != torch.bool or len(flags) != num_envs:
        raise ValueError(f"index must hold one bool per env ({num_envs}), got {index!r}")
    return [int(env) for env in flags.nonzero()]


def _with_extend(buffer: Any) -> Any:
    if buffer is not None and not callable(getattr(buffer, "extend", None)):
        raise TypeError(f"replay_buffer is a {type(buffer).__name__} without extend(td); give it that method")
    return buffer
