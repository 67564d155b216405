"""Private random streams: in force within, and nowhere else."""

import random

import numpy as np
import pytest
import torch

from swath.rollout.seeding import PrivateStreams, preserved


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
