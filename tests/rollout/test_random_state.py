"""Private random streams: in force within, and nowhere else."""

import random

import numpy as np
import pytest
import torch

from swath.rollout.random_state import PrivateStreams, preserved


def draw():
    return torch.rand(2).tolist(), np.random.rand(2).tolist(), random.random()


def test_what_is_preserved_is_as_it_was_also_after_an_exception():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    expected = draw()
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    with pytest.raises(KeyError):
        _fail_preserved()
    assert draw() == expected


@preserved()
def _fail_preserved():
    draw()
    raise KeyError


def test_private_streams_go_on_where_they_were_and_leave_the_process_alone():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    expected = draw()
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    streams, others = PrivateStreams(3, 0, 0), PrivateStreams(3, 0, 0)
    with streams.swapped():
        first = draw()
    with streams.swapped():
        second = draw()
    with others.swapped():
        assert (draw(), draw()) == (first, second)
    assert draw() == expected
    assert first != second


def test_streams_of_other_workers_lives_and_roots_differ():
    drawn = []
    for which in [(3, 0, 0), (3, 1, 0), (3, 0, 1), (4, 0, 0)]:
        with PrivateStreams(*which).swapped():
            drawn.append(draw())
    for generator in zip(*drawn, strict=True):
        assert len({str(values) for values in generator}) == 4
