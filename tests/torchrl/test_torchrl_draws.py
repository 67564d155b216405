"""Without a seed the same numbers are drawn as by TorchRL's collector, in its constructor and in every step."""

import pytest
import torch
import torchrl.collectors
from tensordict.nn import InteractionType, TensorDictModule, TensorDictSequential
from torch.distributions import Categorical
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import GymEnv, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import (
    MLP,
    Actor,
    AdditiveGaussianModule,
    EGreedyModule,
    OrnsteinUhlenbeckProcessModule,
    ProbabilisticActor,
    QValueActor,
    RandomPolicy,
)
from torchrl_differences import differences

from swath import Collector

BESIDE_TORCHRL = {("collector", "policy_version"), ("collector", "traj_ids"), "index"}


def cartpole():
    return GymEnv("CartPole-v1", categorical_action_encoding=True)


def pendulum():
    return TransformedEnv(GymEnv("Pendulum-v1"), InitTracker())


def mlp(outputs, inputs):
    return MLP(in_features=inputs, out_features=outputs, num_cells=[8])


def greedy(env, inputs=4):
    values = QValueActor(mlp(2, inputs), in_keys=["observation"], spec=env.action_spec)
    return TensorDictSequential(values, EGreedyModule(env.action_spec, eps_init=0.5, eps_end=0.5))


def noisy(noise):
    def make(env):
        actor = Actor(mlp(1, 3), in_keys=["observation"], spec=env.action_spec)
        return TensorDictSequential(actor, noise(env.action_spec))

    return make


def sampling(kind=InteractionType.RANDOM, *, with_spec=False):
    def make(env):
        return ProbabilisticActor(
            TensorDictModule(mlp(2, 4), ["observation"], ["logits"]),
            in_keys=["logits"],
            distribution_class=Categorical,
            return_log_prob=True,
            default_interaction_type=kind,
            **({"spec": env.action_spec} if with_spec else {}),
        )

    return make


CASES = {
    "e-greedy": (cartpole, greedy),
    "e-greedy, lazy layers": (cartpole, lambda env: greedy(env, None)),
    "Gaussian noise": (pendulum, noisy(lambda spec: AdditiveGaussianModule(spec, device="cpu"))),
    "Ornstein-Uhlenbeck": (pendulum, noisy(OrnsteinUhlenbeckProcessModule)),
    "an actor that samples by default": (cartpole, sampling()),
    "the same with a spec": (cartpole, sampling(with_spec=True)),
    "the same of a batch": (lambda: SerialEnv(2, cartpole), sampling()),
    "an actor that does not": (cartpole, sampling(InteractionType.DETERMINISTIC)),
    "TorchRL's RandomPolicy": (cartpole, lambda env: RandomPolicy(env.action_spec)),
    "no policy": (cartpole, lambda env: None),
}


def collected(kind, make_env, make_policy, buffer=None, **options):
    torch.manual_seed(0)
    env = make_env()
    env.set_seed(0)
    policy = make_policy(env)
    torch.manual_seed(1)
    collector = kind(env, policy, frames_per_batch=20, total_frames=40, replay_buffer=buffer, **options)
    batches = [batch if batch is None else batch.clone() for batch in collector]
    collector.shutdown()
    return batches if buffer is None else [buffer[:]]


@pytest.mark.parametrize("case", CASES)
def test_batches_are_those_of_torchrls_collector_bit_for_bit(case):
    ours, theirs = (collected(kind, *CASES[case]) for kind in (Collector, torchrl.collectors.Collector))
    for first, second in zip(ours, theirs, strict=True):
        assert differences(first, second, BESIDE_TORCHRL) == []


@pytest.mark.parametrize("case", ["e-greedy", "an actor that samples by default"])
def test_so_are_those_in_a_replay_buffer(case):
    kinds = (Collector, torchrl.collectors.Collector)
    (ours,), (theirs,) = (collected(k, *CASES[case], ReplayBuffer(storage=LazyTensorStorage(64))) for k in kinds)
    assert differences(ours, theirs, BESIDE_TORCHRL) == []


def test_with_a_seed_the_constructor_draws_nothing():
    env = cartpole()
    policy = greedy(env)
    before = torch.get_rng_state()
    Collector(env, policy, frames_per_batch=4, seed=0).shutdown()
    assert torch.equal(torch.get_rng_state(), before)
