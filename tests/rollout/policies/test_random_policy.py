"""Random actions: inside the space, over all of it, by torch's generator, obeying masks."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from swath.rollout.random_policy import RandomPolicy
from swath.rollout.spaces import splitter

SPACES = {
    "discrete": spaces.Discrete(5, start=-2),
    "box": spaces.Box(np.array([-1, 0], dtype=np.float32), np.array([0, 5], dtype=np.float32)),
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "below": spaces.Box(-3, np.inf, (2,)),
    "above": spaces.Box(-np.inf, 3, (2,)),
    "open": spaces.Box(-np.inf, np.inf, (2,)),
    "mixed": spaces.Box(np.array([-1, -np.inf, 2], dtype=np.float32), np.array([1, np.inf, np.inf], dtype=np.float32)),
    "bytes": spaces.Box(0, 255, (2,), np.uint8),
    "ints": spaces.Box(-2, 2, (2,), np.int64),
    "multi_discrete": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [-1, 7]]),
    "multi_binary": spaces.MultiBinary([2, 2]),
    "nested": spaces.Dict({"x": spaces.Tuple((spaces.Discrete(3), spaces.Box(0, 1, ()))), "a": spaces.MultiBinary(2)}),
}


@pytest.mark.parametrize("name", list(SPACES))
def test_random_actions_are_in_the_space(name):
    space = SPACES[name]
    torch.manual_seed(0)
    for action in splitter(space)(RandomPolicy().sampler(space, 200)(None)):
        assert space.contains(action)


def drawn(space, n=4000, mask=None):
    torch.manual_seed(1)
    (leaf,) = RandomPolicy().sampler(space, n)(mask)
    return leaf


def test_all_of_a_bounded_space_is_drawn_evenly():
    counts = np.bincount(drawn(SPACES["discrete"]) + 2, minlength=5)
    assert counts.min() > 700
    assert set(drawn(SPACES["ints"]).reshape(-1)) == {-2, -1, 0, 1, 2}
    assert {*drawn(SPACES["bytes"], 20_000).reshape(-1)} == set(range(256))
    multi = drawn(SPACES["multi_discrete"])
    assert multi.reshape(len(multi), -1).max(0).tolist() == [1, 3, 2, 11]
    assert multi.reshape(len(multi), -1).min(0).tolist() == [0, 1, -1, 7]
    box = drawn(SPACES["box"])
    assert np.abs(box.mean(0) - [-0.5, 2.5]).max() < 0.1


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32])
def test_a_mask_restricts_a_discrete_action_to_its_nonzero_entries(dtype):
    mask = torch.tensor([[0, 1, 0, 1, 0], [1, 0, 0, 0, 0]]).repeat(500, 1).to(dtype)
    actions = drawn(spaces.Discrete(5, start=10), 1000, mask)
    assert set(actions[::2]) == {11, 13}
    assert set(actions[1::2]) == {10}


@pytest.mark.parametrize(
    ("space", "width"),
    [
        (spaces.Discrete(4), 5),
        (spaces.MultiDiscrete([2, 2]), 5),
        (spaces.Box(-1, 1, (5,)), 5),
        (spaces.Dict({"a": spaces.Discrete(5)}), 5),
    ],
    ids=str,
)
def test_a_mask_that_does_not_fit_the_space_is_a_value_error_with_the_way_out(space, width):
    with pytest.raises(
        ValueError, match=r"cannot obey 'action_mask' of shape \(5,\) for .*; give the collector a policy"
    ):
        RandomPolicy().sampler(space, 2)(torch.ones(2, width))
