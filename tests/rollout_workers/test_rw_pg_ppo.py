"""The shipped losses, their figures, schedules and post-processing."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rw_toys import batch_for, ppo
from torch import distributions as td

from swath.rollout_workers import PGTorchPolicy, PPOTorchPolicy, SampleBatch

PPO_STATS = {
    "total_loss", "policy_loss", "vf_loss", "vf_explained_var", "kl", "entropy", "entropy_coeff", "cur_kl_coeff",
    "cur_lr", "grad_gnorm",
}  # fmt: skip


def moved(policy, seed=0):
    """A batch, after which the policy's weights changed, so that no ratio is 1."""
    batch = batch_for(policy, seed=seed)
    noise = np.random.default_rng(seed)
    weights = policy.get_weights()
    policy.set_weights({name: array + noise.normal(scale=0.3, size=array.shape) for name, array in weights.items()})
    return batch


def distribution(out, space):
    if isinstance(space, spaces.Discrete):
        return td.Categorical(logits=out)
    mean, log_std = out.chunk(2, -1)
    return td.Independent(td.Normal(mean, log_std.exp()), 1)


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.Box(-1, 1, (2,))], ids=["discrete", "box"])
@pytest.mark.parametrize("use_kl_loss", [True, False])
def test_ppo_minimises_the_formula(space, use_kl_loss):
    config = {"clip_param": 0.1, "vf_clip_param": 0.8, "vf_loss_coeff": 0.7, "entropy_coeff": 0.03, "kl_coeff": 0.4}
    policy = ppo(space, use_kl_loss=use_kl_loss, **config)
    batch = moved(policy)
    gradients, info = policy.compute_gradients(batch)
    stats = info["learner_stats"]
    assert set(stats) == PPO_STATS

    columns = {name: torch.from_numpy(np.asarray(column)) for name, column in batch.items()}
    out, value = policy.model(columns["obs"])
    now, then = distribution(out, space), distribution(columns["action_dist_inputs"], space)
    ratio = (now.log_prob(columns["actions"]) - columns["action_logp"]).exp()
    clipped = torch.clamp(ratio, 0.9, 1.1)
    advantage, target = columns["advantages"], columns["value_targets"]
    policy_loss = -torch.min(advantage * ratio, advantage * clipped)
    value_loss = torch.clamp((value - target) ** 2, 0, 0.8)
    kl, entropy = td.kl_divergence(then, now).mean(), now.entropy()
    total = (policy_loss + 0.7 * value_loss - 0.03 * entropy).mean() + (0.4 * kl if use_kl_loss else 0)
    expected = {
        "total_loss": total, "policy_loss": policy_loss.mean(), "vf_loss": value_loss.mean(), "kl": kl,
        "entropy": entropy.mean(), "entropy_coeff": 0.03, "cur_kl_coeff": 0.4, "cur_lr": 0.001,
        "vf_explained_var": max(-1, 1 - ((target - value).var() / target.var()).item()),
    }  # fmt: skip
    assert {name: stats[name] for name in expected} == pytest.approx(
        {name: torch.as_tensor(number).item() for name, number in expected.items()}, rel=1e-4, abs=1e-5
    )
    assert ratio.min() < 0.9 < 1.1 < ratio.max()
    assert kl > 0.001
    for mine, theirs in zip(gradients, torch.autograd.grad(total, list(policy.model.parameters())), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


def test_gae_needs_a_critic_and_ppo_needs_values():
    with pytest.raises(AssertionError, match="use_gae=True needs values"):
        ppo(use_critic=False)
    with pytest.raises(ValueError, match="has no values"):
        ppo(model={"custom_model": lambda obs, act, outputs, model: torch.nn.Linear(3, outputs)})


def test_the_weight_of_the_divergence_follows_what_is_measured():
    policy = ppo(kl_coeff=0.2, kl_target=0.01)
    assert [policy.update_kl(kl) for kl in (0.0201, 0.02, 0.005, 0.0049)] == pytest.approx([0.3, 0.3, 0.3, 0.15])
    twin = ppo()
    twin.set_state(policy.get_state())
    assert twin.learn_on_batch(batch_for(twin))["learner_stats"]["cur_kl_coeff"] == twin.kl_coeff == policy.kl_coeff


def test_the_weight_of_the_entropy_follows_its_schedule():
    policy = ppo(entropy_coeff=0.5, entropy_coeff_schedule=[[0, 0.1], [10, 0.0]])
    batch = SampleBatch(batch_for(ppo()))
    for step, expected in ((0, 0.1), (5, 0.05), (20, 0.0)):
        policy.on_global_var_update({"timestep": step})
        stats = policy.compute_gradients(batch)[1]["learner_stats"]
        assert stats["entropy_coeff"] == policy.entropy_coeff == pytest.approx(expected)


def test_the_policy_gradient_is_that_of_log_probabilities_times_discounted_returns_without_critic():
    policy = ppo(cls=PGTorchPolicy, gamma=0.5)
    batch = policy.postprocess_trajectory(moved(policy))
    rewards = batch["rewards"]
    np.testing.assert_allclose(
        batch["advantages"][-3:],
        [rewards[-3] + rewards[-2] / 2 + rewards[-1] / 4, rewards[-2] + rewards[-1] / 2, rewards[-1]],
        rtol=1e-5,
    )
    assert not any("critic" in name for name in policy.get_weights())
    gradients, info = policy.compute_gradients(batch)
    columns = {name: torch.from_numpy(batch[name]) for name in ("obs", "actions", "advantages")}
    log_prob = td.Categorical(logits=policy.model(columns["obs"])).log_prob(columns["actions"])
    loss = -(log_prob * columns["advantages"]).mean()
    assert info["learner_stats"]["policy_loss"] == pytest.approx(loss.item(), rel=1e-5)
    for mine, theirs in zip(gradients, torch.autograd.grad(loss, list(policy.model.parameters())), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)


def played(policy, n=128, seed=0):
    """Rewards 1 for the action that the sign of the first number names, else 0; each row is an episode."""
    obs = np.random.default_rng(seed).uniform(-1, 1, size=(n, 3)).astype(np.float32)
    actions, _, extra = policy.compute_actions(obs)
    rewards = (actions == (obs[:, 0] > 0)).astype(np.float32)
    made = {"rewards": rewards, "advantages": rewards - extra.get("vf_preds", 0.5), "value_targets": rewards}
    return SampleBatch({"obs": obs, "actions": actions, **made, **extra})


@pytest.mark.parametrize(("cls", "updates"), [(PPOTorchPolicy, 4), (PGTorchPolicy, 1)])
def test_it_learns_a_simple_game(cls, updates):
    torch.manual_seed(0)
    policy = ppo(cls=cls, lr=0.02)
    assert 0.3 < played(policy)["rewards"].mean() < 0.7
    for round_ in range(20):
        batch = played(policy, seed=round_)
        for _ in range(updates):
            policy.learn_on_batch(batch)
    assert played(policy, seed=99)["rewards"].mean() > 0.9
