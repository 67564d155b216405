import dataclasses
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from learn_toys import batch_of, small_policy
from torch.distributions import Categorical
from torch.nn.functional import mse_loss

from swath import Collector, ExplorationType, evaluate_policy
from swath.learn import PPO, LearnerConfig, NetworkPolicy, default_config, make_policy
from swath.learn.heads import Categorical as CategoricalHead
from swath.learn.networks import MLP
from swath.learn.ppo import STATISTICS, rows_of
from swath.report.checkpoint import load_checkpoint, save_checkpoint
from swath.rollout.episodes.gae import GAE
from toys import MaskedEnv

WHOLE = LearnerConfig(epochs=1, minibatch_size=100, max_grad_norm=1e9, entropy_coef=0.01)
"""One gradient from a batch of 100 frames."""


def weights_of(policy):
    return {name: value.clone() for name, value in policy.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_rows_are_the_frames_with_advantages_and_targets():
    policy = small_policy()
    batch, config = batch_of(policy), LearnerConfig(normalise_advantage=False, gamma=0.9, gae_lambda=0.8)
    rows = rows_of(batch, policy, config)
    expected = GAE(gamma=0.9, lmbda=0.8, value_network=lambda x: policy.value((x,)))(batch.clone())
    for name in ("observation", "action", "action_log_prob"):
        assert torch.equal(rows[name], batch[name].flatten(0, 1))
    for name in ("advantage", "value_target"):
        torch.testing.assert_close(rows[name], expected[name].flatten())
    standardised = rows_of(batch, policy, dataclasses.replace(config, normalise_advantage=True))
    assert standardised["advantage"].mean().item() == pytest.approx(0, abs=1e-5)
    assert standardised["advantage"].std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_a_truncated_episode_is_worth_what_would_have_followed_and_a_terminated_one_is_not():
    policy = small_policy()
    batch = batch_of(policy, (2, 1), end_rate=1.0)
    batch["next", "terminated"] = torch.tensor([[[True]], [[False]]])
    batch["next", "truncated"] = ~batch["next", "terminated"]
    rows = rows_of(batch, policy, LearnerConfig(gamma=0.9))
    reward = batch["next", "reward"].flatten()
    after = policy.value((batch["next", "observation"],)).flatten().detach()
    torch.testing.assert_close(rows["value_target"], torch.stack([reward[0], reward[1] + 0.9 * after[1]]))
    batch["next", "final_observation_missing"] = batch["next", "truncated"]
    rows = rows_of(batch, policy, LearnerConfig(gamma=0.9))
    torch.testing.assert_close(rows["value_target"], reward)


def test_one_gradient_is_that_of_the_loss_written_out():
    policy = small_policy()
    batch = batch_of(policy)
    batch["action_log_prob"] += 0.3 * torch.randn(4, 25)  # as if the weights had moved since
    learner = PPO(policy, WHOLE)
    rows = rows_of(batch, policy, WHOLE)
    learner.critic.update(rows["value_target"])
    reference = Categorical(logits=policy.network(policy.encoder(rows["observation"])))
    ratio = (reference.log_prob(rows["action"]) - rows["action_log_prob"]).exp()
    surrogate = torch.min(ratio * rows["advantage"], ratio.clamp(0.8, 1.2) * rows["advantage"])
    value = policy.value((rows["observation"],))
    value_loss = 0.5 * mse_loss(value, rows["value_target"]) / learner.critic.std**2
    entropy = reference.entropy().mean()
    loss = -surrogate.mean() + 0.5 * value_loss - 0.01 * entropy
    expected = torch.autograd.grad(loss, list(policy.parameters()))
    statistics = dict(zip(STATISTICS, learner._step(rows).tolist(), strict=True))
    for parameter, gradient in zip(policy.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)
    assert statistics["policy_loss"] == pytest.approx(-surrogate.mean().item(), abs=1e-6)
    assert statistics["value_loss"] == pytest.approx(value_loss.item(), abs=1e-6)
    assert statistics["entropy"] == pytest.approx(entropy.item(), abs=1e-6)
    assert statistics["clip_fraction"] == pytest.approx(((ratio - 1).abs() > 0.2).float().mean().item())
    assert statistics["approx_kl"] == pytest.approx((ratio - 1 - ratio.log()).mean().item(), abs=1e-6)


def test_masked_frames_do_not_count_whatever_they_hold():
    results = []
    for junk in (0.0, 1e6):
        policy = small_policy()
        batch = batch_of(policy)
        mask = torch.rand(4, 25, generator=torch.Generator().manual_seed(1)) < 0.7
        batch["collector", "mask"] = mask
        for key in ("observation", ("next", "observation"), ("next", "reward"), "action_log_prob"):
            batch[key][~mask] = junk
        learner = PPO(policy, LearnerConfig(epochs=2, minibatch_size=32))
        learner.update(batch)
        assert learner.frames == int(mask.sum())
        results.append(weights_of(policy))
    assert same(*results)
    batch["collector", "mask"] = torch.zeros(4, 25, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"batch of shape \[4, 25\] has no frame to learn from"):
        learner.update(batch)


@pytest.mark.parametrize("shape", [(50,), (2, 5, 10)])
def test_batches_of_any_shape_are_learnt_from_and_left_as_they_were(shape):
    policy = small_policy(spaces.Box(-1, 1, (2,)))
    batch = batch_of(policy, shape)
    kept, before = batch.clone(), weights_of(policy)
    learner = PPO(policy, LearnerConfig(epochs=2, minibatch_size=16))
    losses = learner.update(batch)
    assert (batch == kept).all()
    assert set(batch.keys(include_nested=True)) == set(kept.keys(include_nested=True))
    assert [*losses] == [*STATISTICS, "explained_variance", "learning_rate"]
    assert all(isinstance(value, float) for value in losses.values())
    assert not same(before, weights_of(policy))
    assert learner.frames == batch.numel()
    assert f"{batch.numel()} frames" in repr(learner)


def test_the_learning_rate_falls_with_the_frames_learnt_from_and_gradients_are_shortened_to_the_norm_allowed():
    policy = small_policy()
    learner = PPO(policy, dataclasses.replace(WHOLE, total_frames=200, learning_rate=1e-3, max_grad_norm=1e-3))
    losses = [learner.update(batch_of(policy, seed=seed)) for seed in range(3)]
    assert [statistics["learning_rate"] for statistics in losses] == pytest.approx([1e-3, 5e-4, 0])
    assert losses[-1]["gradient_norm"] > 1e-2
    total = torch.stack([parameter.grad.norm() for parameter in policy.parameters()]).norm()
    assert total.item() == pytest.approx(1e-3, rel=1e-3)


def test_a_restored_learner_goes_on_bit_for_bit(tmp_path):
    config = LearnerConfig(epochs=2, minibatch_size=32, total_frames=1000)
    policy = small_policy()
    learner = PPO(policy, config)
    batches = [batch_of(policy, seed=seed) for seed in range(4)]
    for batch in batches[:2]:
        learner.update(batch)
    save_checkpoint(tmp_path / "state.safetensors", {"policy": policy.state_dict(), "learner": learner.state_dict()})
    expected = [learner.update(batch) for batch in batches[2:]]

    second = small_policy(seed=99)
    state = load_checkpoint(tmp_path / "state.safetensors")
    second.load_state_dict(state["policy"])
    restored = PPO(second, config)
    restored.load_state_dict(state["learner"])
    assert [restored.update(batch) for batch in batches[2:]] == expected
    assert same(weights_of(policy), weights_of(second))
    assert (restored.frames, restored.updates) == (400, 4)


def test_what_is_missing_or_not_finite_is_named():
    policy = small_policy()
    batch = batch_of(policy)
    with pytest.raises(ValueError, match="no critic"):
        PPO(NetworkPolicy(MLP([3, 2]), CategoricalHead(2)))
    with pytest.raises(KeyError, match="action_log_prob"):
        PPO(policy).update(batch.exclude("action_log_prob"))
    with pytest.raises(KeyError, match="frames"):
        PPO(policy).load_state_dict({k: v for k, v in PPO(policy).state_dict().items() if k != "frames"})
    batch["next", "reward"][0, 0] = math.nan
    with pytest.raises(FloatingPointError, match=r"after update 1 .*policy_loss.*lower learning_rate"):
        PPO(policy).update(batch)


BAD = [
    *[("epochs", value, "a whole number, 1 or more") for value in (0, 2.5, True)],
    *[("learning_rate", value, "above 0 and finite") for value in (0, math.inf, math.nan, None)],
    ("entropy_coef", -0.1, "0 or more and finite"),
    ("gamma", 1.01, "between 0 and 1"),
]


@pytest.mark.parametrize(("name", "value", "wanted"), BAD)
def test_a_setting_out_of_range_is_refused_with_its_name_and_value(name, value, wanted):
    with pytest.raises(ValueError, match=f"LearnerConfig: {name}={value!r} must be {wanted}"):
        LearnerConfig(**{name: value})


# A small task that the defaults must learn, through a collector, from the first frame to the last


class Contrast(gym.Env):
    """One step: act as the observation says; the best reward is 1, an untrained policy's far below."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Box(0, 3, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state = 1000 + 50 * self.np_random.normal(size=4).astype(np.float32)  # badly scaled, as life is
        return self._state, {}

    def step(self, action):
        targets = 1.5 + np.tanh((self._state[:2] - 1000) / 50)  # between 0.5 and 2.5, of the allowed 0 to 3
        return self._state, float(1 - np.sum((action - targets) ** 2)), True, False, {}


def mean_reward(policy):
    settings = {"envs_per_worker": 10, "seed": 7, "exploration_type": ExplorationType.DETERMINISTIC}
    with Collector(Contrast, policy, frames_per_batch=500, **settings) as judge:
        return judge.next()["next", "reward"].mean().item()


def test_the_defaults_learn_to_act_on_what_is_observed():
    torch.manual_seed(0)
    policy = make_policy(Contrast.observation_space, Contrast.action_space)
    config = default_config(Contrast.observation_space, Contrast.action_space)
    learner = PPO(policy, dataclasses.replace(config, total_frames=6_000, minibatch_size=64))

    assert mean_reward(policy) < 0.45
    with Collector(Contrast, policy, frames_per_batch=500, total_frames=6_000, envs_per_worker=10, seed=0) as collector:
        for batch in collector:
            learner.update(batch)
            collector.update_policy_weights_()
    assert mean_reward(policy) > 0.75


def test_a_learner_and_evaluations_keep_to_the_mask():
    policy = make_policy(MaskedEnv.observation_space, MaskedEnv.action_space)
    learner = PPO(policy, LearnerConfig(epochs=2, minibatch_size=20))
    with Collector(MaskedEnv, policy, frames_per_batch=40, total_frames=120, seed=0) as collector:
        for batch in collector:
            assert batch["next", "reward"].sum() == 0
            assert math.isfinite(learner.update(batch)["entropy"])
    for deterministic in (True, False):
        assert evaluate_policy(policy, MaskedEnv, 3, deterministic=deterministic) == (0.0, 0.0)


class Guided(gym.Env):
    """The reward is 1 for the action that `"policy"` shows; `"critic"` tells how many steps are left of 5."""

    observation_space = spaces.Dict(critic=spaces.Box(-1, 1, (2,)), policy=spaces.Box(-1, 1, (1,)))
    action_space = spaces.Discrete(2)

    def _observe(self):
        self.wanted = int(self.np_random.integers(2))
        remaining = np.float32([1 - self.step_count / 5, self.wanted])
        return {"critic": remaining, "policy": np.float32([2 * self.wanted - 1])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_count = 0
        return self._observe(), {}

    def step(self, action):
        reward, self.step_count = float(action == self.wanted), self.step_count + 1
        return self._observe(), reward, self.step_count == 5, False, {}


def test_a_critic_may_see_more_than_the_actor():
    torch.manual_seed(0)
    policy = make_policy(Guided.observation_space, Guided.action_space, actor_keys=["policy"])
    assert policy.in_keys == ["policy", "critic"]
    learner = PPO(policy, LearnerConfig(minibatch_size=50, learning_rate=1e-2))
    with Collector(Guided, policy, frames_per_batch=500, total_frames=3_000, envs_per_worker=10, seed=0) as collector:
        for batch in collector:
            learner.update(batch)
            collector.update_policy_weights_()
        reward = batch["next", "reward"].mean().item()
    assert reward > 0.9
    shown, early, late = torch.tensor([[1.0]]), torch.tensor([[1.0, 1.0]]), torch.tensor([[0.2, 1.0]])
    action = [policy(shown, state, exploration_type=ExplorationType.DETERMINISTIC) for state in (early, late)]
    assert torch.equal(action[0][1], action[1][1])
    assert policy.value([shown, early]) > policy.value([shown, late]) + 1
    assert evaluate_policy(policy, Guided, 3) == (5.0, 0.0)


def test_actor_keys_name_entries_or_groups_of_them():
    nested = spaces.Dict(policy=spaces.Dict(b=spaces.Box(-1, 1, (2,)), a=spaces.Discrete(3)), critic=spaces.Box(0, 1))
    assert make_policy(nested, spaces.Discrete(2), actor_keys=["policy"]).encoder.features == 5
    assert make_policy(nested, spaces.Discrete(2), actor_keys=[("policy", "b")]).encoder.features == 2
    assert make_policy(nested, spaces.Discrete(2)).encoder.features == 6
    with pytest.raises(ValueError, match=r"actor_keys has 'state'; the entries are"):
        make_policy(nested, spaces.Discrete(2), actor_keys=["state"])
    with pytest.raises(TypeError, match=r"must be a list of keys: pass \['policy'\]"):
        make_policy(nested, spaces.Discrete(2), actor_keys="policy")
