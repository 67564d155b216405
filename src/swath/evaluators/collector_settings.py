"""`collector_kwargs`: settings under the names that they have in collectors, each of them used, or refused with why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from swath.collect.making.devices import as_device
from swath.errors import warn_of_no_effect
from swath.evaluate.setting import Speedup
from swath.options import TrajFormat, count

_ALWAYS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "reset_at_each_iter": ((True,), "every evaluation starts from a reset"),
    "reset_when_done": ((True,), "an env that is done begins its next episode, if it has one"),
    "track_traj_ids": ((True,), "steps carry the number of their episode"),
    "total_frames": ((-1,), "num_trajectories says how long an evaluation is"),
    "return_same_td": ((False,), "results own their memory"),
    "init_random_frames": ((None, 0, -1), "the policy acts from the first step on"),
}
"""What holds in any case, by the values that say so."""

_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("create_env_fn",), "it is the env of the Evaluator"),
    **dict.fromkeys(("policy", "policy_factory", "device", "exploration_type", "seed"), "give it to the Evaluator"),
    **dict.fromkeys(("backend", "init_fn", "placement_timeout_s"), "give it to the Evaluator"),
    **dict.fromkeys(("weight_sync_schemes", "frames_per_batch"), "give it to the Evaluator"),
    **dict.fromkeys(("envs_per_worker",), "use num_envs of the Evaluator"),
    **dict.fromkeys(("num_workers", "num_collectors"), "use num_workers of the Evaluator"),
    **dict.fromkeys(("max_frames_per_traj",), "use max_steps of the Evaluator"),
    **dict.fromkeys(("trajs_per_batch",), "use num_trajectories of the Evaluator"),
    **dict.fromkeys(("fragment_timeout_s",), "use timeout_s of the Evaluator"),
    **dict.fromkeys(("restarts", "min_workers", "on_env_error"), "use retries of the Evaluator; an env that raises "
                    "ends the evaluation"),
    **dict.fromkeys(("remote_configs", "ray_init_config", "backend_options"), "use ray_kwargs of the Evaluator"),
    **dict.fromkeys(("split_trajs", "set_truncated", "compact_obs", "cat_results"), "trajectories are whole episodes; "
                    "traj_format says how they are laid out"),
    **dict.fromkeys(("replay_buffer", "trajs_per_write", "extend_buffer", "use_buffers"), "an evaluation writes no "
                    "replay buffer; metrics_fn gets the trajectories"),
    **dict.fromkeys(("pre_collect_hook", "post_collect_hook"), "use metrics_fn or on_result"),
    **dict.fromkeys(("interruptor", "preemptive_threshold"), "every episode is played to its end; cancel() stops an "
                    "evaluation"),
    **dict.fromkeys(("weight_updater", "weight_recv_schemes", "update_at_each_batch", "update_after_each_batch",
                     "max_weight_update_interval"), "weights come with each request"),
    **dict.fromkeys(("progress",), "a Progress shows evaluations that it is told of: on_result=progress.evaluated"),
    **dict.fromkeys(("track_policy_version",), "results and steps always carry the version"),
    **dict.fromkeys(("trust_policy", "check_finite", "auto_register_policy_transforms", "no_cuda_sync"),
                    "evaluation calls the policy in one way"),
    **dict.fromkeys(("worker_idx", "num_workers_per_collector", "collector_class", "collector_kwargs", "sync",
                     "prefetch", "max_staleness", "use_env_creator", "num_sub_threads"),
                    "evaluation has its own runner, which has none"),
}  # fmt: skip
"""Names of collectors that mean nothing here, and why."""


@dataclass(frozen=True)
class Steps:
    """What `metrics_fn` gets.

    Attributes:
        traj_format: `"padded"` or `"cat"`.
        storing_device: where it is.
        postproc: what is made of it before.

    Raises:
        ValueError: an unknown format.
        TypeError: a `postproc` that cannot be called.
    """

    traj_format: TrajFormat = "padded"
    storing_device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    postproc: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if self.traj_format not in ("padded", "cat"):
            raise ValueError(f"traj_format={self.traj_format!r} must be 'padded' or 'cat'")
        object.__setattr__(self, "storing_device", as_device("storing_device", self.storing_device))
        if self.postproc is not None and not callable(self.postproc):
            raise TypeError(f"postproc is of type {type(self.postproc).__name__}; it must be callable")


@dataclass(frozen=True)
class CollectorSettings:
    """What `collector_kwargs` ask for.

    Attributes:
        steps: what `metrics_fn` gets.
        create_env_kwargs: keywords for the id or callable.
        env_device: where envs run, if that can be chosen.
        policy_device: where the policy runs.
        speedup: how the policy is made quicker.
        num_threads: of torch in each worker; `None` for the default.
    """

    steps: Steps = field(default_factory=Steps)
    create_env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    env_device: torch.device | None = None
    policy_device: torch.device | None = None
    speedup: Speedup = field(default_factory=Speedup)
    num_threads: int | None = None

    def __post_init__(self) -> None:
        keywords = self.create_env_kwargs
        if not isinstance(keywords, Mapping) or not all(isinstance(name, str) for name in keywords):
            raise TypeError(f"create_env_kwargs is {keywords!r}; it must be a dict of keywords for the env")
        if self.num_threads is not None:
            count("num_threads", self.num_threads)

    @classmethod
    def of(cls, given: Any, *, measured: bool) -> CollectorSettings:
        """From a mapping of keywords.

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
        used = {name: value for name, value in given.items() if not _holds_anyway(name, value)}
        of_steps = {name: used.pop(name) for name in _names(Steps) if name in used}
        for name in () if measured else _given(of_steps):
            warn_of_no_effect(f"{name} in collector_kwargs", "it is for the trajectories that metrics_fn gets")
        speedup = Speedup(used.pop("compile_policy", None), used.pop("cudagraph_policy", None))
        for name in ("env_device", "policy_device"):
            if used.get(name) is not None:
                used[name] = as_device(name, used[name])
        return cls(steps=Steps(**_given(of_steps)), speedup=speedup, **_given(used))

    def device(self, device: Any) -> torch.device | None:
        """Where the policy runs, given `device` too.

        Raises:
            ValueError: they differ.
        """
        asked, mine = as_device("device", device), self.policy_device
        if asked is not None and mine is not None and asked != mine:
            raise ValueError(f"policy_device={str(mine)!r} in collector_kwargs, but device={str(asked)!r}; give one")
        return asked or mine


_USED = ("create_env_kwargs", "env_device", "policy_device", "compile_policy", "cudagraph_policy", "num_threads")


def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def _given(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not `None`, which stands for the default."""
    return {name: value for name, value in keywords.items() if value is not None}


def _holds_anyway(name: str, value: Any) -> bool:
    """Whether nothing needs to be done for it.

    Raises:
        TypeError: no collector knows the name.
        ValueError: evaluation cannot follow it.
    """
    if name in _ALWAYS:
        values, why = _ALWAYS[name]
        if not any(value is each or (type(value) is type(each) and value == each) for each in values):
            wanted = " or ".join(map(repr, values))
            raise ValueError(f"collector_kwargs: {name}={value!r} must be {wanted}, for {why}; leave it out")
        return True
    if name in _REFUSED:
        raise ValueError(f"collector_kwargs has {name!r}: {_REFUSED[name]}")
    if name not in (*_USED, *_names(Steps)):
        known = ", ".join((*_names(Steps), *_USED))
        raise TypeError(f"collector_kwargs has {name!r}, which no collector knows; evaluation follows {known}")
    return False
