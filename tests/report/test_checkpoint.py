import zlib
from collections import OrderedDict

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from swath.report.checkpoint import FORMAT, load_checkpoint, save_checkpoint


def same(first, second):
    if isinstance(first, torch.Tensor):
        return isinstance(second, torch.Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return isinstance(second, dict) and [*first] == [*second] and all(same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return type(first) is type(second) and len(first) == len(second) and all(map(same, first, second))
    return type(first) is type(second) and first == second


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.sampled_from([torch.float32, torch.int64, torch.uint8, torch.bool]).map(lambda kind: torch.ones(2, 3).to(kind)),
)
keys = st.one_of(st.text(max_size=4), st.integers())
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(state=st.dictionaries(st.text(max_size=4), trees, max_size=4))
def test_a_tree_of_tensors_and_plain_values_is_restored(state, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "checkpoint.safetensors"
    save_checkpoint(path, state)
    assert same(load_checkpoint(path), state)


def test_tensors_that_share_memory_are_saved_separately(tmp_path):
    weight = torch.arange(6.0)
    save_checkpoint(tmp_path / "c.safetensors", {"a": weight, "b": weight.view(2, 3), "c": weight[::2]})
    state = load_checkpoint(tmp_path / "c.safetensors")
    assert state["b"].shape == (2, 3)
    assert state["c"].tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("state", "message"),
    [({"a": {"b": [1, object()]}}, "a/b/1 is of type object"), ({"a": {True: 1}}, "a has the key True")],
)
def test_an_entry_that_a_checkpoint_cannot_hold_is_named_with_its_path(state, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        save_checkpoint(tmp_path / "c.safetensors", state)
    assert list(tmp_path.iterdir()) == []


DEEP, ONE = "[" * 100_000, np.ones(1, np.float32).tobytes()


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"version": "1", "state": "{}"},
            "has checkpoint format 1, this Swath reads 2; train again: it has no checksum",
        ),
        ({"version": "99", "state": "{}"}, "has checkpoint format 99, this Swath reads 2; upgrade Swath"),
        ({"format": "theirs"}, "was not written by Swath"),
        ({"version": "2", "state": "{}"}, "is damaged: checksum .*, None was saved; take another checkpoint"),
        (
            {"version": "2", "state": DEEP, "checksum": str(zlib.crc32(f"{DEEP}a torch.float32 [1]".encode() + ONE))},
            "is damaged: its state cannot be read .RecursionError",
        ),
    ],
)
def test_a_file_that_is_no_checkpoint_of_this_version_is_named(metadata, message, tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "c.safetensors", {"format": FORMAT, **metadata})
    with pytest.raises(ValueError, match=rf"c.safetensors {message}"):
        load_checkpoint(tmp_path / "c.safetensors")


def test_a_missing_file_and_a_truncated_one_are_named(tmp_path):
    path = tmp_path / "c.safetensors"
    with pytest.raises(FileNotFoundError, match="No such file"):
        load_checkpoint(path)
    save_checkpoint(path, {"a": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load_checkpoint(path)


def test_a_changed_byte_is_an_error_when_a_checkpoint_is_read(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"a": torch.arange(20.0), "b": {"c": torch.ones(3, dtype=torch.bool)}, "n": 100})
    content = path.read_bytes()
    for at in range(8, len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError, match=r"c\.safetensors"):
            load_checkpoint(path)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.float32([-1, -np.inf]), np.float32([1, 2])),
        spaces.Box(0, 255, (2, 2, 3), np.uint8),
        spaces.Box(-1, 1, (), np.float64),
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([[2, 3], [1, 2]], start=[[1, 2], [0, 0]]),
        spaces.MultiBinary(4),
        spaces.MultiBinary((2, 3)),
        spaces.Tuple([spaces.Discrete(2), spaces.Dict(b=spaces.Discrete(2), a=spaces.Box(0, 1, (1,)))]),
        spaces.Dict(OrderedDict(b=spaces.Discrete(2), a=spaces.Discrete(3))),
    ],
    ids=str,
)
def test_spaces_are_restored(space, tmp_path):
    save_checkpoint(tmp_path / "c.safetensors", {"spaces": (space, 1)})
    loaded, _ = load_checkpoint(tmp_path / "c.safetensors")["spaces"]
    assert loaded == space
    assert type(loaded) is type(space)
    assert (loaded.dtype, loaded.shape) == (space.dtype, space.shape)
    assert str(loaded) == str(space), "the order of a Dict"


@pytest.mark.parametrize("kib", [200, 1023, 1100, 3000])
def test_a_full_disk_is_an_error_and_the_old_checkpoint_stays(kib, small_disk):
    path = small_disk / "c.safetensors"
    save_checkpoint(path, {"a": torch.ones(10)})
    if kib > 900:
        with pytest.raises(OSError, match=r"c\.safetensors could not be written: .*No space left"):
            save_checkpoint(path, {"a": torch.ones(kib, 256)})
    else:
        save_checkpoint(path, {"a": torch.ones(10), "b": torch.ones(kib, 256)})
    assert load_checkpoint(path)["a"].tolist() == [1.0] * 10
    assert [file.name for file in small_disk.iterdir()] == ["c.safetensors"]
