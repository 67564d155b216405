"""`collector_kwargs`: settings under the names that they have in collectors, each of them used, or refused with why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from swath.errors import warn_of_no_effect
from swath.options import TrajFormat, count
from swath.rollout.policies.calling import as_device

# What holds in any case: the values that say so, and why.
_ALWAYS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "reset_at_each_iter": ((True,), "every evaluation starts from a reset"),
    "reset_when_done": ((True,), "an env that is done begins its next episode, if it has one"),
    "track_traj_ids": ((True,), "steps carry the number of their episode"),
    "total_frames": ((-1,), "num_trajectories says how long an evaluation is"),
    "return_same_td": ((False,), "results own their memory"),
    "init_random_frames": ((None, 0, -1), "the policy acts from the first step on"),
}

# Names of collectors that mean nothing here, by the reason.
_REFUSED = {
    "give it to the Evaluator": "create_env_fn policy policy_factory device exploration_type seed backend init_fn "
    "placement_timeout_s weight_sync_schemes frames_per_batch",
    "the Evaluator has num_envs, num_workers, max_steps, num_trajectories, timeout_s, retries, ray_kwargs, metrics_fn "
    "and on_result for it, or evaluation has none of it": "envs_per_worker num_workers num_collectors "
    "max_frames_per_traj trajs_per_batch fragment_timeout_s restarts min_workers on_env_error remote_configs "
    "ray_init_config backend_options split_trajs set_truncated compact_obs cat_results replay_buffer trajs_per_write "
    "extend_buffer use_buffers pre_collect_hook post_collect_hook weight_updater weight_recv_schemes "
    "update_at_each_batch update_after_each_batch max_weight_update_interval interruptor preemptive_threshold progress "
    "track_policy_version trust_policy check_finite auto_register_policy_transforms no_cuda_sync worker_idx "
    "num_workers_per_collector collector_class collector_kwargs sync prefetch max_staleness use_env_creator "
    "num_sub_threads",
}

OF_TRAJECTORIES = ("traj_format", "storing_device", "postproc")


@dataclass(frozen=True)
class CollectorSettings:
    """What `collector_kwargs` ask for.

    Attributes:
        traj_format: how trajectories for `metrics_fn` are laid out: `"padded"` or `"cat"`.
        storing_device: where they are.
        postproc: what is made of them before.
        create_env_kwargs: keywords for the id or callable.
        env_device: where envs run, if that can be chosen.
        policy_device: where the policy runs.
        compile_policy: whether and how torch compiles the policy.
        cudagraph_policy: whether and how it is captured in a CUDA graph.
        num_threads: of torch in each worker; `None` for the default.

    Raises:
        ValueError: an unknown format, a number out of range, or no device.
        TypeError: a `postproc` that cannot be called, or keywords that are none.
    """

    traj_format: TrajFormat = "padded"
    storing_device: torch.device | str = "cpu"
    postproc: Callable[[Any], Any] | None = None
    create_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    env_device: torch.device | None = None
    policy_device: torch.device | None = None
    compile_policy: bool | Mapping[str, Any] | None = None
    cudagraph_policy: bool | Mapping[str, Any] | None = None
    num_threads: int | None = None

    def __post_init__(self) -> None:
        keywords = self.create_env_kwargs
        if self.traj_format not in ("padded", "cat"):
            raise ValueError(f"traj_format={self.traj_format!r} must be 'padded' or 'cat'")
        if self.postproc is not None and not callable(self.postproc):
            raise TypeError(f"postproc is of type {type(self.postproc).__name__}; it must be callable")
        if not isinstance(keywords, Mapping) or not all(isinstance(name, str) for name in keywords):
            raise TypeError(f"create_env_kwargs is {keywords!r}; it must be a dict of keywords for the env")
        if self.num_threads is not None:
            count("num_threads", self.num_threads)
        for name in ("storing_device", "env_device", "policy_device"):
            object.__setattr__(self, name, as_device(name, getattr(self, name)))

    @classmethod
    def of(cls, given: Any, *, measured: bool) -> CollectorSettings:
        """From a mapping of keywords; `None` stands for the default of each.

        Args:
            given: the mapping, or `None`.
            measured: whether there is a `metrics_fn`, without which some of them would do nothing.

        Raises:
            TypeError: not a mapping, or a name that no collector knows.
            ValueError: a setting that evaluation cannot follow; the message says why.
        """
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise TypeError(f"collector_kwargs is of type {type(given).__name__}; give a dict of keywords of Collector")
        used = {name: value for name, value in given.items() if not _holds_anyway(name, value) and value is not None}
        for name in () if measured else used.keys() & {*OF_TRAJECTORIES}:
            warn_of_no_effect(f"{name} in collector_kwargs", "it is for the trajectories that metrics_fn gets")
        return cls(**used)

    def device(self, device: Any) -> torch.device | None:
        """Where the policy runs, given `device` too.

        Raises:
            ValueError: they differ.
        """
        asked, mine = as_device("device", device), self.policy_device
        if asked is not None and mine is not None and asked != mine:
            raise ValueError(f"policy_device={str(mine)!r} in collector_kwargs, but device={str(asked)!r}; give one")
        return asked or mine


def _holds_anyway(name: str, value: Any) -> bool:
    """Whether nothing needs to be done for it.

    Raises:
        TypeError: no collector knows the name.
        ValueError: evaluation cannot follow it.
    """
    known = [each.name for each in fields(CollectorSettings)]
    if name in known:
        return False
    for why, names in _REFUSED.items():
        if name in names.split():
            raise ValueError(f"collector_kwargs has {name!r}: {why}")
    if name not in _ALWAYS:
        raise TypeError(f"collector_kwargs has {name!r}, which no collector knows; known are {', '.join(known)}")
    values, why = _ALWAYS[name]
    if not any(value is each or (type(value) is type(each) and value == each) for each in values):
        wanted = " or ".join(map(repr, values))
        raise ValueError(f"collector_kwargs: {name}={value!r} must be {wanted}, for {why}; leave it out")
    return True
