import numpy as np
import pytest
import torch
from gymnasium import spaces
from learn_toys import TWO, small_policy

from swath import ExplorationType

SPACES = [TWO, spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(4), spaces.Box(-np.inf, np.inf, (2, 2))]


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("lead", [(), (5,), (2, 5)])
def test_it_acts_with_any_batch_dimensions_and_without(space, lead):
    policy = small_policy(space)
    with torch.inference_mode():
        action, log_prob = policy(torch.randn(*lead, 3))
    assert policy.in_keys == ["observation"]
    assert policy.out_keys == ["action", "action_log_prob"]
    assert action.shape == (*lead, *space.shape)
    assert log_prob.shape == lead
    if not lead:
        assert space.contains(action.numpy().astype(space.dtype))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_evaluate_gives_what_acting_gave_with_gradients_for_every_parameter(space):
    policy, observation = small_policy(space), torch.randn(7, 3)
    with torch.no_grad():
        action, acted = policy(observation)
    log_prob, entropy, value = policy.evaluate((observation,), action)
    torch.testing.assert_close(log_prob, acted, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(policy.value((observation,)), value)
    assert entropy.shape == value.shape == (7,)
    (log_prob + entropy + value).sum().backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_only_random_exploration_draws():
    policy, observation = small_policy(), torch.randn(64, 3)
    for kind in (ExplorationType.DETERMINISTIC, ExplorationType.MODE, ExplorationType.MEAN):
        state = torch.get_rng_state()
        action, _ = policy(observation, exploration_type=kind)
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(action, policy.network(policy.encoder(observation)).argmax(-1))
    drawn = [policy(observation, exploration_type=ExplorationType.RANDOM)[0] for _ in range(2)]
    assert not torch.equal(*drawn)
