"""The keywords of one worker, as users name them, and the request that they make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from swath.collect.making.assembly import WorkerRequest
from swath.collect.making.devices import Devices
from swath.collect.making.policy_request import PolicyRequest
from swath.collectors.checks import env_keywords
from swath.options import Budget, Entries, EpisodeRules, Faults, OnEnvError, Trajectories, count, optional_count
from swath.rollout.hosts.sources import Source
from swath.rollout.policies.calling import ExplorationType, as_exploration_type


def sources_of(create_env_fn: Any, n_workers: int | None, name: str) -> list[Any]:
    """One env source per worker.

    Args:
        create_env_fn: a source, or a list of one per worker.
        n_workers: how many workers; `None` for the length of the list.
        name: of that number, for messages.

    Raises:
        ValueError: no list and no number, an empty list, or a number that is not the length of the list.
    """
    if n_workers is not None:
        count(name, n_workers)
    if isinstance(create_env_fn, list | tuple):
        if not create_env_fn:
            raise ValueError("create_env_fn is an empty list; give one env source per worker")
        if n_workers not in (None, len(create_env_fn)):
            raise ValueError(
                f"{name}={n_workers} does not match the list of {len(create_env_fn)} env sources; leave it out"
            )
        return list(create_env_fn)
    if n_workers is None:
        raise ValueError(f"create_env_fn is one env source: say with {name}= how many workers get it, or give a list")
    return [create_env_fn] * n_workers


def spread(name: str, value: Any, n_workers: int) -> list[Any]:
    """One value per worker: of a list its entries, of anything else the same for all.

    Raises:
        ValueError: a list of another length.
    """
    if not isinstance(value, list | tuple):
        return [value] * n_workers
    if len(value) != n_workers:
        raise ValueError(
            f"{name} has {len(value)} entries for {n_workers} workers; give one per worker, or one for all"
        )
    return list(value)


def shares_of(frames_per_batch: Any, n_workers: int, *, sync: bool) -> list[int]:
    """Frames asked of each worker at a time.

    Args:
        frames_per_batch: of a batch, or of each worker's share.
        n_workers: W.
        sync: whether a batch has a share of every worker.

    Raises:
        ValueError: no positive integers, or a sequence of another length.
    """
    if isinstance(frames_per_batch, Sequence) and not isinstance(frames_per_batch, str):
        if len(frames_per_batch) != n_workers:
            raise ValueError(
                f"frames_per_batch has {len(frames_per_batch)} entries for {n_workers} workers; give one per worker"
            )
        shares = [count("frames_per_batch", frames) for frames in frames_per_batch]
        return shares if sync else [sum(shares)] * n_workers
    frames = count("frames_per_batch", frames_per_batch)
    return [-(-frames // n_workers) if sync else frames] * n_workers


def total_of(frames_per_batch: Any) -> Any:
    """Frames of a batch, of whichever form."""
    return sum(frames_per_batch) if isinstance(frames_per_batch, list | tuple) else frames_per_batch


@dataclass(frozen=True)
class WorkerSettings:
    """What can be set for every worker alone; meanings as in `Collector`."""

    policy_factory: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None
    create_env_kwargs: Mapping[str, Any] | None = None
    envs_per_worker: int | None = None
    device: Any = None
    storing_device: Any = None
    env_device: Any = None
    policy_device: Any = None
    max_frames_per_traj: int | None = None
    reset_at_each_iter: bool = False
    set_truncated: bool = False
    exploration_type: ExplorationType | str = ExplorationType.RANDOM
    trust_policy: bool | None = None
    compile_policy: bool | Mapping[str, Any] | None = None
    cudagraph_policy: bool | Mapping[str, Any] | None = None
    auto_register_policy_transforms: bool | None = None
    compact_obs: bool = False
    track_policy_version: Any = False
    track_traj_ids: bool = True
    on_env_error: OnEnvError = "raise"
    check_finite: bool = False

    @property
    def entries(self) -> Entries:
        """What a batch holds."""
        return Entries(self.track_traj_ids, bool(self.track_policy_version), self.compact_obs)

    def request(self, env: Any, policy: Any, share: int, trajectories: Trajectories) -> WorkerRequest:
        """What the worker is made of.

        Args:
            env: its env source.
            policy: its policy.
            share: frames asked of it at a time.
            trajectories: how batches are made of episodes.
        """
        return WorkerRequest(
            source=Source(env, env_keywords(self.create_env_kwargs), self.envs_per_worker),
            policy=PolicyRequest(
                policy,
                self.policy_factory,
                trust=self.trust_policy,
                recurrent=self.auto_register_policy_transforms,
                exploration=as_exploration_type(self.exploration_type),
                compile=self.compile_policy,
                cudagraph=self.cudagraph_policy,
            ),
            devices=Devices.resolve(self.device, self.env_device, self.policy_device, self.storing_device),
            share=Budget(share),
            episodes=EpisodeRules(
                optional_count("max_frames_per_traj", self.max_frames_per_traj),
                self.reset_at_each_iter,
                self.set_truncated,
            ),
            entries=replace(self.entries, track_ids=self.track_traj_ids or trajectories.per_batch is not None),
            faults=Faults(self.on_env_error, self.check_finite),
        )


SETTINGS = tuple(field.name for field in fields(WorkerSettings))
BY_WORKER = ("policy_factory", "create_env_kwargs", "device", "storing_device", "env_device", "policy_device")
"""Settings of which a list has one entry per worker."""


def settings_of(n_workers: int, **values: Any) -> list[WorkerSettings]:
    """The settings of each worker, from values for all of them or lists of one per worker."""
    columns = {
        name: spread(name, value, n_workers) if name in BY_WORKER else [value] * n_workers
        for name, value in values.items()
    }
    return [WorkerSettings(**{name: column[worker] for name, column in columns.items()}) for worker in range(n_workers)]


def requests_of(
    envs: Sequence[Any],
    policy: Any,
    settings: Sequence[WorkerSettings],
    shares: Sequence[int],
    whole: Trajectories,
    **of_all: Any,
) -> tuple[WorkerRequest, ...]:
    """What each worker is made of; `of_all` are fields of all of them."""
    rows = zip(envs, settings, shares, strict=True)
    return tuple(replace(one.request(env, policy, share, whole), **of_all) for env, one, share in rows)
