"""All that a collector in this process is asked for, and what is made of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from swath.collect.collection import Collection
from swath.collect.making.acting import Acting
from swath.collect.making.assembly import WorkerRequest, build_worker
from swath.collect.shaping import Shaper
from swath.errors import warn_of_no_effect
from swath.options import Budget, Entries, Hooks, Trajectories
from swath.rollout.hosts.sources import claim, require_free


@dataclass(frozen=True)
class CollectionRequest:
    """All that a collection is made of.

    Attributes:
        worker: what its worker is made of.
        budget: how much to collect.
        entries: what a batch holds.
        trajectories: how batches are made of episodes.
        hooks: functions of the user.
        buffer: where batches are written, if anywhere.
    """

    worker: WorkerRequest
    budget: Budget
    entries: Entries
    trajectories: Trajectories
    hooks: Hooks
    buffer: Any = None


def assemble(request: CollectionRequest) -> tuple[Collection, Acting]:
    """The collection and its policy.

    Raises:
        Exception: whatever is wrong with env or policy, after everything that was built is closed.
    """
    require_agreement(request.entries, request.trajectories, writes=request.buffer is not None)
    env = request.worker.source.env
    require_free(env)
    built = build_worker(request.worker)
    shaper = Shaper(
        layout=built.layout,
        trajectories=request.trajectories,
        hooks=request.hooks,
        device=request.worker.devices.storing,
        cut_last=request.worker.episodes.set_truncated,
        keep_ids=request.entries.track_ids,
    )
    collection = Collection(built.worker, shaper, request.budget, request.buffer)
    claim(env, collection.gate)
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
