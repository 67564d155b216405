"""All that a collector in this process is asked for, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from swath.collect.collection import Collection
from swath.collect.making.acting import Acting
from swath.collect.making.assembly import WorkerRequest, build_worker
from swath.collect.making.devices import Devices
from swath.collect.making.policy_request import PolicyRequest
from swath.collect.shaping import Shaper
from swath.collect.worker import Seeding, never
from swath.errors import warn_of_no_effect
from swath.options import Budget, Entries, EpisodeRules, Faults, Hooks, Trajectories
from swath.rollout.hosts.claims import claim, require_free
from swath.rollout.hosts.sources import Source


@dataclass(frozen=True)
class CollectionRequest:
    """All that a collection is made of.

    Attributes:
        source: the envs.
        policy: who acts in them.
        devices: where things are.
        budget: how much to collect.
        episodes: when episodes begin and end.
        entries: what a batch holds.
        trajectories: how batches are made of episodes.
        faults: what to do when things go wrong.
        hooks: functions of the user.
        worker: index of the worker.
        stopped: asked after each step; true ends the fragment there.
        buffer: where batches are written, if anywhere.
        seed: root of all seeds; `None` seeds nothing.
    """

    source: Source
    policy: PolicyRequest
    devices: Devices
    budget: Budget
    episodes: EpisodeRules
    entries: Entries
    trajectories: Trajectories
    faults: Faults
    hooks: Hooks
    worker: int = 0
    stopped: Callable[[], bool] = never
    buffer: Any = None
    seed: int | None = None

    def __post_init__(self) -> None:
        require_agreement(self.entries, self.trajectories, writes=self.buffer is not None)

    @property
    def of_worker(self) -> WorkerRequest:
        """What its worker is made of."""
        return WorkerRequest(
            source=self.source,
            policy=self.policy,
            devices=self.devices,
            share=self.budget,
            episodes=self.episodes,
            entries=collected(self.entries, self.trajectories),
            faults=self.faults,
            worker=self.worker,
            seed=None if self.seed is None else Seeding(self.seed),
            stopped=self.stopped,
        )


def assemble(request: CollectionRequest) -> tuple[Collection, Acting]:
    """The collection and its policy.

    Raises:
        Exception: whatever is wrong with env or policy, after everything that was built is closed.
    """
    require_free(request.source.env)
    built = build_worker(request.of_worker)
    shaper = Shaper(
        layout=built.layout,
        trajectories=request.trajectories,
        hooks=request.hooks,
        device=request.devices.storing,
        cut_last=request.episodes.set_truncated,
        keep_ids=request.entries.track_ids,
    )
    collection = Collection(built.worker, shaper, request.budget, request.buffer)
    claim(request.source.env, collection.gate)
    request.budget.warn_if_rounded(collection.batch_frames)
    return collection, built.acting


def collected(entries: Entries, trajectories: Trajectories) -> Entries:
    """What fragments hold: ids also where only the making of batches needs them."""
    return replace(entries, track_ids=entries.track_ids or trajectories.per_batch is not None)


def require_agreement(entries: Entries, trajectories: Trajectories, *, writes: bool) -> None:
    """Check options of different groups against each other.

    Raises:
        ValueError: they contradict each other.
    """
    if trajectories.split and not entries.track_ids:
        raise ValueError("split_trajs=True needs trajectory ids: leave track_traj_ids at True")
    if trajectories.per_write is not None and not writes:
        raise ValueError("trajs_per_write is the size of writes to a replay buffer: pass replay_buffer=")
    if trajectories.layout == "padded" and writes:
        warn_of_no_effect("traj_format='padded'", "episodes are written to a replay buffer flat")
