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


def same(left, right):
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return isinstance(right, dict) and list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


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
def test_any_tree_of_tensors_and_plain_values_comes_back_as_it_was(state, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "checkpoint.safetensors"
    save_checkpoint(path, state)
    assert same(load_checkpoint(path), state)


def test_tensors_that_share_memory_are_saved_apart(tmp_path):
    weight = torch.arange(6.0)
    save_checkpoint(tmp_path / "c.safetensors", {"a": weight, "b": weight.view(2, 3), "c": weight[::2]})
    state = load_checkpoint(tmp_path / "c.safetensors")
    assert state["b"].shape == (2, 3)
    assert state["c"].tolist() == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("state", "message"),
    [({"a": {"b": [1, object()]}}, "a/b/1 is of type object"), ({"a": {True: 1}}, "a has the key True")],
)
def test_what_a_checkpoint_cannot_hold_is_named_with_its_place(state, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        save_checkpoint(tmp_path / "c.safetensors", state)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"version": "1", "state": "{}"},
            "has checkpoint format 1, this Swath reads 2; train again: it has no checksum",
        ),
        ({"version": "99", "state": "{}"}, "has checkpoint format 99, this Swath reads 2; upgrade Swath"),
        ({"format": "theirs"}, "was not written by Swath"),
    ],
)
def test_a_file_that_is_no_checkpoint_of_this_version_is_named(metadata, message, tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "c.safetensors", {"format": FORMAT, **metadata})
    with pytest.raises(ValueError, match=rf"c.safetensors {message}"):
        load_checkpoint(tmp_path / "c.safetensors")


def test_a_missing_file_and_one_that_was_cut_are_named(tmp_path):
    path = tmp_path / "c.safetensors"
    with pytest.raises(FileNotFoundError, match="No such file"):
        load_checkpoint(path)
    save_checkpoint(path, {"a": torch.ones(100)})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load_checkpoint(path)


def test_any_changed_byte_is_noticed_when_a_checkpoint_is_read(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"a": torch.arange(20.0), "b": {"c": torch.ones(3, dtype=torch.bool)}, "n": 100})
    whole = path.read_bytes()
    for at in range(8, len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ValueError, match=r"c\.safetensors"):
            load_checkpoint(path)


def test_a_checkpoint_that_lacks_its_checksum_is_refused(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "c.safetensors", {"format": FORMAT, "version": "2", "state": "{}"})
    with pytest.raises(ValueError, match=r"is damaged: checksum .*, None was saved; take another checkpoint"):
        load_checkpoint(tmp_path / "c.safetensors")


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
    ],
    ids=str,
)
def test_spaces_come_back_as_they_were(space, tmp_path):
    save_checkpoint(tmp_path / "c.safetensors", {"spaces": (space, 1)})
    loaded, _ = load_checkpoint(tmp_path / "c.safetensors")["spaces"]
    assert loaded == space
    assert type(loaded) is type(space)
    assert (loaded.dtype, loaded.shape) == (space.dtype, space.shape)


def test_the_order_of_a_dict_space_is_kept(tmp_path):
    space = spaces.Dict(OrderedDict(b=spaces.Discrete(2), a=spaces.Discrete(3)))
    save_checkpoint(tmp_path / "c.safetensors", {"space": space})
    assert list(load_checkpoint(tmp_path / "c.safetensors")["space"]) == ["b", "a"]


def test_a_state_that_is_nested_too_deeply_is_named(tmp_path):
    text = "[" * 100_000
    metadata = {"format": FORMAT, "version": "2", "state": text, "checksum": str(zlib.crc32(text.encode()))}
    save_file({}, tmp_path / "c.safetensors", metadata)
    with pytest.raises(ValueError, match=r"is damaged: its state cannot be read .RecursionError"):
        load_checkpoint(tmp_path / "c.safetensors")


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
