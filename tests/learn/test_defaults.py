import numpy as np
import pytest
import torch
from gymnasium import spaces

from swath.learn import NetworkConfig, make_policy
from swath.learn.heads import Categorical, Gaussian, MultiCategorical

BOX = spaces.Box(-1, 1, (3,))
PIXELS = spaces.Box(0, 255, (4, 84, 84), np.uint8)


@pytest.mark.parametrize(
    ("space", "head"),
    [
        (spaces.Discrete(3, start=1), Categorical),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), MultiCategorical),
        (spaces.MultiBinary((2, 2)), MultiCategorical),
        (spaces.Box(-2, 2, (2, 3)), Gaussian),
    ],
    ids=str,
)
def test_every_served_action_space_gets_a_head_whose_actions_belong_to_it(space, head):
    policy = make_policy(BOX, space)
    assert isinstance(policy.head, head)
    with torch.no_grad():
        action, _ = policy(torch.randn(20, 3))
    assert all(space.contains(row.numpy().astype(space.dtype)) for row in action)


def test_other_action_spaces_are_refused():
    with pytest.raises(TypeError, match=r"no policy for the action space .*wrap the env"):
        make_policy(BOX, spaces.Box(0, 5, (2,), np.int32))


def test_entries_of_a_dict_are_read_in_the_order_of_the_space():
    space = spaces.Dict(where=BOX, hand=spaces.Dict(open=spaces.MultiBinary(1), at=spaces.Discrete(5)))
    policy = make_policy(space, spaces.Discrete(2))
    rows = {"where": torch.randn(6, 3), ("hand", "open"): torch.ones(6, 1), ("hand", "at"): torch.arange(6) % 5}
    action, _ = policy(*(rows[key] for key in policy.in_keys))
    assert set(policy.in_keys) == set(rows)
    assert action.shape == (6,)


def test_an_image_beside_other_entries_is_refused_by_name():
    with pytest.raises(ValueError, match=r"\['camera'\] are images beside others"):
        make_policy(spaces.Dict(camera=PIXELS, speed=BOX), spaces.Discrete(2))


@pytest.mark.parametrize(("space", "learns"), [(BOX, True), (spaces.Discrete(4), False)], ids=str)
def test_floats_are_standardised_and_nothing_else_is(space, learns):
    policy = make_policy(space, spaces.Discrete(2))
    assert (policy.encoder.standardise is not None) is learns
    assert make_policy(space, spaces.Discrete(2), NetworkConfig(standardise=False)).encoder.standardise is None
