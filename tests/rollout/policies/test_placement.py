"""Between arrays [B, …] and tensors [*B, …]."""

import numpy as np
import pytest
import torch
from torch import nn

from swath.rollout.policies.placement import action_taker, copying, device_of, giver, taker

CPU = [None, torch.device("cpu")]


@pytest.mark.parametrize("device", CPU)
def test_nothing_is_copied_where_nothing_moves(device):
    leaves = [np.zeros((3, 2), dtype=np.float32), np.zeros(3, dtype=np.int64), np.zeros((3, 4, 4), dtype=np.uint8)]
    for leaf, tensor in zip(leaves, giver((3,), device)(leaves), strict=True):
        tensor.fill_(1)
        assert (leaf == 1).all()
    copies = copying(giver((3,), device))(leaves)
    assert not any(np.shares_memory(leaf, tensor) for leaf, tensor in zip(leaves, copies, strict=True))


@pytest.mark.parametrize("device", CPU)
def test_a_bare_env_has_no_env_dimension(device):
    tensors = giver((), device)([np.ones((1, 2), dtype=np.float32), np.array([5])])
    assert [tuple(tensor.shape) for tensor in tensors] == [(2,), ()]
    assert tensors[1].item() == 5
    assert taker((), tensors[0])(tensors[0]).shape == (1, 2)
    assert taker((), 5)(5).tolist() == [5]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.bool, torch.uint8, torch.int32, torch.complex64])
def test_outputs_keep_their_dtype(dtype):
    value = torch.ones(3, 2).to(dtype)
    taken = taker((3,), value)(value)
    assert isinstance(taken, np.ndarray)
    assert torch.from_numpy(taken).dtype == dtype


def test_parameters_are_detached():
    value = torch.nn.Parameter(torch.ones(3))
    assert taker((3,), value)(value).tolist() == [1, 1, 1]
    half = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    assert not taker((3,), half)(half).requires_grad


def test_actions_are_always_arrays():
    value = torch.ones(3, dtype=torch.bfloat16)
    assert action_taker((3,), value)(value).dtype == np.float32
    assert action_taker((3,), torch.ones(3))(torch.ones(3)).dtype == np.float32
    assert action_taker((), 1)(1).tolist() == [1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_observations_go_to_the_policy_and_outputs_come_back():
    device = torch.device("cuda")
    leaves = [np.ones((3, 2), dtype=np.float32)]
    (tensor,) = giver((3,), device)(leaves)
    assert tensor.is_cuda
    assert taker((3,), tensor)(tensor).tolist() == [[1, 1]] * 3
    half = tensor.bfloat16()
    assert not taker((3,), half)(half).is_cuda
    assert action_taker((3,), half)(half).dtype == np.float32


def test_inputs_go_to_the_first_parameter_unless_that_is_on_the_cpu():
    assert device_of(nn.Linear(1, 1, device="meta")) == torch.device("meta")
    assert device_of(nn.Linear(1, 1)) is None


def test_what_has_no_parameters_is_nowhere():
    assert device_of(nn.ReLU()) is device_of(nn.Identity()) is None
    assert device_of(lambda observation: observation) is device_of(print) is None
