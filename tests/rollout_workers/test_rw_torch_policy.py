"""Policies with a network: acting, weights, gradients, what is told of updates."""

import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces
from rw_toys import BOX, CHOICE, batch_for, ppo, recurrent, same
from torch import nn

from swath.rollout_workers import Policy, PPOTorchPolicy, SampleBatch, TorchPolicy

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


def test_integers_count_from_the_lower_bound_where_workers_add_it():
    space, six = spaces.Box(5, 6, (1,), dtype=np.int64), np.full((6, 1), 6)
    assert ppo(space).compute_actions(OBS)[0].max() < 2
    policy = ppo(space, normalize_actions=False)
    assert policy.compute_actions(OBS)[0].min() >= 5
    mine = ppo(space).compute_log_likelihoods(six, OBS, actions_normalized=False)
    np.testing.assert_array_equal(mine, policy.compute_log_likelihoods(six, OBS))


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


def test_a_custom_model_gets_spaces_outputs_and_its_config():
    policy = ppo(model={"custom_model": Valued, "custom_model_config": {"a": 1}})
    assert policy.model.config == {"a": 1}
    assert policy.compute_actions(OBS)[2]["vf_preds"].shape == (6,)


def test_a_model_that_does_not_fit_is_refused_when_the_policy_is_built():
    model = nn.Module()
    for answer, error, words in (
        (lambda obs: [obs], TypeError, r"gave list; it must give dist_inputs or \(dist_inputs, value\)"),
        (lambda obs: torch.zeros(2, 5), ValueError, r"\[\[2, 5\]\] for 2 rows; wanted \[\[2, 2\], \[2\]\]"),
    ):
        model.forward = answer
        with pytest.raises(error, match=words):
            ppo(cls=TorchPolicy, model={"custom_model": lambda *_: model})


def test_a_model_without_values_has_none_and_a_policy_without_a_loss_says_so():
    policy = ppo(cls=Unvalued)
    assert set(policy.compute_actions(OBS)[2]) == {"action_dist_inputs", "action_logp"}
    with pytest.raises(ValueError, match="has no values"):
        policy.compute_values({"obs": OBS})
    with pytest.raises(NotImplementedError, match="Unvalued has no loss"):
        policy.learn_on_batch(batch_for(policy))


class Unvalued(TorchPolicy):
    def make_model(self):
        return nn.Linear(3, self.num_outputs)


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
    with pytest.raises(ValueError, match=r"none was taken over") as refused:
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


def test_one_that_remembers_acts_on_its_states():
    policy = recurrent()
    assert policy.is_recurrent()
    assert policy.num_state_tensors() == 2
    first = policy.get_initial_state()
    assert first[0].tolist() == [0, 0, 0]
    first[0] += 1
    assert policy.get_initial_state()[0].tolist() == [0, 0, 0]
    states = [np.stack([part] * 6) for part in (np.zeros(3, np.float32),)] + [{"steps": np.zeros(6, np.float32)}]
    _, states, one = policy.compute_actions(OBS, states)
    _, states, two = policy.compute_actions(OBS, states)
    np.testing.assert_allclose(states[0], 2 * OBS, rtol=1e-6)
    assert states[1]["steps"].tolist() == [2] * 6
    before = {"obs": OBS, "state_in_0": OBS, "state_in_1": {"steps": np.ones(6, np.float32)}}
    again = policy.compute_actions_from_input_dict(before)[2]
    for values in (again["vf_preds"], policy.compute_values(before)):
        assert np.array_equal(values, two["vf_preds"])
    assert not np.array_equal(one["vf_preds"], two["vf_preds"])


def test_it_acts_on_and_learns_from_nested_observations():
    box, few, bits = spaces.Box(-9, 9, (2,)), spaces.Discrete(3), spaces.MultiBinary(4)
    policy = ppo(observation_space=spaces.Dict(a=box, b=spaces.Tuple([few, bits])))
    draw = np.random.default_rng(5)
    obs = {"a": draw.normal(size=(5, 2)).astype(np.float32), "b": (draw.integers(0, 3, 5), draw.integers(0, 2, (5, 4)))}
    actions, _, extra = policy.compute_actions(obs)
    assert len(set(extra["vf_preds"].tolist())) == 5
    columns = {"obs": obs, "actions": actions, **extra, "advantages": np.ones(5, np.float32)}
    info = policy.learn_on_batch(SampleBatch(columns, value_targets=np.zeros(5, np.float32)))
    assert info["num_agent_steps_trained"] == 5
    assert not np.array_equal(policy.compute_values({"obs": obs}), extra["vf_preds"])
