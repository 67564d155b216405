"""What people look at and keep: files that are whole or not there, sinks, datasets, films, curves, one live view."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from swath.report.atomic import replacing
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
        ({"version": "1", "state": "{"}, "is damaged: its state cannot be read"),
        ({"version": "99", "state": "{}"}, "has checkpoint format 99, this Swath reads 1; upgrade Swath"),
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


@pytest.mark.parametrize("folder", [False, True])
def test_what_is_written_appears_whole_when_the_block_ends_and_not_at_all_if_it_raises(folder, tmp_path):
    target = tmp_path / "deep" / "a.txt"
    with replacing(target, folder=folder) as draft:
        (draft / "c.txt" if folder else draft).write_text("new")
        assert draft.suffix == ".txt"
        assert not target.exists()
    with pytest.raises(OSError, match="directory"), replacing(target, folder=folder) as draft:
        (draft / "nowhere" / "c.txt").write_text("half")
    assert (target / "c.txt" if folder else target).read_text() == "new"
    assert len([*tmp_path.rglob("*")]) == 2 + folder, "no draft is left"
