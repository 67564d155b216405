"""The noise of an episode."""

import random

import numpy as np
import pytest
import torch

from swath.evaluate.noise import Noise


def draw():
    return torch.rand(()).item(), np.random.rand(), random.random()


def test_an_episode_s_draws_follow_from_its_seed_and_go_on_from_call_to_call():
    together, apart = Noise(5), Noise(5)
    with together.in_force():
        both = [draw(), draw()]
    split = []
    for _ in range(2):
        with apart.in_force():
            split.append(draw())
        draw()
    assert both == split
    with Noise(6).in_force():
        assert all(one != other for one, other in zip(draw(), both[0], strict=True))


def test_the_process_s_own_generators_are_put_back_also_after_an_exception():
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = [draw(), draw()]
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    first = draw()

    def interrupted():
        with Noise(1).in_force():
            draw()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert [first, draw()] == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_draws_from_the_episode_too():
    device = torch.device("cuda")
    torch.rand(1, device=device)
    before = torch.cuda.get_rng_state(device)
    drawn = []
    for _ in range(2):
        with Noise(5, device).in_force():
            drawn.append(torch.rand(3, device=device).tolist())
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.cuda.get_rng_state(device), before)
