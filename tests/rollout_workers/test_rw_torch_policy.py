"""Policies with a network: acting, weights, the default network, distributions by action space."""

import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from rw_toys import BOX, CHOICE, batch_for, made_of, ppo, recurrent, same
from torch import distributions as td
from torch import nn
from torch.utils.data import default_convert

from swath.rollout_workers import (
    PGTorchPolicy,
    Policy,
    PPOTorchPolicy,
    RandomPolicy,
    RolloutWorker,
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
    TorchPolicy,
)
from swath.rollout_workers.config.checks import MODEL_DEFAULTS
from swath.rollout_workers.policies.networks import DefaultNetwork, dist_class_of, head_for
from toys import MaskedEnv

OBS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
ACTIONS = {
    "discrete": spaces.Discrete(3, start=1),
    "multi": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary(2),
    "whole": spaces.Box(0, 4, (2,), dtype=np.int32),
}


@pytest.mark.parametrize("space", ACTIONS.values(), ids=ACTIONS)
def test_actions_are_of_the_space_with_their_columns(space):
    policy = ppo(space)
    for explore in (True, False):
        actions, states, extra = policy.compute_actions(OBS, explore=explore)
        assert all(action in space for action in actions)
        assert (states, set(extra)) == ([], {"action_dist_inputs", "action_logp", "vf_preds"})
        assert all(column.dtype == np.float32 for column in extra.values())
        np.testing.assert_allclose(policy.compute_log_likelihoods(actions, OBS), extra["action_logp"], rtol=1e-5)


def test_choices_of_a_box_are_counted_in_int64_if_its_dtype_is_too_small():
    heard = []

    class Hears(gym.Env):
        observation_space, action_space = BOX, spaces.Box(-128, 127, (1,), np.int8)

        def reset(self, *, seed=None, options=None):
            return np.zeros(BOX.shape, BOX.dtype), {}

        def step(self, action):
            assert action.dtype == np.int8
            heard.append(int(action[0]))
            return np.zeros(BOX.shape, BOX.dtype), 0.0, False, False, {}

    config = {"rollout_fragment_length": 50, "seed": 0}
    with RolloutWorker(env_creator=lambda _: Hears(), default_policy_class=PPOTorchPolicy, config=config) as worker:
        batch = worker.sample()
        logps = worker.get_policy().compute_log_likelihoods(batch["actions"], batch["obs"])
    assert batch["actions"].dtype == np.int64
    assert (batch["actions"][:, 0] - 128).tolist() == heard
    assert max(heard) > 0 > min(heard)
    np.testing.assert_allclose(logps, batch["action_logp"], rtol=1e-5)


def test_a_box_gets_normal_numbers_in_its_dtype():
    policy = ppo(spaces.Box(-2, 6, (2,), dtype=np.float64))
    actions, _, extra = policy.compute_actions(OBS)
    assert (actions.dtype, actions.shape, extra["action_dist_inputs"].shape) == (np.float64, (6, 2), (6, 4))
    as_envs_get_them = -2 + (actions + 1) * 4
    mine = policy.compute_log_likelihoods(as_envs_get_them, OBS, actions_normalized=False)
    np.testing.assert_allclose(mine, extra["action_logp"], rtol=1e-4)
    raw = ppo(spaces.Box(-2, 6, (2,)), normalize_actions=False)
    np.testing.assert_array_equal(
        raw.compute_log_likelihoods(actions, OBS, actions_normalized=False), raw.compute_log_likelihoods(actions, OBS)
    )


def test_without_exploring_the_best_action_is_taken_and_config_says_whether_to_explore():
    policy = ppo(explore=False)
    policy.set_weights({name: 50 * weight for name, weight in policy.get_weights().items()})
    actions, _, extra = policy.compute_actions(OBS)
    assert actions.tolist() == extra["action_dist_inputs"].argmax(-1).tolist()
    drawn = np.stack([policy.compute_actions(OBS, explore=True)[0] for _ in range(50)])
    assert (drawn != actions).any()


class Valued(nn.Module):
    def __init__(self, observation_space, action_space, num_outputs, model_config):
        super().__init__()
        self.config = model_config["custom_model_config"]
        self.out = nn.Linear(*observation_space.shape, num_outputs + 1)

    def forward(self, obs):
        out = self.out(obs)
        return out[:, :-1], out[:, -1:]


class Unvalued(TorchPolicy):
    def make_model(self):
        return nn.Linear(3, self.num_outputs)


def test_a_model_may_be_custom_or_without_values_and_a_policy_must_have_a_loss():
    policy = ppo(model={"custom_model": Valued, "custom_model_config": {"a": 1}})
    assert policy.model.config == {"a": 1}
    assert policy.compute_actions(OBS)[2]["vf_preds"].shape == (6,)
    policy = ppo(cls=Unvalued)
    assert set(policy.compute_actions(OBS)[2]) == {"action_dist_inputs", "action_logp"}
    with pytest.raises(ValueError, match="has no values"):
        policy.compute_values({"obs": OBS})
    with pytest.raises(NotImplementedError, match="Unvalued has no loss"):
        policy.learn_on_batch(batch_for(policy))


def test_first_weights_come_from_the_seed_and_the_policys_id_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = ppo().get_weights()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(ppo(worker_index=3, num_workers=4).get_weights(), first)
    for other in ({"seed": 1}, {"__policy_id": "q"}):
        assert not same(ppo(**other).get_weights(), first)


def test_weights_that_do_not_fit_are_all_listed_and_none_is_applied():
    policy = ppo()
    before, weights = policy.get_weights(), ppo(seed=1).get_weights()
    weights["extra"] = np.zeros(1)
    weights["policy.layers.bias_0"] = np.zeros(4)
    del weights["critic.layers.bias_1"]
    with pytest.raises(ValueError, match=r"none was changed") as refused:
        policy.set_weights(weights)
    for words in ("bias_1 is None, wanted (1,)", "extra is (1,), wanted None", "bias_0 is (4,), wanted (16,)"):
        assert words in str(refused.value)
    assert same(policy.get_weights(), before)


def test_state_goes_on_elsewhere_exactly_and_shares_nothing():
    policy = ppo(lr=0.01)
    batch = batch_for(policy)
    policy.learn_on_batch(batch)
    state = policy.get_state()
    kept = pickle.dumps(state)
    twin = Policy.from_state(state)
    assert type(twin) is PPOTorchPolicy
    assert set(state) >= {"weights", "global_timestep", "num_grad_updates", "policy_spec"}
    assert (twin.observation_space, twin.action_space, twin.config) == (BOX, CHOICE, policy.config)
    assert (twin.num_grad_updates, twin.global_timestep) == (1, policy.global_timestep)
    policy.learn_on_batch(batch)
    twin.learn_on_batch(batch)
    assert same(policy.get_weights(), twin.get_weights())
    assert pickle.dumps(state) == kept
    del state["optimizer"]
    twin.set_state(state)
    assert same(twin.get_weights(), state["weights"])


def test_a_recurrent_policy_acts_on_its_states():
    policy = recurrent()
    assert policy.is_recurrent()
    assert policy.num_state_tensors() == 2
    first = policy.get_initial_state()
    assert first[0].tolist() == [0, 0, 0]
    first[0] += 1
    assert policy.get_initial_state()[0].tolist() == [0, 0, 0]
    states = [np.zeros((6, 3), np.float32), {"steps": np.zeros(6, np.float32)}]
    _, states, first_extra = policy.compute_actions(OBS, states)
    _, states, second_extra = policy.compute_actions(OBS, states)
    np.testing.assert_allclose(states[0], 2 * OBS, rtol=1e-6)
    assert states[1]["steps"].tolist() == [2] * 6
    before = {"obs": OBS, "state_in_0": OBS, "state_in_1": {"steps": np.ones(6, np.float32)}}
    again = policy.compute_actions_from_input_dict(before)[2]
    for values in (again["vf_preds"], policy.compute_values(before)):
        assert np.array_equal(values, second_extra["vf_preds"])
    assert not np.array_equal(first_extra["vf_preds"], second_extra["vf_preds"])


FOUR = spaces.Box(-1, 1, (4,))


def network(space=FOUR, outputs=6, *, with_value=True, **model):
    torch.manual_seed(0)
    return DefaultNetwork(space, outputs, {**MODEL_DEFAULTS, **model}, with_value=with_value)


def test_policy_and_value_have_separate_layers_of_256_or_share_them():
    shapes = lambda net: [tuple(p.shape) for name, p in net.named_parameters() if "weight" in name]
    assert set(shapes(network())) == {(256, 4), (256, 256), (6, 256), (1, 256)}
    net, x = network(fcnet_hiddens=[32], vf_share_layers=True), torch.randn(50, 4)
    assert shapes(net) == [(32, 4), (7, 32)]
    out, value = net(x)
    assert out.abs().max() < 0.1 < value.abs().max(), "the value is not small at first"
    torch.testing.assert_close(net.value(x), value)


def test_a_free_log_std_does_not_depend_on_the_observation():
    net, stds = network(free_log_std=True), torch.tensor([1.0, 2.0, 3.0])
    with torch.no_grad():
        net.log_std.copy_(stds)
    out, _ = net(torch.randn(4, 4))
    assert torch.equal(out[:, 3:], stds.expand(4, 3))
    assert out[:, :3].std() > 0


OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (4,), dtype=np.float64),
    "nested": spaces.Dict(b=spaces.Discrete(3), a=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)])),
    "image": spaces.Box(0, 255, (48, 40, 3), dtype=np.uint8),
    "channels first": spaces.Box(0, 255, (3, 48, 40), dtype=np.uint8),
}


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=OBSERVATIONS)
def test_any_observation_can_be_read(space):
    rows = batch_space(space, 3)
    rows.seed(0)
    obs = default_convert(rows.sample())
    obs = obs.float() if space is OBSERVATIONS["vector"] else obs
    net = network(space, 2, fcnet_hiddens=[8])
    out, value = net(obs)
    assert (out.shape, value.shape) == ((3, 2), (3,))
    assert out.unique(dim=0).shape[0] > 1
    assert torch.equal(net.value(obs), value)


def normal(out):
    return td.Independent(td.Normal(out.chunk(2, -1)[0], out.chunk(2, -1)[1].exp()), 1)


SPACES = {
    "one": (spaces.Discrete(5), [5]),
    "even": (spaces.MultiDiscrete([[3, 3], [3, 3]], start=[[1, 0], [0, 2]]), [3] * 4),
    "whole": (spaces.Box(np.array([0, -1]), np.array([2, 3]), dtype=np.int32), [3, 5]),
    "a number": (spaces.Box(-1, 1, ()), None),
    "numbers": (spaces.Box(-1, 1, (2, 2)), None),
}
"""And the counts of choices; else numbers are normal."""


@pytest.mark.parametrize(("space", "counts"), SPACES.values(), ids=SPACES)
def test_distributions_equal_torchs(space, counts):
    torch.manual_seed(0)
    head = head_for(space, normalize=counts is None)
    out, other = torch.randn(2, 50, head.inputs).unbind()
    mine, its = (dist_class_of(head)(inputs) for inputs in (out, other))
    sample, best = mine.sample(), mine.deterministic_sample()
    assert sample.shape == best.shape == (50, *space.shape)
    if counts is None:
        theirs, others = [normal(out)], [normal(other)]
        parts, wanted = [sample.reshape(50, -1)], normal(out).mean
    else:
        assert all(action.astype(space.dtype) in space for action in sample.numpy())
        start = torch.as_tensor(space.low if isinstance(space, spaces.Box) else getattr(space, "start", 0))
        best = best - start
        theirs, others = ([td.Categorical(logits=part) for part in x.split(counts, -1)] for x in (out, other))
        parts, wanted = (
            (sample - start).reshape(50, -1).unbind(-1),
            torch.stack([p.logits.argmax(-1) for p in theirs], -1),
        )
    assert torch.equal(best.reshape(50, -1), wanted)
    torch.testing.assert_close(mine.logp(sample), sum(p.log_prob(part) for p, part in zip(theirs, parts, strict=True)))
    torch.testing.assert_close(mine.entropy(), sum(p.entropy() for p in theirs))
    torch.testing.assert_close(mine.kl(its), sum(td.kl_divergence(p, q) for p, q in zip(theirs, others, strict=True)))
    for action, log_prob in (head.sample(out), head.mode(out)):
        torch.testing.assert_close(log_prob, head.log_prob(out, action))


def test_distributions_take_model_outputs_and_other_action_spaces_are_refused():
    with pytest.raises(ValueError, match="no shipped distribution is for the action space"):
        head_for(spaces.Dict(a=spaces.Discrete(2)))
    out = torch.tensor([[1.0, 3.0, 0.0, 2.0, 1.0]])
    assert TorchCategorical(out, None).deterministic_sample().tolist() == [1]
    assert TorchMultiCategorical(out, None, [2, 3]).deterministic_sample().tolist() == [[1, 1]]
    assert TorchDiagGaussian(out[:, :4].numpy(), None).deterministic_sample().tolist() == [[1, 3]]


@pytest.mark.parametrize("preprocessed", [True, False])
@pytest.mark.parametrize("observation_filter", ["NoFilter", "MeanStdFilter"])
@pytest.mark.parametrize("cls", [PPOTorchPolicy, RandomPolicy])
def test_policies_keep_to_the_mask_also_behind_a_filter_and_learn(cls, observation_filter, preprocessed):
    settings = {"observation_filter": observation_filter, "_disable_preprocessor_api": not preprocessed}
    worker = made_of(MaskedEnv, cls, rollout_fragment_length=100, seed=1, **settings)
    for explore in (True, False) if cls is PPOTorchPolicy else (True,):
        worker.config = worker.config.copy().update_from_dict({"explore": explore})
        batch = worker.sample()
        assert batch["rewards"].sum() == 0
    if cls is PPOTorchPolicy:
        info = worker.learn_on_batch(batch)
        stats = info["default_policy"]["learner_stats"]
        assert 0 < stats["entropy"] <= np.log(2) + 1e-6
        assert all(np.isfinite(value) for value in stats.values())
        forbidden = worker.get_policy().compute_log_likelihoods(np.arange(3), _rows(batch["obs"], [0, 0, 0]))
        assert sorted(forbidden > -10) == [False, True, True]
    worker.stop()


def _rows(obs, rows):
    return {name: part[rows] for name, part in obs.items()} if isinstance(obs, dict) else obs[rows]


def test_a_mask_of_another_form_is_refused_except_with_a_custom_model():
    space = spaces.Dict(action_mask=spaces.MultiBinary(4), x=BOX)
    with pytest.raises(ValueError, match=r"PPOTorchPolicy cannot obey 'action_mask' of shape \(4,\) for Discrete"):
        PPOTorchPolicy(space, CHOICE, {})
    assert PGTorchPolicy(space, CHOICE, {"model": {"custom_model": OwnMask}}).num_outputs == CHOICE.n


class OwnMask(nn.Module):
    def __init__(self, observation_space, action_space, num_outputs, model_config):
        super().__init__()
        self.out = nn.Linear(3, num_outputs)

    def forward(self, obs):
        return self.out(obs["x"])
