"""Private random streams: in force within, and nowhere else."""

import random

import numpy as np
import pytest
import torch

from swath.rollout.apart import apart
from swath.rollout.random_state import PrivateStreams, preserved


def draw():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), np.random.randn(), random.random(), random.gauss()


def seed_all():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)


def test_what_is_preserved_is_as_it_was_also_after_an_exception():
    seed_all()
    expected = draw()
    seed_all()
    with pytest.raises(KeyError):
        _fail_preserved()
    assert draw() == expected


@preserved()
def _fail_preserved():
    draw()
    raise KeyError


def test_private_streams_go_on_where_they_were_and_leave_the_process_alone():
    seed_all()
    expected = draw(), draw()
    seed_all()
    before = draw()
    streams, others = PrivateStreams(3), PrivateStreams(3)
    with streams.swapped():
        first = draw()
    with streams.swapped():
        second = draw()
    assert (before, draw()) == expected, "the spare number of np.random.randn and random.gauss included"
    with others.swapped():
        together = draw(), draw()
    assert [drawn[:2] for drawn in together] == [first[:2], second[:2]]
    assert first != second


@pytest.mark.parametrize("way", ["swapped", "in_force"])
def test_the_process_s_own_generators_are_put_back_also_after_an_exception(way):
    def interrupted():
        with getattr(PrivateStreams(1), way)():
            draw()
            raise ZeroDivisionError

    seed_all()
    expected = torch.rand(2).tolist(), np.random.rand(), random.random()
    seed_all()
    with pytest.raises(ZeroDivisionError):
        interrupted()
    assert (torch.rand(2).tolist(), np.random.rand(), random.random()) == expected


def test_streams_of_other_seeds_differ():
    drawn = []
    for seed in (3, 4):
        with PrivateStreams(seed).in_force():
            drawn.append(draw())
    assert all(one != other for one, other in zip(*drawn, strict=True))


@pytest.mark.parametrize("way", ["swapped", "in_force"])
def test_on_a_thread_apart_torch_draws_the_same_and_the_other_generators_stay_shared(way):
    def drawn():
        streams = PrivateStreams(5)
        with getattr(streams, way)():
            first = torch.randn(2).tolist()
        with getattr(streams, way)(), preserved():
            return first + torch.randn(2).tolist()

    def of_others():
        return np.random.get_state()[1].tolist(), random.getstate()

    seed_all()
    expected, theirs = drawn(), (torch.get_rng_state(), of_others())
    with apart(1):
        before = torch.rand(1)
        assert drawn() == expected
        with preserved(), PrivateStreams(6).swapped():
            np.random.rand(), random.random()
        between = torch.rand(1)
    with apart(1):
        assert [torch.rand(1), torch.rand(1)] == [before, between]
    assert torch.equal(torch.get_rng_state(), theirs[0])
    assert of_others() != theirs[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("way", ["swapped", "in_force"])
def test_a_gpu_draws_from_the_streams_too(way):
    device = torch.device("cuda")
    torch.rand(1, device=device)
    before = torch.cuda.get_rng_state(device)
    drawn = []
    for _ in range(2):
        with getattr(PrivateStreams(5, device), way)():
            drawn.append(torch.rand(3, device=device).tolist())
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.cuda.get_rng_state(device), before)
