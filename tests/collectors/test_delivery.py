"""Batches on their way out: private entries, counting, devices of buffers."""

import pytest
import torch
from tensordict import TensorDict

from swath.collectors.delivery import fitted_to, valid_frames
from swath.errors import noted
from swath.rollout.tensordicts import drop_private


def test_private_entries_are_dropped_at_every_level():
    td = TensorDict(
        {
            "a": torch.zeros(2),
            "_b": torch.zeros(2),
            "c": {"_d": torch.zeros(2), "e": torch.zeros(2)},
            "_f": {"g": torch.zeros(2), "_h": torch.zeros(2)},
        },
        batch_size=[2],
    )
    drop_private(td)
    assert set(td.keys(include_nested=True)) == {"a", "c", ("c", "e")}


def test_what_is_no_tensordict_is_left_alone():
    assert drop_private([1]) is None


def test_frames_are_the_rows_that_are_not_masked():
    td = TensorDict({"x": torch.zeros(2, 3)}, batch_size=[2, 3])
    assert valid_frames(td) == 6
    td["collector", "mask"] = torch.tensor([[True, True, False], [True, False, False]])
    assert valid_frames(td) == 3


def test_a_buffer_without_a_storage_gets_the_batch_itself():
    td = TensorDict({"x": torch.zeros(2)}, batch_size=[2])
    assert fitted_to(object(), td, by_frame=True) is td


def test_notes_are_added_to_errors_only():
    with noted("nothing"):
        pass
    with pytest.raises(ValueError, match="bad") as caught, noted("me"):
        raise ValueError("bad")
    assert caught.value.__notes__ == ["raised by me"]
