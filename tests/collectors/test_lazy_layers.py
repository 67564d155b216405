"""Layers whose shapes the first observation decides: all workers act with one set of weights, the learner's."""

import os
import signal
from functools import partial

import gymnasium as gym
import pytest
import torch
from torch import nn

import ray_cluster
from swath import Collector, Evaluator, MultiSyncCollector, RayCollector, evaluate_policy
from swath.rollout_workers import PPOTorchPolicy
from swath.weight_update import MultiProcessWeightSyncScheme

pytestmark = pytest.mark.usefixtures("fork_server")


class Lazy(nn.Module):
    """Returns its logits and the action."""

    in_keys, out_keys = ["observation"], ["action", "logits"]

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.LazyLinear(2))

    def forward(self, observation):
        logits = self.net(observation)
        return logits.argmax(-1), logits


class LazyTensorDict(nn.Module):
    in_keys, out_keys = ["observation"], ["action", "logits"]

    def __init__(self):
        super().__init__()
        self.net = nn.LazyLinear(2)

    def forward(self, tensordict):
        logits = self.net(tensordict["observation"])
        return tensordict.set("logits", logits).set("action", logits.argmax(-1))


def torchrl_env():
    envs = pytest.importorskip("torchrl.envs")
    return envs.GymEnv("CartPole-v1", categorical_action_encoding=True)


def require_one_set(policy, batch):
    torch.testing.assert_close(policy.net(batch["observation"]), batch["logits"])
    assert not torch.equal(batch["observation"][0], batch["observation"][1])


@pytest.mark.parametrize("backend", ["process", "thread"])
@pytest.mark.parametrize(
    ("env", "make"), [("CartPole-v1", Lazy), (torchrl_env, LazyTensorDict)], ids=["gymnasium", "torchrl"]
)
def test_all_workers_act_with_the_weights_that_the_learner_gets(env, make, backend):
    policy = make()
    with MultiSyncCollector([env] * 2, policy, frames_per_batch=40, backend=backend) as collector:
        require_one_set(policy, collector.next())
        optimizer = torch.optim.SGD(policy.parameters(), 0.1)
        policy.net(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        collector.update_policy_weights_()
        batch = collector.next()
    require_one_set(policy, batch)
    assert batch["collector", "policy_version"].unique().tolist() == [1]


def test_first_weights_follow_from_the_seed_of_torch_here():
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        policy = Lazy()
        MultiSyncCollector(["CartPole-v1"], policy, frames_per_batch=4).shutdown()
        found.append(policy.net[0].weight.detach().clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_a_next_life_begins_with_the_same_weights():
    policy = Lazy()
    with MultiSyncCollector(["CartPole-v1"] * 2, policy, frames_per_batch=40, prefetch=0) as collector:
        collector.next()
        os.kill(collector.collection.group.fleet.up[1].pid, signal.SIGKILL)
        for _ in range(2):  # the killed worker's share is made by its next life
            require_one_set(policy, collector.next())
        assert collector.stats()["restarts"] == 1


def test_workers_on_ray_do_so_too():
    ray_cluster.up()
    policy = Lazy()
    with RayCollector(["CartPole-v1"] * 2, policy, frames_per_batch=40, sync=True) as collector:
        require_one_set(policy, collector.next())


def test_a_source_of_weights_beside_a_factory_gets_those_of_the_first_worker():
    policy = Lazy()
    with MultiSyncCollector(
        ["CartPole-v1"] * 2,
        policy,
        policy_factory=Lazy,
        weight_sync_schemes={"policy": MultiProcessWeightSyncScheme()},
        frames_per_batch=40,
    ) as collector:
        require_one_set(policy, collector.next())


def test_what_cannot_get_one_set_of_weights_is_refused_with_the_way_out():
    net = nn.LazyLinear(2)

    def act(observation):
        return net(observation).argmax(-1)

    with pytest.raises(ValueError, match=r"LazyLinear has lazy layers .*: weight, bias; call it once"):
        MultiSyncCollector(["CartPole-v1"] * 2, act, frames_per_batch=40)
    with Collector("CartPole-v1", act, frames_per_batch=4) as collector:  # one process: it is the learner's own
        collector.next()
    assert net.weight.shape == (2, 4)


class Spare(Lazy):
    """Has a part that is not called when it acts."""

    def __init__(self):
        super().__init__()
        self.critic = nn.LazyLinear(1)


@pytest.mark.parametrize("kind", [Collector, partial(MultiSyncCollector, num_workers=1)], ids=["here", "processes"])
def test_a_part_that_acting_does_not_initialise_is_named(kind):
    with pytest.raises(ValueError, match=r"Spare has lazy layers that are not initialised: critic.weight, critic.bias"):
        kind("CartPole-v1", Spare(), frames_per_batch=4)


def test_evaluations_refuse_weights_that_are_not_there_and_take_them_when_they_are():
    policy, wanted = Lazy(), "Lazy has lazy layers that are not initialised: net.0.weight"
    with pytest.raises(ValueError, match=wanted):
        evaluate_policy(policy, "CartPole-v1", 1)
    with Evaluator("CartPole-v1", policy, num_trajectories=2) as evaluator:
        with pytest.raises(ValueError, match=wanted):
            evaluator.evaluate()
        Collector("CartPole-v1", policy, frames_per_batch=4).shutdown()  # initialises it
        expected = evaluate_policy(policy, "CartPole-v1", 2)[0]
        assert evaluator.evaluate()["eval/reward"] > 0
    with Evaluator("CartPole-v1", policy_factory=Lazy, num_trajectories=2) as evaluator:
        with pytest.raises(ValueError, match=wanted):
            evaluator.evaluate()
        first = evaluator.evaluate(policy)["eval/reward"]
        assert first == evaluator.evaluate(policy)["eval/reward"]
    assert expected > 0


class LazyModel(nn.Module):
    def __init__(self, observation_space, action_space, num_outputs, model_config):
        super().__init__()
        self.out = nn.LazyLinear(num_outputs + 1)

    def forward(self, obs):
        out = self.out(obs)
        return out[:, :-1], out[:, -1]


def test_policies_of_rollout_workers_are_initialised_when_they_are_built():
    env = gym.make("CartPole-v1")
    spaces = env.observation_space, env.action_space
    policies = [PPOTorchPolicy(*spaces, {"seed": 0, "model": {"custom_model": LazyModel}}) for _ in range(2)]
    first, other = (policy.get_weights() for policy in policies)
    assert first["out.weight"].shape == (3, 4)
    assert (first["out.weight"] == other["out.weight"]).all()
