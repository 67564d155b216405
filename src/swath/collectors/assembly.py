"""From checked options to a collection: env, policy, worker, in this order, and all of it undone if a part fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from swath.collect.collection import Collection
from swath.collect.shaping import Shaper
from swath.collect.worker import Place, Worker
from swath.collectors.devices import Devices, placed
from swath.collectors.policy_source import compiled, from_factory, is_trusted
from swath.errors import warn_of_no_effect
from swath.options import Budget, Entries, EpisodeRules, Faults, Hooks, Trajectories
from swath.rollout.exploration import ExplorationType
from swath.rollout.fragment import Layout
from swath.rollout.hosts.base import EnvRaised, Host
from swath.rollout.hosts.sources import Source, build
from swath.rollout.policies import Binding, BoundPolicy, bind, require_finite
from swath.rollout.random_policy import RandomPolicy
from swath.rollout.random_state import preserved
from swath.rollout.spaces import Leaves
from swath.rollout.vector_limits import require_resettable
from swath.seeds import derive, fresh_root


@dataclass(frozen=True)
class PolicyRequest:
    """Which policy, and how it is called.

    Attributes:
        policy: the policy, or `None`.
        factory: builds it instead.
        trust: call it with the TensorDict, unchecked.
        recurrent: supply `is_init` and recurrent state.
        exploration: how it picks actions.
        compile: whether and how to compile it.
        cudagraph: whether and how to capture it.
    """

    policy: Any
    factory: Callable[..., Any] | Sequence[Callable[..., Any]] | None
    trust: bool | None
    recurrent: bool
    exploration: ExplorationType
    compile: bool | Mapping[str, Any] | None = None
    cudagraph: bool | Mapping[str, Any] | None = None


@dataclass(frozen=True)
class CollectionRequest:
    """All that a collection is made of."""

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
    stopped: Callable[[], bool] | None = None
    buffer: Any = None

    def __post_init__(self) -> None:
        if self.faults.on_env_error == "restart" and self.source.is_instance:
            raise ValueError("on_env_error='restart' builds the env anew: pass an id or a callable, not an instance")
        if self.trajectories.split and not self.entries.track_ids:
            raise ValueError("split_trajs=True needs trajectory ids: leave track_traj_ids at True")


def assemble(request: CollectionRequest) -> tuple[Collection, Any, Any]:
    """The collection, the live policy, and the policy as the user gave it.

    Raises:
        Exception: whatever is wrong with env or policy, after everything that was built is closed.
    """
    host = build(request.source)
    try:
        require_resettable(host.spec, request.episodes, request.faults, is_instance=request.source.is_instance)
        observation = _first_reset(host, request)
        given, live = _policy(request, host)
        bound = _bound(live, host, observation, request)
        n_steps = request.budget.steps(host.spec.num_envs)
        collection = _collection(request, host, (bound, observation), n_steps)
    except BaseException:
        if not request.source.is_instance:
            host.close()
        raise
    return collection, live, given


def _collection(request: CollectionRequest, host: Host, acting: tuple[BoundPolicy, Leaves], n_steps: int) -> Collection:
    bound, observation = acting
    worker = Worker(
        host=host,
        policy=bound,
        observation=observation,
        place=Place(request.worker, n_steps, request.stopped),
        episodes=request.episodes,
        faults=request.faults,
    )
    layout = Layout(
        batch_shape=host.spec.batch_shape,
        observation=tuple(leaf.key for leaf in host.spec.observation),
        outputs=bound.keys,
        step_count=request.episodes.max_frames is not None,
        track_ids=request.entries.track_ids,
        track_version=request.entries.track_version,
        compact=request.entries.compact_obs,
        set_truncated=request.episodes.set_truncated,
    )
    shaper = Shaper(layout, request.trajectories, request.hooks, request.devices.storing)
    return Collection(worker, shaper, request.budget, request.buffer)


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
        for leaf, array in zip(host.spec.observation, observation, strict=True):
            require_finite(f"observation {leaf.key!r}", array)
    return observation


def _policy(request: CollectionRequest, host: Host) -> tuple[Any, Any]:
    """The policy as given or built, and the one that acts."""
    asked = request.policy
    env = host.env[0] if isinstance(host.env, list) else host.env
    given = from_factory(asked.factory, env) if asked.factory is not None else _or_random(asked.policy)
    return given, compiled(placed(given, request.devices.policy), asked.compile, asked.cudagraph)


def _bound(policy: Any, host: Host, observation: Leaves, request: CollectionRequest) -> BoundPolicy:
    asked = request.policy
    options = Binding(
        device=request.devices.policy,
        exploration=asked.exploration,
        trust=is_trusted(policy, asked.trust),
        recurrent=asked.recurrent,
    )
    with preserved(), torch.no_grad():
        bound = bind(policy, host.spec, observation, options)
    if not bound.explores and asked.exploration is not ExplorationType.RANDOM:
        warn_of_no_effect(
            f"exploration_type={asked.exploration.name}",
            "the policy does not take it; give it a parameter named exploration_type, or use a TensorDict module",
            stacklevel=5,
        )
    return bound


def _or_random(policy: Any) -> Any:
    return RandomPolicy() if policy is None else policy
