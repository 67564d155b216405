"""Parts of the reference learner: encoders, networks, heads, policies, and the defaults for an env."""

import copy
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from learn_toys import BOX, TWO, small_policy
from tensordict import TensorDict
from torch import nn

from swath import ExplorationType
from swath.learn import NetworkConfig, NetworkPolicy, make_policy
from swath.learn.heads import Categorical, Gaussian, MultiCategorical
from swath.learn.networks import ACTIVATIONS, MLP, ImageEncoder, Standardise, ValueNet, VectorEncoder
from swath.rollout.spaces import observation_leaves

LAYERS = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "elu": nn.ELU, "linear": nn.Identity}
LEADS = pytest.mark.parametrize("lead", [(), (2, 3)])
"""Batch dimensions."""


def as_sequential(net, activation):
    layers, weights = [], list(net.parameters())
    for weight, bias in zip(weights[::2], weights[1::2], strict=True):
        layers += [nn.Linear(weight.shape[1], weight.shape[0]), LAYERS[activation]()]
        layers[-2].weight, layers[-2].bias = weight, bias
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@LEADS
def test_it_computes_what_a_sequential_of_its_layers_computes(activation, lead):
    net = MLP([4, 64, 32, 3], activation=activation)
    for bias in list(net.parameters())[1::2]:
        nn.init.normal_(bias)
    reference, x = as_sequential(net, activation), torch.randn(*lead, 4)
    torch.testing.assert_close(net(x), reference(x))
    mine = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    theirs = torch.autograd.grad(reference(x).square().sum(), list(net.parameters()))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_quickly_it_computes_the_same(activation, dtype):
    net, x = MLP([4, 64, 3], activation=activation).to(dtype), torch.randn(50, 4, dtype=dtype)
    with torch.inference_mode():
        torch.testing.assert_close(net(x, quick=True), net(x))


def test_it_uses_weights_put_in_from_outside():
    net, other, x = MLP([4, 8, 2]), MLP([4, 8, 2]), torch.randn(5, 4)
    expected = other(x)
    assert torch.equal(torch.func.functional_call(net, dict(other.named_parameters()), (x,)), expected)
    with TensorDict.from_module(other).data.to_module(net):
        assert torch.equal(net(x), expected)
    assert not torch.equal(net(x), expected)
    assert torch.equal(copy.deepcopy(other)(x), expected)


def test_values_stay_what_they_were_when_the_figures_move():
    critic, x = ValueNet(MLP([3, 16, 1])), torch.randn(4, 20, 3)
    for scale in (0.01, 1.0, 1000.0):
        before = critic(x)
        critic.update(scale * (torch.randn(500) + 2))
        torch.testing.assert_close(critic(x), before, atol=1e-5 * scale, rtol=1e-4)
    assert critic(x).shape == (4, 20)
    assert critic(x[0, 0]).shape == ()


KINDS = {
    "angle": (spaces.Box(-1, 1, (2, 2)), torch.tensor([[0.1, 0.2], [0.3, 0.4]]), [0.1, 0.2, 0.3, 0.4]),
    "force": (spaces.Box(-1, 1, (), np.float64), torch.tensor(0.5), [0.5]),
    "room": (spaces.Discrete(3, start=2), torch.tensor(4), [0, 0, 1]),
    "doors": (spaces.MultiDiscrete([2, 3], start=[0, 1]), torch.tensor([1, 1]), [0, 1, 1, 0, 0]),
    "lamps": (spaces.MultiBinary(2), torch.tensor([0, 1], dtype=torch.int8), [0, 1]),
    "pixels": (spaces.Box(0, 255, (2, 1), np.uint8), torch.tensor([[255], [51]], dtype=torch.uint8), [1, 0.2]),
}


@LEADS
def test_leaves_of_all_kinds_lie_side_by_side(lead):
    leaves = observation_leaves(spaces.Dict({name: space for name, (space, _, _) in KINDS.items()}))
    encoder, keys = VectorEncoder(leaves, standardise=False), [leaf.key for leaf in leaves]
    out = encoder(*(torch.broadcast_to(KINDS[key][1], (*lead, *KINDS[key][1].shape)) for key in keys))
    expected = torch.tensor([number for key in keys for number in KINDS[key][2]])
    assert encoder.features == len(expected) == 17
    torch.testing.assert_close(out, expected.expand(*lead, 17))


@pytest.mark.parametrize("shape", [(4, 84, 84), (84, 84), (96, 64, 3), (1, 36, 36)])
@LEADS
def test_images_of_any_layout_become_features(shape, lead):
    features = ImageEncoder(shape, features=16)(torch.randint(0, 256, (*lead, *shape), dtype=torch.uint8))
    assert (features.shape, features.dtype) == ((*lead, 16), torch.float32)


@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_figures_of_parts_are_those_of_the_whole(sizes, seed):
    rows = np.random.default_rng(seed).normal(100, [1, 5, 0.1], (sum(sizes), 3)).astype(np.float32)
    module = Standardise(3)
    for part in np.split(rows, np.cumsum(sizes)[:-1]):
        module.update(torch.from_numpy(part))
    np.testing.assert_allclose(module.mean, rows.mean(0, dtype=np.float64), rtol=1e-9)
    np.testing.assert_allclose(module.variance, rows.var(0, dtype=np.float64), rtol=1e-6, atol=1e-12)
    assert module.count == sum(sizes)


def test_far_values_are_cut_and_constant_ones_are_zero():
    module = Standardise(2)
    module.update(torch.stack([torch.randn(100), torch.full((100,), 5.0)], -1))
    out = module(torch.tensor([[1e6, 5.0], [-1e6, 6.0]]))
    torch.testing.assert_close(out, torch.tensor([[10.0, 0.0], [-10.0, 10.0]]))


def test_choices_come_as_often_as_the_softmax_says():
    torch.manual_seed(0)
    logits = torch.tensor([2.0, 0.0, -1.0, -5.0, 1.0])
    action, _ = Categorical(5).sample(logits.expand(200_000, 5))
    counts, expected = torch.bincount(action, minlength=5).double(), 200_000 * logits.double().softmax(-1)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 18.5  # a fair sampler exceeds it once in 1,000 seeds


INF = math.inf


def head_of(low, high, std=1.0):
    return Gaussian(np.array(low), np.array(high), math.log(std))


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 0.3), (-0.1, 0.7)])
def test_on_a_bound_the_probability_is_all_that_lies_beyond(low, high):
    torch.manual_seed(0)
    head, out = head_of([low], [high], std=1.3), torch.full((50_000, 1), 0.4)
    action, log_prob = head.sample(out)
    assert ((action >= low) & (action <= high)).all()
    for bound in (head.low, head.high):
        on_bound = (action == bound).squeeze(-1)
        (probability,) = log_prob[on_bound].exp().unique()
        assert on_bound.float().mean().item() == pytest.approx(probability.item(), abs=0.01)


def test_sampled_log_probabilities_are_those_of_the_sampled_actions():
    head, out = head_of([-1.0, -INF, 0.0], [1.0, 3.0, INF]), torch.randn(1000, 3)
    action, log_prob = head.sample(out)
    assert all(on_bound.any() for on_bound in (action[:, 0].abs() == 1, action[:, 1] == 3, action[:, 2] == 0))
    assert torch.equal(head.log_prob(out, action), log_prob)


def test_the_gradient_stays_finite_far_beyond_the_bounds():
    head = head_of([-1.0, -1.0], [1.0, 1.0], std=0.01)
    out = torch.tensor([[500.0, -500.0], [500.0, 500.0]], requires_grad=True)
    head.log_prob(out, torch.tensor([[1.0, -1.0], [-1.0, 0.0]])).sum().backward()
    assert torch.isfinite(out.grad).all()
    assert torch.isfinite(head.log_std.grad).all()
    assert out.grad[0].tolist() == [0.0, 0.0]
    assert (out.grad[1] < 0).all()  # towards the actions that were taken


SPACES = [
    (spaces.Discrete(3, start=1), Categorical),
    (spaces.MultiDiscrete([[2, 3], [4, 5]]), MultiCategorical),
    (spaces.MultiBinary((2, 2)), MultiCategorical),
    (spaces.Box(-2, 2, (2, 3)), Gaussian),
    (spaces.Box(-np.inf, np.inf, (2, 2)), Gaussian),
]


@pytest.mark.parametrize(("space", "head"), SPACES, ids=str)
@pytest.mark.parametrize("lead", [(), (20,), (2, 5)])
def test_every_served_action_space_gets_a_head_whose_actions_belong_to_it_in_any_batch(space, head, lead):
    policy = small_policy(space)
    with torch.inference_mode():
        action, log_prob = policy(torch.randn(*lead, 3))
    assert (policy.in_keys, policy.out_keys) == (["observation"], ["action", "action_log_prob"])
    assert isinstance(policy.head, head)
    assert (action.shape, log_prob.shape) == ((*lead, *space.shape), lead)
    rows = action.reshape(-1, *space.shape).numpy().astype(space.dtype)
    assert all(space.contains(row) for row in rows)


@pytest.mark.parametrize(("space", "head"), SPACES, ids=str)
def test_evaluate_gives_what_acting_gave_with_gradients_for_every_parameter(space, head):
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


PIXELS = spaces.Box(0, 255, (4, 84, 84), np.uint8)


def test_other_spaces_are_refused():
    with pytest.raises(TypeError, match=r"no policy for the action space .*wrap the env"):
        make_policy(BOX, spaces.Box(0, 5, (2,), np.int32))
    with pytest.raises(ValueError, match=r"\['camera'\] are images among others"):
        make_policy(spaces.Dict(camera=PIXELS, speed=BOX), TWO)


def test_entries_of_a_dict_are_read_in_the_order_of_the_space():
    space = spaces.Dict(where=BOX, hand=spaces.Dict(open=spaces.MultiBinary(1), at=spaces.Discrete(5)))
    policy = make_policy(space, TWO)
    rows = {"where": torch.randn(6, 3), ("hand", "open"): torch.ones(6, 1), ("hand", "at"): torch.arange(6) % 5}
    action, _ = policy(*(rows[key] for key in policy.in_keys))
    assert set(policy.in_keys) == set(rows)
    assert action.shape == (6,)


@pytest.mark.parametrize(("space", "learns"), [(BOX, True), (spaces.Discrete(4), False)], ids=str)
def test_floats_are_standardised_and_nothing_else_is(space, learns):
    policy = make_policy(space, TWO)
    assert (policy.encoder.standardise is not None) is learns
    assert make_policy(space, TWO, NetworkConfig(standardise=False)).encoder.standardise is None


MASKED = [
    (spaces.Discrete(4, start=2), [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], [(2,), (1,), (4,)]),
    (spaces.MultiDiscrete([2, 3]), [[0, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 1]], [(1, 2), (2, 3), (1, 1)]),
]
"""Spaces, masks of three rows, and numbers of allowed actions of each choice; a mask of zeros allows all."""


@pytest.mark.parametrize(("space", "masks", "allowed"), MASKED, ids=["discrete", "multi-discrete"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.float32])
def test_forbidden_actions_have_probability_0_for_acting_and_for_learning(space, masks, allowed, dtype):
    mask = torch.tensor(masks).to(dtype)
    observation_space = spaces.Dict(action_mask=spaces.MultiBinary(mask.shape[1]), x=BOX)
    policy, x = small_policy(space, observation_space), torch.zeros(3, 3)
    assert policy.in_keys == ["x", "action_mask"]
    with torch.no_grad():  # of a uniform distribution, the entropy is the logarithm of the number of actions
        policy.network.weight_1.zero_()
    drawn = [policy(x, mask, exploration_type=kind) for kind in [ExplorationType.RANDOM] * 200 + [ExplorationType.MODE]]
    for row, counts in enumerate(allowed):
        found = torch.stack([action[row].reshape(-1) for action, _ in drawn])
        assert [len(column.unique()) for column in found.T] == [*counts]
        for action, log_prob in drawn:
            assert space.contains(action[row].numpy().astype(space.dtype)[()])
            assert log_prob[row].item() == pytest.approx(-math.log(math.prod(counts)))
    log_prob, entropy, _ = policy.evaluate((x, mask), drawn[0][0])
    assert entropy.tolist() == pytest.approx([math.log(math.prod(counts)) for counts in allowed])
    assert torch.equal(log_prob, drawn[0][1])
    (log_prob + entropy).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in policy.network.parameters())


def test_a_mask_that_says_nothing_of_the_action_is_refused_and_one_beside_an_image_is_not():
    mask = spaces.MultiBinary(3)
    for action in (TWO, spaces.Box(-1, 1, (3,)), spaces.MultiBinary(3)):
        with pytest.raises(ValueError, match=r"make_policy cannot obey 'action_mask' of shape \(3,\) for .*: it needs"):
            make_policy(spaces.Dict(action_mask=mask, x=BOX), action)
    with pytest.raises(ValueError, match="only an action mask; give the policy something to see"):
        make_policy(spaces.Dict(action_mask=mask), spaces.Discrete(3))
    assert make_policy(spaces.Dict(action_mask=mask, camera=PIXELS), spaces.Discrete(3)).masked
    with pytest.raises(TypeError, match="masked=True for Gaussian: only choices can be masked"):
        NetworkPolicy(nn.Linear(3, 2), Gaussian([-1, -1], [1, 1]), in_keys=["x", "action_mask"], masked=True)
