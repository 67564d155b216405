"""Post-processing of one chunk of a trajectory, and of a fragment in one pass."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swath.rollout_workers import (
    Postprocessing,
    SampleBatch,
    ViewRequirement,
    adjust_nstep,
    compute_advantages,
    compute_bootstrap_value,
    compute_gae_for_sample_batch,
    discount_cumsum,
)

F, T = False, True


class Critic:
    """The value of a state is its observation times ten; the inputs it was shown are kept."""

    def __init__(self, view_requirements=(), **config):
        self.view_requirements = dict(view_requirements)
        self.config = {"gamma": 0.5, "lambda": 0.5, "use_gae": True, "use_critic": True, **config}
        self.shown = []

    def compute_values(self, input_dict):
        self.shown.append({name: column.tolist() for name, column in input_dict.items()})
        return torch.as_tensor(input_dict["obs"] * 10.0, dtype=torch.float32)


def chunk(terminated=F, truncated=F, shape=(3,), **columns):
    defaults = {
        "obs": np.array([1.0, 2.0, 3.0]),
        "new_obs": np.array([2.0, 3.0, 4.0]),
        "rewards": np.array([1, 2, 4], dtype=np.float32).reshape(shape),
        "vf_preds": np.array([10, 20, 30], dtype=np.float32).reshape(shape),
        "terminateds": np.array([F, F, terminated]),
        "truncateds": np.array([F, F, truncated]),
    }
    return SampleBatch({**defaults, **columns})


@pytest.mark.parametrize(("terminated", "truncated", "last"), [(F, F, 40), (F, T, 40), (T, F, 0), (T, T, 0)], ids=str)
@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=str)
def test_the_value_behind_the_last_row_is_0_only_if_it_is_terminated(terminated, truncated, last, shape):
    policy, batch = Critic(), chunk(terminated, truncated, shape)
    assert compute_bootstrap_value(batch, policy) is batch
    expected = np.array([20, 30, last], dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(batch["values_bootstrapped"], expected, strict=True)
    assert policy.shown == ([] if terminated else [{"obs": [4.0], "seq_lens": [1]}])


def test_the_value_behind_the_last_row_is_asked_for_with_all_that_the_policy_reads():
    policy = Critic({"prev_actions": ViewRequirement("actions", shift=-1)})
    states = {"state_in_0": np.array([[0.5]]), "state_out_0": np.array([[1.5], [2.5], [3.5]]), "seq_lens": [3]}
    compute_bootstrap_value(chunk(actions=np.array([5, 6, 7]), **states), policy)
    assert policy.shown == [{"obs": [4.0], "prev_actions": [7], "state_in_0": [[3.5]], "seq_lens": [1]}]


def by_hand(rewards, values, last, *, gamma, lmbda, use_gae, use_critic):
    """The definitions, written out as loops in float64."""
    n, after = len(rewards), [*values[1:], last]
    delta = [rewards[t] + gamma * after[t] - values[t] for t in range(n)]
    gae = [sum((gamma * lmbda) ** k * delta[t + k] for k in range(n - t)) for t in range(n)]
    returns = [sum(gamma**k * rewards[t + k] for k in range(n - t)) + gamma ** (n - t) * last for t in range(n)]
    if use_gae:
        return gae, [a + v for a, v in zip(gae, values, strict=True)]
    if use_critic:
        return [r - v for r, v in zip(returns, values, strict=True)], returns
    return returns, [0.0] * n


USES = [{"use_gae": T, "use_critic": T}, {"use_gae": F, "use_critic": T}, {"use_gae": F, "use_critic": F}]


@pytest.mark.parametrize("use", USES, ids=str)
@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=40),
    st.floats(-9, 9),
    st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    st.sampled_from([0.0, 0.9, 1.0]),
)
def test_advantages_and_targets_equal_the_definitions(use, rows, last, gamma, lmbda):
    rewards, values = np.array(rows).T
    batch = {"rewards": rewards.astype(np.float32), "vf_preds": values.astype(np.float32)}
    assert compute_advantages(batch, last, gamma, lmbda, **use) is batch
    expected = by_hand(batch["rewards"].tolist(), batch["vf_preds"].tolist(), last, gamma=gamma, lmbda=lmbda, **use)
    for name, column in zip(("advantages", "value_targets"), expected, strict=True):
        assert batch[name].dtype == np.float32
        np.testing.assert_allclose(batch[name], column, rtol=1e-5, atol=1e-4)


def test_rewards_and_values_may_be_given_and_a_critic_needs_values():
    batch = {"rewards": np.array([9.0, 9.0])}
    compute_advantages(batch, 0.0, 1.0, rewards=np.array([1.0, 2.0]), vf_preds=np.array([1.0, 1.0]))
    assert batch["advantages"].tolist() == [2.0, 1.0]
    for gae, critic, wanted in ((T, F, "use_gae=True"), (T, T, "vf_preds"), (F, T, "vf_preds")):
        with pytest.raises(AssertionError, match=wanted):
            compute_advantages({"rewards": np.zeros(2)}, 0.0, use_gae=gae, use_critic=critic)


@pytest.mark.parametrize("use", USES, ids=str)
@pytest.mark.parametrize("shape", [(3,), (3, 1)], ids=str)
def test_a_batch_gets_the_estimates_of_its_policys_config_in_the_shape_of_its_values(use, shape):
    for terminated, last in ((T, 0.0), (F, 40.0)):
        policy, batch = Critic(**use), chunk(terminated, shape=shape)
        assert compute_gae_for_sample_batch(policy, batch, {}, None) is batch
        expected = by_hand([1, 2, 4], [10, 20, 30], last, gamma=0.5, lmbda=0.5, **use)
        np.testing.assert_allclose(batch[Postprocessing.ADVANTAGES], np.reshape(expected[0], shape), rtol=1e-6)
        np.testing.assert_allclose(batch[Postprocessing.VALUE_TARGETS], np.reshape(expected[1], shape), rtol=1e-6)
        assert batch["values_bootstrapped"].shape == batch["rewards"].shape == shape


@pytest.mark.parametrize("shape", [(1,), (7, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_discounted_sum_is_taken_along_axis_0(shape, dtype):
    x = (10 * np.random.default_rng(0).normal(size=shape)).astype(dtype)
    kept, expected, after = x.copy(), [], 0.0
    for row in x[::-1].astype(np.float64):
        after = row + 0.9 * after
        expected.insert(0, after)
    out = discount_cumsum(x, 0.9)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    assert out.dtype == ("float64" if dtype == "int64" else dtype)
    np.testing.assert_array_equal(x, kept)


def steps(rewards, ends):
    obs, last = np.arange(len(rewards) + 1), np.arange(len(rewards)) == len(rewards) - 1
    flags = {f"{name}s": last & (ends == name) for name in ("terminated", "truncated")}
    return {"obs": obs[:-1], "new_obs": obs[1:], "rewards": np.array(rewards, dtype=np.float64), **flags}


NSTEP = [
    # n, gamma, rewards, summed, new_obs, end flags
    (1, 0.9, [1, 2, 4], [1, 2, 4], [1, 2, 3], [F, F, T]),
    (2, 0.5, [1, 2, 4], [2, 4, 4], [2, 3, 3], [F, T, T]),
    (3, 0.5, [1, 2, 4], [3, 4, 4], [3, 3, 3], [T, T, T]),
    (3, 0.9, [10, 0, 100, 100], [91, 171, 190, 100], [3, 4, 4, 4], [F, T, T, T]),
    (2, 0.0, [5], [5], [1], [T]),
]


@pytest.mark.parametrize(("n", "gamma", "rewards", "summed", "new_obs", "flags"), NSTEP, ids=str)
@pytest.mark.parametrize("ends", ["terminated", "truncated", "neither"])
def test_rows_look_n_steps_ahead_and_fewer_at_the_end(n, gamma, rewards, summed, new_obs, flags, ends):
    batch = SampleBatch(steps(rewards, ends))
    adjust_nstep(n, gamma, batch)
    np.testing.assert_allclose(batch["rewards"], summed)
    assert batch["new_obs"].tolist() == new_obs
    for name in ("terminated", "truncated"):
        assert batch[f"{name}s"].tolist() == (flags if ends == name else [F] * len(rewards))
    assert batch["obs"].tolist() == list(range(len(rewards)))


def test_more_than_one_trajectory_is_refused():
    for name in ("terminateds", "truncateds"):
        with pytest.raises(AssertionError, match=r"Unexpected terminated\|truncated in middle"):
            adjust_nstep(2, 1.0, {**steps([1, 2, 4], "terminated"), name: np.array([F, T, F])})
