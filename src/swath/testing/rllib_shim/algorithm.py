"""What stands for an algorithm of RLlib's in tests that look at its workers. It learns a little, and is nothing to use.

config.build() ──▶ WorkerSet ──train()──▶ sample from all ──▶ local worker learns ──▶ weights and counts to all
"""

from __future__ import annotations

from typing import Any, ClassVar

from swath.rollout_workers import (
    DEFAULT_POLICY_ID,
    AlgorithmConfig,
    PGTorchPolicy,
    Policy,
    PPOTorchPolicy,
    RolloutWorker,
    WorkerSet,
    collect_metrics,
    synchronous_parallel_sample,
)
from swath.rollout_workers import PPOConfig as OurPPOConfig


class Algorithm:
    """Workers, and updates with what they sample.

    Args:
        config: of them; `config.env` says what they act in.
    """

    policy_class: ClassVar[type[Policy]]

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config
        self.env_runner_group = self.workers = WorkerSet(config=config, default_policy_class=self.policy_class)
        self._env_steps = self._agent_steps = 0

    @property
    def env_runner(self) -> RolloutWorker:
        """The local worker."""
        local: RolloutWorker = self.env_runner_group.local_env_runner
        return local

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Policy | None:
        """A policy of the local worker."""
        policy: Policy | None = self.env_runner.get_policy(policy_id)
        return policy

    def train(self) -> dict[str, Any]:
        """Sample `train_batch_size` env steps, learn from them once, and say what there is to say."""
        batch: Any = synchronous_parallel_sample(
            worker_set=self.env_runner_group, max_env_steps=self.config.train_batch_size
        )
        self._env_steps += batch.env_steps()
        self._agent_steps += batch.agent_steps()
        self.env_runner.learn_on_batch(batch)
        told = {"timestep": self._agent_steps}
        self.env_runner.set_global_vars(told)
        self.env_runner_group.sync_weights(global_vars=told)
        return {
            "env_runners": collect_metrics(self.env_runner_group),
            "info": dict.fromkeys(("num_agent_steps_sampled", "num_agent_steps_trained"), self._agent_steps),
            "num_env_steps_sampled_lifetime": self._env_steps,
        }

    def stop(self) -> None:
        """End the workers."""
        self.env_runner_group.stop()


class PPO(Algorithm):
    """With the policy of PPO."""

    policy_class = PPOTorchPolicy


class PG(Algorithm):
    """With the policy of a plain policy gradient."""

    policy_class = PGTorchPolicy


class _Config(AlgorithmConfig):
    """Settings of an algorithm."""

    builds: ClassVar[type[Algorithm]]

    def build(self, *_: Any, **__: Any) -> Algorithm:  # type: ignore[override]  # ours builds none
        """The algorithm."""
        return self.builds(self)


class PPOConfig(_Config, OurPPOConfig):
    """Settings that RLlib's PPO has by default."""

    builds = PPO


class PGConfig(_Config):
    """Settings that RLlib's PG had by default."""

    builds = PG

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class)
        self.env_runners(num_env_runners=0, rollout_fragment_length="auto")
        self.training(train_batch_size=200, lr=4e-4)
