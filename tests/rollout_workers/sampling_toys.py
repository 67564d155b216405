"""A policy whose answers can be foreseen, and workers with envs that count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from swath.rollout_workers import AlgorithmConfig, RolloutWorker
from swath.rollout_workers.batches.names import views
from swath.rollout_workers.policy import Policy
from swath.testing.counting import ENDLESS, Counting, CountingEnvs, Script
from swath.testing.faults import Faults


class Foreseen(Policy):
    """Acts by the step that the observation tells of, and notes how many rows it was asked for."""

    looks_at_episodes = False

    def __init__(self, observation_space: Any, action_space: Any, config: Any) -> None:
        super().__init__(observation_space, action_space, config)
        self.view_requirements = views()
        self.asked: list[int] = []
        self.explored: list[Any] = []

    def compute_actions(self, obs_batch: Any, state_batches: Any = None, **kwargs: Any) -> Any:  # type: ignore[override]
        self.asked.append(len(obs_batch))
        self.explored.append(kwargs["explore"])
        steps = np.asarray(obs_batch)[:, -1].astype(np.int64)
        return steps % 3, [], {"twice": 2.0 * steps}


LONG = Counting(script=Script((ENDLESS,)))


def counting_worker(
    counting: Counting = LONG, faults: Faults | None = None, policy: Any = Foreseen, **settings: Any
) -> tuple[RolloutWorker, CountingEnvs]:
    """A worker whose envs count, and the factory of these."""
    factory = CountingEnvs(counting, faults)
    settings = {"num_envs_per_env_runner": 3, "rollout_fragment_length": 4, **settings}
    config = AlgorithmConfig().update_from_dict({"delay_between_sub_environment_restarts_s": 0.0, **settings})
    return RolloutWorker(env_creator=lambda _: factory(), default_policy_class=policy, config=config), factory


def made_of(make: Callable[[], Any], policy: Any = Foreseen, **settings: Any) -> RolloutWorker:
    """A worker with envs that `make` makes."""
    config = AlgorithmConfig().update_from_dict(settings)
    return RolloutWorker(env_creator=lambda _: make(), default_policy_class=policy, config=config)


def waiting_steps(worker: RolloutWorker) -> int:
    """How many env steps were made and not handed out, which they will not be any more."""
    assert worker.envs is not None
    before = worker.counters["env_steps_discarded"]
    worker.envs.sampler.discard_waiting()
    return worker.counters["env_steps_discarded"] - before
