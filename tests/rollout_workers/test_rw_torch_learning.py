"""Updates of policies with a network: gradients, bounds, padding; the shipped losses and schedules."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rw_toys import batch_for, made_of, ppo, recurrent, same
from torch import distributions as td

from mock_envs import MockEnv3
from swath.rollout_workers import (
    DefaultCallbacks,
    PGTorchPolicy,
    PPOTorchPolicy,
    RandomPolicy,
    SampleBatch,
    TorchPolicy,
    get_learner_stats,
)
from swath.rollout_workers.policies.learning import learn_in_passes, standardized


class Bare(TorchPolicy):
    """Half the squared sum of all weights."""

    def loss(self, model, dist_class, train_batch):
        self.was_training = model.training
        self.seen = train_batch
        return 0.5 * sum(parameter.square().sum() for parameter in model.parameters())

    def stats(self, train_batch):
        return {"rows": torch.tensor(len(train_batch)), "list": torch.ones(2)}


@pytest.mark.parametrize("by", ["global_norm", "norm", "value"])
def test_gradients_are_bounded_as_the_config_says(by):
    free, bounded = ppo(cls=Bare), ppo(cls=Bare, grad_clip=0.3, grad_clip_by=by)
    batch = batch_for(free)
    gradients, info = free.compute_gradients(batch)
    limited, limited_info = bounded.compute_gradients(batch)
    total = torch.stack([gradient.norm() for gradient in gradients]).norm().item()
    assert info["learner_stats"]["grad_gnorm"] == limited_info["learner_stats"]["grad_gnorm"] == pytest.approx(total)
    for gradient, short in zip(gradients, limited, strict=True):
        if by == "value":
            expected = gradient.clamp(-0.3, 0.3)
        else:
            length = total if by == "global_norm" else gradient.norm().item()
            expected = gradient * min(1.0, 0.3 / max(length, 1e-12))
        torch.testing.assert_close(short, expected)


def test_the_info_of_an_update():
    policy = ppo(cls=Bare)
    batch = batch_for(policy, n=30)
    batch.num_grad_updates = 3
    for _ in range(5):
        info = policy.learn_on_batch(batch)
    stats = info["learner_stats"]
    assert get_learner_stats(info) is stats
    assert (stats["rows"], stats["list"].tolist(), stats["cur_lr"]) == (30, [1, 1], 0.001)
    expected = {"num_agent_steps_trained": 30, "num_grad_updates_lifetime": 5, "model": {}, "custom_metrics": {}}
    expected["diff_num_grad_updates_vs_sampler_policy"] = 1
    assert {key: info[key] for key in expected} == expected
    assert (policy.was_training, policy.seen.is_training, policy.model.training) == (True, True, False)
    assert policy.compute_gradients(batch)[1]["num_grad_updates_lifetime"] == 6


def test_callbacks_see_the_batch_before_the_update_and_their_results_are_reported():
    class Telling(DefaultCallbacks):
        def on_learn_on_batch(self, *, policy, train_batch, result, **kwargs):
            train_batch["obs"] = np.zeros_like(train_batch["obs"])
            result["mine"] = (policy.num_grad_updates, len(train_batch))

    policy = ppo(cls=Bare)
    policy.callbacks = Telling()
    batch = batch_for(policy, n=10)
    assert policy.learn_on_batch(batch)["custom_metrics"] == {"mine": (0, 10)}
    assert not policy.seen["obs"].any()
    assert batch["obs"].any()


def test_the_learning_rate_and_the_weight_of_the_entropy_follow_their_schedules():
    schedules = {"lr_schedule": [[0, 0.1], [100, 0.3], [200, 0.0]], "entropy_coeff_schedule": [[0, 0.1], [200, 0.0]]}
    policy, batch = ppo(optimizer={"eps": 0.1}, entropy_coeff=0.5, **schedules), batch_for(ppo())
    assert policy.optimizer.param_groups[0]["eps"] == 0.1, "a keyword of Adam"
    for step, lr, weight in ((0, 0.1, 0.1), (150, 0.15, 0.025), (500, 0.0, 0.0)):
        policy.on_global_var_update({"timestep": step})
        assert (policy.cur_lr, policy.entropy_coeff) == (pytest.approx(lr), pytest.approx(weight))
        before = policy.get_weights()
        stats = policy.learn_on_batch(batch)["learner_stats"]
        assert stats["cur_lr"] == policy.optimizer.param_groups[0]["lr"] == pytest.approx(lr)
        assert stats["entropy_coeff"] == pytest.approx(weight)
        assert same(policy.get_weights(), before) == (lr == 0)


def test_padding_is_left_out_of_losses_and_gradients():
    policy, lengths = recurrent(), (2, 5, 3)
    batch = batch_for(ppo(), n=10)
    batch["state_in_0"], batch["state_in_1"] = np.zeros((3, 3), np.float32), {"steps": np.zeros(3, np.float32)}
    batch["seq_lens"] = np.array(lengths, np.int32)
    found, info = policy.compute_gradients(batch)
    assert info["num_agent_steps_trained"] == 10
    parts = [batch[:2], batch[2:7], batch[7:]]
    assert tuple(map(len, parts)) == lengths
    alone, infos = zip(*map(policy.compute_gradients, parts), strict=True)
    for gradient, *by_sequence in zip(found, *alone, strict=True):
        mean = sum(n * part for n, part in zip(lengths, by_sequence, strict=True)) / 10
        torch.testing.assert_close(gradient, mean, atol=1e-6, rtol=1e-4)
    for name in ("total_loss", "policy_loss", "vf_loss", "entropy", "kl"):
        mean = sum(n * part_info["learner_stats"][name] for n, part_info in zip(lengths, infos, strict=True)) / 10
        assert info["learner_stats"][name] == pytest.approx(mean, rel=1e-4, abs=1e-6)


class Noting(RandomPolicy):
    """Notes what it is to learn from."""

    def __init__(self, *args):
        super().__init__(*args)
        self.seen = []

    def learn_on_batch(self, samples):
        self.seen.append(samples)
        n = len(self.seen)
        return {"learner_stats": {"n": n, "rows": np.array([len(samples), n])}, "model": {}, "words": f"{n}"}


def test_each_epoch_has_each_row_once_in_another_order_with_fields_standardised_on_a_copy():
    with made_of(lambda: MockEnv3(50), Noting, rollout_fragment_length=50, seed=0) as worker:
        sample = worker.sample
        worker.sample = lambda: worker.__dict__.setdefault("made", sample())
        info, count = worker.sample_and_learn(50, 3, 20, ["rewards", "t"])
        with pytest.raises(KeyError, match="no column 'nope'"):
            worker.sample_and_learn(50, 1, None, ["nope"])
        minibatches, batch = worker.get_policy().seen, worker.made
    info = info["default_policy"]
    assert [len(part) for part in minibatches] == [20, 20, 10] * 3
    orders = [
        np.concatenate([part["obs"].argmax(axis=1) for part in minibatches[i : i + 3]]).tolist() for i in (0, 3, 6)
    ]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({*map(tuple, orders), tuple(range(50))}) == 4
    for name in ("rewards", "t"):
        column = np.concatenate([part[name] for part in minibatches[:3]])
        assert (column.mean(), column.std(), column.dtype) == (pytest.approx(0, abs=1e-6), pytest.approx(1), np.float32)
        assert np.argsort(column).tolist() == np.argsort(orders[0]).tolist(), "rows are moved whole"
    assert batch["t"].tolist() == list(range(50))
    assert standardized(np.array([1.0, 1.0, 1.0 + 3e-5])) == pytest.approx([-0.1, -0.1, 0.2])
    assert info["learner_stats"]["n"] == 8
    assert info["learner_stats"]["rows"].tolist() == [pytest.approx(50 / 3), 8]
    assert (info["model"], info["words"], count) == ({}, "9", 50)


def test_sequences_stay_together():
    policy = Noting(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), {})
    batch = SampleBatch({"a": np.arange(10), "b": np.arange(10.0)})
    batch["seq_lens"], batch["state_in_0"] = np.array([2, 3, 1, 4], np.int32), np.array([0.0, 2, 5, 6])
    learn_in_passes(policy, batch, 4, 4, ("b",))
    starts = []
    for part in policy.seen:
        assert part.zero_padded
        for i, (length, state) in enumerate(zip(part["seq_lens"], part["state_in_0"], strict=True)):
            start = i * part.max_seq_len
            assert part["a"][start : start + length].tolist() == list(range(int(state), int(state) + length))
            starts.append(int(state))
    assert sorted(starts) == sorted([0, 2, 5, 6] * 4)
    assert batch["a"].tolist() == list(range(10))


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


def test_the_weight_of_the_divergence_follows_the_measured_one():
    policy = ppo(kl_coeff=0.2, kl_target=0.01)
    assert [policy.update_kl(kl) for kl in (0.0201, 0.02, 0.005, 0.0049)] == pytest.approx([0.3, 0.3, 0.3, 0.15])
    twin = ppo()
    twin.set_state(policy.get_state())
    assert twin.learn_on_batch(batch_for(twin))["learner_stats"]["cur_kl_coeff"] == twin.kl_coeff == policy.kl_coeff


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
    columns = {"rewards": rewards, "advantages": rewards - extra.get("vf_preds", 0.5), "value_targets": rewards}
    return SampleBatch({"obs": obs, "actions": actions, **columns, **extra})


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
