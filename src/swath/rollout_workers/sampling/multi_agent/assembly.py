"""Putting the sampler of several agents together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from swath.rollout_workers.callbacks import listeners
from swath.rollout_workers.hosts.laps import Laps
from swath.rollout_workers.hosts.lenient import LenientHost
from swath.rollout_workers.metrics_log import MetricsLog
from swath.rollout_workers.sampling.chunks import UnrollIds
from swath.rollout_workers.sampling.multi_agent.actor import AgentsActor
from swath.rollout_workers.sampling.multi_agent.company import Company
from swath.rollout_workers.sampling.multi_agent.finishing import Finisher
from swath.rollout_workers.sampling.multi_agent.progress import Progress, plan_of
from swath.rollout_workers.sampling.multi_agent.recorder import Recorder
from swath.rollout_workers.sampling.multi_agent.role import Equipment
from swath.rollout_workers.sampling.multi_agent.sampler import MultiAgentParts, MultiAgentSampler
from swath.rollout_workers.sampling.multi_agent.seats import Play
from swath.rollout_workers.sampling.post_processor import PostProcessor
from swath.rollout_workers.sampling.watching import Scene


@dataclass(frozen=True)
class Surroundings:
    """What a worker has that its sampler needs.

    Attributes:
        scene: what callbacks, episodes and mapping functions are told of it.
        equipment: what it has for one of its policies.
        log: of metrics.
        laps: the stopwatch.
        unrolls: numbers chunks.
        first_id: of the first episode; those that follow have the next ones.
    """

    scene: Scene
    equipment: Callable[[str], Equipment]
    log: MetricsLog
    laps: Laps
    unrolls: UnrollIds
    first_id: int


def multi_agent_sampler(
    host: LenientHost, plays: dict[int, Play], config: Any, length: int, around: Surroundings
) -> MultiAgentSampler:
    """A sampler of these envs.

    Args:
        host: the envs, whose agents have seats.
        plays: where the seating looks up the episodes of envs.
        config: an `AlgorithmConfig`.
        length: steps of a fragment of each env.
        around: the worker.
    """
    scene, progress = around.scene, Progress(host.spec.num_envs)
    told = listeners(scene.callbacks, "on_postprocess_trajectory")
    parts = MultiAgentParts(
        host=host,
        actor=AgentsActor(around.laps.lap),
        company=Company(scene, around.equipment, plays, count(around.first_id)),
        recorder=Recorder(progress),
        finisher=Finisher(around.unrolls, PostProcessor(told, scene.worker, scene.policy_map)),
        log=around.log,
        laps=around.laps,
        scene=scene,
    )
    return MultiAgentSampler(parts, plan_of(config, length, host.spec.num_envs), progress)
