from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_batches import batch, batches
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

from swath.rollout.episodes.gae import GAE
from swath.rollout.episodes.nstep import MultiStep
from swath.rollout.episodes.reshape import split_trajectories

F, T = False, True


class Value(nn.Module):
    """A value that depends on id and step; records the number of states of each call."""

    def __init__(self, *, flat=False):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.3))
        self.shown = []
        self.flat = flat

    def forward(self, observation):
        self.shown.append(len(observation))
        value = torch.sin(observation @ torch.tensor([1.7, 0.9])) * self.weight
        return value if self.flat else value.unsqueeze(-1)


def by_hand(td, gamma, lmbda):
    """Compute advantages as sums over all later deltas of the segment, O(T²)."""
    value, after = Value()(td["observation"]).detach(), Value()(td["next", "observation"]).detach()
    delta = td["next", "reward"] + gamma * after * ~td["next", "terminated"] - value
    ids, done = td.get(("collector", "traj_ids"), None), td["next", "done"]
    mask = td.get(("collector", "mask"), torch.ones(td.shape, dtype=torch.bool))
    advantage = torch.zeros_like(delta)
    for row in range(td.shape[0]):
        for t in range(td.shape[1]):
            for k in range(td.shape[1] - t):
                if not mask[row, t + k] or (ids is not None and ids[row, t + k] != ids[row, t]):
                    break
                advantage[row, t] += (gamma * lmbda) ** k * delta[row, t + k]
                if done[row, t + k]:
                    break
    keep = mask.unsqueeze(-1)
    return value * keep, advantage * keep, (advantage + value) * keep


any_batch = batches() | batches(masked=True) | batches(with_ids=False)
factors = st.sampled_from([0.0, 0.5, 0.97, 1.0])


@given(any_batch, factors, factors)
def test_it_equals_the_sum_written_out(td, gamma, lmbda):
    value, advantage, target = by_hand(td, gamma, lmbda)
    out = GAE(gamma=gamma, lmbda=lmbda, value_network=Value())(td)
    torch.testing.assert_close(out["state_value"], value)
    torch.testing.assert_close(out["advantage"], advantage)
    torch.testing.assert_close(out["value_target"], target)
    assert not any(out[key].requires_grad for key in ("state_value", "advantage", "value_target"))


@given(batches(masked=True))
def test_padded_and_flat_batches_give_the_same_numbers(td):
    module = GAE(gamma=0.9, lmbda=0.8, value_network=Value())
    split = module(split_trajectories(td))
    kept = split[split["collector", "mask"]]
    module(td)
    expected = td[td["collector", "mask"]]
    for key in ("state_value", "advantage", "value_target"):
        torch.testing.assert_close(kept[key], expected[key])
        assert not split[key][~split["collector", "mask"]].any()


def test_a_termination_is_worth_nothing_and_a_truncation_its_true_last_state():
    td = batch([[T, T]])
    assert td["next", "terminated"].flatten().tolist() == [F, T]
    out = GAE(gamma=0.5, lmbda=1.0, value_network=Value())(td)
    after = Value()(td["next", "observation"]).detach()
    expected = td["next", "reward"] + torch.tensor([[[0.5], [0.0]]]) * after
    torch.testing.assert_close(out["value_target"], expected)


def test_a_truncation_whose_last_state_is_missing_is_worth_nothing():
    td = batch([[T, T]])
    td["next", "final_observation_missing"] = ~td["next", "terminated"]
    out = GAE(gamma=0.5, lmbda=1.0, value_network=Value())(td)
    torch.testing.assert_close(out["value_target"], td["next", "reward"])


@given(batches(masked=True))
def test_whatever_stands_in_masked_frames_reaches_no_other_frame(td):
    broken = td.clone()
    for key in ("observation", ("next", "observation"), ("next", "reward")):
        entry = broken[key]
        entry[~td["collector", "mask"]] = float("nan")
    module = GAE(gamma=0.9, lmbda=0.8, value_network=Value())
    torch.testing.assert_close(module(broken)["advantage"], module(td.clone())["advantage"], rtol=0, atol=0)


def test_average_gae_standardises_advantages_of_valid_frames_and_leaves_the_targets():
    td = batch([[F, T, F, F]] * 2, valid=[[T, T, T, F]] * 2)
    plain = GAE(gamma=0.9, lmbda=0.8, value_network=Value())(td.clone())
    scaled = GAE(gamma=0.9, lmbda=0.8, value_network=Value(), average_gae=True)(td)
    valid = scaled["advantage"][td["collector", "mask"]]
    assert valid.mean().item() == pytest.approx(0, abs=1e-6)
    assert valid.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    assert not scaled["advantage"][~td["collector", "mask"]].any()
    assert torch.equal(scaled["value_target"], plain["value_target"])


def run_with(network, td=None):
    return GAE(gamma=0.9, lmbda=0.8, value_network=network)(batch([[F, T, F]]) if td is None else td)


def test_the_network_may_be_a_tensordict_module_or_read_named_entries():
    expected = run_with(Value())
    as_module = TensorDictModule(Value(flat=True).requires_grad_(), in_keys=["observation"], out_keys=["state_value"])
    named = Value()
    named.in_keys = ["position"]
    renamed = batch([[F, T, F]]).rename_key_("observation", "position")
    renamed["next"].rename_key_("observation", "position")
    for out in (run_with(as_module), run_with(Value(flat=True)), run_with(named, renamed)):
        assert torch.equal(out["advantage"], expected["advantage"])


@pytest.mark.parametrize(("gamma", "lmbda"), [(1.1, 0.9), (-0.1, 0.9), (0.9, 2), (0.9, float("nan"))])
def test_factors_out_of_range_are_refused(gamma, lmbda):
    with pytest.raises(ValueError, match=r"is not in \[0, 1\]"):
        GAE(gamma=gamma, lmbda=lmbda, value_network=Value())


@pytest.mark.parametrize("use", [partial(run_with, Value()), MultiStep(0.9, 2)], ids=["GAE", "MultiStep"])
def test_a_batch_without_next_observations_is_refused(use):
    with pytest.raises(KeyError, match="compact_obs=False"):
        use(batch([[F, T]]).exclude(("next", "observation")))


# ---- returns of several steps


def way(td, row, t, n_steps):
    """Find the number of steps that frame `t` covers, frame by frame."""
    ids, done = td.get(("collector", "traj_ids"), None), td["next", "done"]
    mask = td.get(("collector", "mask"), torch.ones(td.shape, dtype=torch.bool))
    steps = 1
    while (
        steps < n_steps
        and t + steps < td.shape[1]
        and not done[row, t + steps - 1]
        and mask[row, t]
        and mask[row, t + steps]
        and (ids is None or ids[row, t + steps] == ids[row, t])
    ):
        steps += 1
    return steps


@given(batches() | batches(masked=True) | batches(with_ids=False), st.integers(1, 15), st.sampled_from([1.0, 0.9, 0.5]))
def test_it_equals_a_walk_from_frame_to_frame(td, n_steps, gamma):
    before = td.clone()
    out = MultiStep(gamma, n_steps)(td)
    for row in range(td.shape[0]):
        for t in range(td.shape[1]):
            steps = way(td, row, t, n_steps)
            total = sum(gamma**k * td["next", "reward"][row, t + k].item() for k in range(steps))
            assert out["next", "reward"][row, t].item() == pytest.approx(total, abs=1e-5)
            assert out["steps_to_next_obs"][row, t] == steps
            assert out["gamma"][row, t].item() == pytest.approx(gamma**steps)
            assert out["nonterminal"][row, t] == (steps > 1)
            for key in ("observation", "done", "terminated", "truncated"):
                assert torch.equal(out["next", key][row, t], td["next", key][row, t + steps - 1])
    assert torch.equal(out["next", "original_reward"], td["next", "reward"])
    assert out["next", "reward"].shape == td["next", "reward"].shape
    assert (td == before).all()
    assert sorted(map(str, td.keys(include_nested=True))) == sorted(map(str, before.keys(include_nested=True)))


def agents(done):
    """Return a batch `[1, 3]` with two agents in every entry."""
    shape = (1, 3, 2)
    entries = {"observation": torch.arange(6.0).view(*shape, 1), "reward": torch.ones(shape), "done": done}
    return TensorDict({"action": torch.zeros(shape), "next": entries}, [1, 3])


def test_done_per_agent_makes_each_agent_look_ahead_alone():
    done = torch.tensor([[[F, T], [F, F], [F, F]]])
    out = MultiStep(1.0, 3)(agents(done))
    assert out["steps_to_next_obs"].tolist() == [[[3, 1], [2, 2], [1, 1]]]
    assert out["next", "observation"].squeeze(-1).tolist() == [[[4, 1], [4, 5], [4, 5]]]
    assert out["next", "reward"].tolist() == [[[3, 1], [2, 2], [1, 1]]]
    assert out["next"].batch_size == (1, 3)


@pytest.mark.parametrize("gamma", [0.0, 1.1, -0.5, float("nan")])
def test_a_discount_out_of_range_is_refused(gamma):
    with pytest.raises(ValueError, match=f"gamma={gamma} is no discount; give a number above 0"):
        MultiStep(gamma, 1)
