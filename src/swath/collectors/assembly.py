"""From checked options to a collection: env, policy, worker, in this order, and all of it undone if a part fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from swath.collect.collection import Collection
from swath.collect.shaping import Shaper
from swath.collect.worker import Place, Worker, never
from swath.collectors.acting import Acting
from swath.collectors.devices import Devices
from swath.collectors.policy_request import PolicyRequest
from swath.collectors.vector_limits import require_resettable, require_truncated_key
from swath.errors import warn_of_no_effect
from swath.options import Budget, Entries, EpisodeRules, Faults, Hooks, Trajectories
from swath.rollout.fragment import Layout
from swath.rollout.hosts.base import EnvRaised, Host
from swath.rollout.hosts.closing import closed_on_failure
from swath.rollout.hosts.sources import Source, build
from swath.rollout.hosts.specs import HostSpec
from swath.rollout.hosts.torchrl_source import Fitting
from swath.rollout.policies.bound import BoundPolicy
from swath.rollout.policies.finite import require_finite_leaves
from swath.rollout.spaces import Leaves
from swath.seeds import derive, fresh_root


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
        stopped: asked once a step; true ends the fragment early.
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
        if self.faults.on_env_error == "restart" and self.source.is_instance:
            raise ValueError("on_env_error='restart' builds the env anew: pass an id or a callable, not an instance")
        if self.trajectories.split and not self.entries.track_ids:
            raise ValueError("split_trajs=True needs trajectory ids: leave track_traj_ids at True")
        if self.trajectories.per_write is not None and self.buffer is None:
            raise ValueError("trajs_per_write is the size of writes to a replay buffer: pass replay_buffer=")
        if self.trajectories.layout == "padded" and self.buffer is not None:
            warn_of_no_effect("traj_format='padded'", "episodes are written to a replay buffer flat", stacklevel=5)


def assemble(request: CollectionRequest) -> tuple[Collection, Acting]:
    """The collection and its policy.

    Raises:
        Exception: whatever is wrong with env or policy, after everything that was built is closed.
    """
    host = build(request.source, Fitting(request.episodes.max_frames, request.devices.movable_env))
    with closed_on_failure(_mine(host, request.source)):
        request.devices.require_env(host.spec)
        require_truncated_key(host.spec, request.episodes)
        require_resettable(host.spec, request.episodes, request.faults, is_instance=request.source.is_instance)
        observation = _first_reset(host, request)
        acting = Acting(request.policy, host, request.devices.policy)
        bound = acting.bound(observation, finite=request.faults.check_finite)
        n_steps = request.budget.steps(host.spec.num_envs)
        worker = Worker(
            host=host,
            policy=bound,
            observation=observation,
            place=Place(request.worker, n_steps, request.stopped),
            episodes=_counted_here(request.episodes, host.spec),
            faults=request.faults,
            device=acting.device,
        )
        if request.seed is not None:
            worker.set_seed(request.seed)
        return Collection(worker, _shaper(request, host, bound), request.budget, request.buffer), acting


def _counted_here(episodes: EpisodeRules, spec: HostSpec) -> EpisodeRules:
    """The rules without a limit of steps where the envs themselves keep it."""
    return replace(episodes, max_frames=None) if spec.limits else episodes


def _shaper(request: CollectionRequest, host: Host, bound: BoundPolicy) -> Shaper:
    entries, trajectories = request.entries, request.trajectories
    layout = Layout(
        batch_shape=host.spec.batch_shape,
        observation=host.spec.observed,
        outputs=bound.keys,
        extras=replace(entries, track_ids=entries.track_ids or trajectories.per_batch is not None),
        step_count=request.episodes.max_frames is not None,
        masked=host.spec.skips,
        open=host.spec.open,
    )
    return Shaper(
        layout=layout,
        trajectories=trajectories,
        hooks=request.hooks,
        device=request.devices.storing,
        cut_last=request.episodes.set_truncated,
        keep_ids=entries.track_ids,
    )


def _first_reset(host: Host, request: CollectionRequest) -> Leaves:
    """The reset with which the first episodes begin; copies of one instance get seeds of their own."""
    seeds = None
    if request.source.shares_a_random_state:
        root = fresh_root()
        seeds = [derive(root, "env", env) for env in range(host.spec.num_envs)]
    try:
        observation = host.reset_all(seeds)
    except EnvRaised as raised:
        raised.cause.add_note(f"raised by the first reset of env {raised.env}")
        raise raised.cause from raised.cause.__cause__
    if request.faults.check_finite:
        require_finite_leaves("observation", host.spec.observed, observation)
    return observation


def _mine(host: Host, source: Source) -> list[Any]:
    """What to close if a part fails: all envs but an instance of the user's."""
    if not source.is_instance:
        return [host]
    return host.env[1:] if isinstance(host.env, list) else []
