"""A program as a user would write it. mypy in strict mode finds nothing in it, and it runs.

Lines that must be errors carry a `type: ignore`, which strict mode reports where it is not needed.
"""

from __future__ import annotations

import gymnasium
import torch
from tensordict import TensorDict
from torch import Tensor, nn

import swath
from swath import (
    AlgorithmConfig,
    Collector,
    EvalResult,
    Evaluator,
    ExplorationType,
    MultiAgentBatch,
    MultiSyncCollector,
    PolicySpec,
    SampleBatch,
    SharedMemWeightSyncScheme,
    WeightUpdaterBase,
    compare,
    evaluate_policy,
    split_trajectories,
)
from swath.errors import Closed
from swath.rollout_workers import (
    concat_samples,
)


class Actor(nn.Module):
    """Samples actions and says how probable they were."""

    in_keys = ("observation",)
    out_keys = ("action", "action_log_prob")

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        probabilities: Tensor = self.net(observation).softmax(-1)
        choice = torch.multinomial(probabilities, 1)
        return choice.squeeze(-1), probabilities.gather(-1, choice).squeeze(-1).log()


def make_env() -> gymnasium.Env[object, object]:
    return gymnasium.make("CartPole-v1")


def collect(actor: nn.Module) -> TensorDict:
    with Collector(
        make_env,
        actor,
        envs_per_worker=2,
        frames_per_batch=32,
        total_frames=64,
        seed=0,
        device=torch.device("cpu"),
        exploration_type=ExplorationType.RANDOM,
    ) as collector:
        batches: list[TensorDict] = list(collector)
        frames: int = collector.requested_frames_per_batch * len(collector)
        assert sum(batch.numel() for batch in batches) == frames
        stats: dict[str, object] = collector.stats()
        assert stats["frames"] == frames
    try:
        collector.next()
    except Closed as error:
        print(error)
    return batches[0]


class Loud(WeightUpdaterBase):
    """Says whom it delivers to."""

    def all_worker_ids(self) -> list[int]:
        return [0, 1]

    def _sync_weights_with_worker(self, *, worker_id: object = None, server_weights: TensorDict) -> None:
        version: int = self.collector.publish_weights(server_weights, worker_ids=worker_id)
        print(f"worker {worker_id} gets version {version}")


def train(actor: nn.Module) -> None:
    schemes = {"policy": SharedMemWeightSyncScheme("tensordict", sync=False)}
    with MultiSyncCollector(
        make_env, actor, num_workers=2, frames_per_batch=8, backend="thread", weight_sync_schemes=schemes
    ) as collector:
        collector.update_policy_weights_(TensorDict.from_module(actor))
        collector.weight_updater = Loud
        collector.update_policy_weights_(policy=actor, wait=True, timeout_s=60.0)
        updater: WeightUpdaterBase | None = collector.weight_updater
        assert updater is not None
        assert collector.policy_version == 2


def evaluate(actor: nn.Module) -> float:
    mean, _ = evaluate_policy(actor, "CartPole-v1", n_eval_episodes=2, deterministic=False)
    returns, lengths = evaluate_policy(
        actor, make_env, n_eval_episodes=2, deterministic=False, return_episode_rewards=True
    )
    longest: int = max(lengths)
    assert longest == max(returns)
    return mean


def judge(actor: nn.Module) -> float:
    with Evaluator("CartPole-v1", actor, num_trajectories=2, busy_policy="latest") as evaluator:
        accepted: bool = evaluator.trigger_eval(actor, step=1)
        result: EvalResult | None = evaluator.wait()
        assert accepted
        assert result is not None
        return compare(result, evaluator.evaluate()).difference


def configure() -> AlgorithmConfig:
    config = (
        AlgorithmConfig()
        .environment("CartPole-v1", env_config={"max_episode_steps": 10}, clip_rewards=2)
        .env_runners(num_env_runners=2, rollout_fragment_length="auto", batch_mode="complete_episodes")
        .rollouts(num_envs_per_worker=4)
        .multi_agent(
            policies={"left": PolicySpec(), "right": (None, None, None, {"lr": 0.1})}, policies_to_train=["left"]
        )
        .training(gamma=0.9, lambda_=0.95, lr_schedule=[[0, 0.1], [100, 0.01]], model={"fcnet_hiddens": [32]})
        .callbacks(on_episode_end=lambda **_: None)
        .framework("torch")
        .api_stack(False, False)
    )
    config.lr = 0.1
    rate: float = config.lr
    spec: PolicySpec = config.policies["right"]
    assert config["gamma"] + rate == 1.0
    assert spec.config == AlgorithmConfig.overrides(lr=0.1)
    return config.copy(copy_frozen=False)


def mistakes_in_settings(config: AlgorithmConfig) -> None:
    config.lr = "small"  # type: ignore[assignment]
    config.learning_rate = 0.1  # type: ignore[attr-defined]


def regroup(batch: TensorDict) -> int:
    columns: SampleBatch = SampleBatch.from_tensordict(batch)
    episodes: list[SampleBatch] = columns[:10].copy().shuffle().split_by_episode()
    joined: SampleBatch | MultiAgentBatch = concat_samples([*episodes, columns[10:].concat(SampleBatch())])
    padded: TensorDict = SampleBatch(obs=[1, 2, 3], seq_lens=[2, 1]).right_zero_pad(max_seq_len=2).to_tensordict()
    assert len(padded) == 4
    both = MultiAgentBatch({"a": columns, "b": {"t": [0]}}, env_steps=columns.env_steps())
    return both["a"].count - joined.agent_steps()


def mistakes(actor: nn.Module) -> None:
    Collector("CartPole-v1")  # type: ignore[call-arg]
    Collector("CartPole-v1", frames_per_batch="100")  # type: ignore[arg-type]
    Collector("CartPole-v1", frames_per_batch=100, nonsense=3)  # type: ignore[call-arg]
    Collector(3, frames_per_batch=100)  # type: ignore[arg-type]
    MultiSyncCollector("CartPole-v1", frames_per_batch=100, device=1.5)  # type: ignore[arg-type]
    swath.RayCollector("CartPole-v1", frames_per_batch=100, set_truncated=True)  # type: ignore[call-arg]
    evaluate_policy(actor, n_eval_episodes="ten")  # type: ignore[call-overload]
    Evaluator("CartPole-v1", actor, busy_policy="busy")  # type: ignore[arg-type]
    SampleBatch(obs=[1])[0]  # type: ignore[call-overload]
    MultiAgentBatch([], env_steps=0)  # type: ignore[arg-type]
    swath.Colector  # type: ignore[attr-defined]  # noqa: B018


def main() -> None:
    actor = Actor()
    batch = collect(actor)
    assert regroup(batch) == 0
    trajectories: TensorDict = split_trajectories(batch)
    assert trajectories.names[-1] == "time"
    train(actor)
    assert 0 < evaluate(actor) <= 500
    assert abs(judge(actor)) <= 500
    assert configure().num_envs_per_env_runner == 4


if __name__ == "__main__":
    main()
