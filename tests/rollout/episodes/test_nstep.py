from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made_batches import batch, batches
from tensordict import TensorDict

from swath.rollout.episodes.nstep import MultiStep

F, T = False, True


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


def test_a_batch_without_next_observations_is_refused():
    with pytest.raises(KeyError, match="compact_obs=False"):
        MultiStep(0.9, 2)(batch([[F, F]]).exclude(("next", "observation")))


@pytest.mark.parametrize("gamma", [0.0, 1.1, -0.5, float("nan")])
def test_a_discount_out_of_range_is_refused(gamma):
    with pytest.raises(ValueError, match=f"gamma={gamma} is no discount; give a number above 0"):
        MultiStep(gamma, 1)
