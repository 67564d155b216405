from types import SimpleNamespace

import pytest
import torch
from tensordict import TensorDict

from swath.collect.rate import frames_per_second
from swath.keys import MASK


@pytest.fixture
def drawn(monkeypatch):
    """Batches without an end, and how many were drawn; each takes two seconds."""
    clock = SimpleNamespace(batches=0, perf_counter=lambda: 2.0 * clock.batches)
    monkeypatch.setattr("swath.collect.rate.time", clock)
    return clock


def batches(drawn, batch):
    while True:
        drawn.batches += 1
        yield batch


@pytest.mark.parametrize(
    ("limits", "counted"),
    [((0.0,), 1), ((6.0,), 3), ((5.0,), 3), ((6.0, 16), 2), ((6.0, 9), 2), ((6.0, 1000), 3), ((6.0, 1), 1)],
)
def test_batches_are_drawn_until_the_first_limit_and_the_first_batch_is_not_counted(limits, counted, drawn):
    assert frames_per_second(batches(drawn, TensorDict(batch_size=[2, 4])), *limits) == 4.0
    assert drawn.batches == 1 + counted


def test_rows_that_are_no_transitions_are_not_counted(drawn):
    mask = torch.tensor([[True, False, True, False]])
    assert frames_per_second(batches(drawn, TensorDict({MASK: mask}, [1, 4])), 0.0) == 1.0
