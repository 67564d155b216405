"""Columns as tensors on a device."""

import numpy as np
import pytest
import torch
from batch_toys import plain

from swath import errors
from swath.errors import NoEffectWarning
from swath.rollout_workers import SampleBatch


def mixed():
    """Of everything, and uneven."""
    return SampleBatch(
        {
            "a": np.array([1, 2]),
            "b": {"c": (np.array([4.5, 5.5]), torch.tensor([3.0, 4.0]).double())},
            "number": {"d": (torch.tensor([1.0]), 1)},
            "half": np.array([1.5, 2.5], dtype=np.float16),
            "text": np.array(["x", "y"]),
            "objects": np.array([{}, None], dtype=object),
            "none": None,
            "infos": np.array([{"a": 1}, {"b": [1, 2]}]),
            "seq_lens": np.array([2, 3, 1]),
            "state_in_0": np.array([1.0, 3.0, 4.0]),
        }
    )


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), None])
def test_columns_become_tensors_in_place(device):
    batch = mixed()
    assert batch.to_device(device) is batch
    assert (batch["a"].dtype, batch["seq_lens"].dtype, batch["half"].dtype) == (torch.int64, torch.int64, torch.float16)
    assert [leaf.dtype for leaf in batch["b"]["c"]] == [torch.float32, torch.float32]
    assert (plain(batch["number"]["d"]), plain(batch["state_in_0"])) == (([1.0], 1), [1, 3, 4])
    assert isinstance(batch["number"]["d"][1], torch.Tensor)
    assert all(isinstance(batch[name], np.ndarray) for name in ("text", "objects", "infos"))
    assert batch["none"] is None


def test_on_the_cpu_tensors_share_memory_with_arrays_that_can_be_written():
    array, fixed = np.zeros(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
    fixed.flags.writeable = False
    batch = SampleBatch(a=array, b=fixed, c=array[::-1]).to_device("cpu")
    batch["a"][0] = batch["b"][0] = 5
    assert (plain(array), plain(fixed), plain(batch["c"])) == ([5, 0], [0, 0], [0, 0])


def test_other_frameworks_are_refused():
    batch = mixed()
    with pytest.raises(NotImplementedError, match=r"framework='tf' is not served; use 'torch'"):
        batch.to_device("cpu", framework="tf")
    assert isinstance(batch["a"], np.ndarray)


def test_what_only_cuda_has_is_warned_about_once(monkeypatch):
    monkeypatch.setattr(errors, "_warned_of", set())
    with pytest.warns(NoEffectWarning, match=r"to_device\(pin_memory=…\) has no effect here: it is for CUDA") as told:
        mixed().to_device("cpu", pin_memory=True).to_device("cpu", pin_memory=True)
    assert len(told) == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("options", [{}, {"pin_memory": True}])
def test_columns_go_to_a_gpu_and_are_there_when_they_are_read(options):
    batch = SampleBatch(a=np.arange(1_000_000.0), b={"c": torch.ones(3, device="cuda")}, infos=[{}])
    batch.to_device("cuda", **options)
    assert batch["a"].is_cuda
    assert (float(batch["a"].double().sum()), float(batch["b"]["c"].sum())) == (499_999_500_000.0, 3.0)
