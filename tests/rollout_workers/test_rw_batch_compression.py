"""Columns as LZ4 frames."""

import pickle
import sys

import numpy as np
import pytest
import torch
from batch_toys import plain

from swath.rollout_workers import MultiAgentBatch, SampleBatch, is_compressed, pack, unpack

lz4 = pytest.importorskip("lz4")


def observed(n=4):
    """Rows whose observations compress well."""
    obs = np.arange(n, dtype=np.float32).repeat(500).reshape(n, 500)
    return SampleBatch(obs={"x": obs, "y": (obs[:, :3] > 1, np.arange(n))}, new_obs=obs + 1, rewards=np.arange(n))


@pytest.mark.parametrize("data", [np.arange(5), {"a": [1, (2,)]}, "text", b"bytes", None])
def test_what_is_packed_can_be_unpacked(data):
    frame = pack(data)
    assert is_compressed(frame)
    assert not is_compressed(data)
    assert plain(unpack(frame)) == plain(data)
    assert plain(unpack(data)) == plain(data)


@pytest.mark.parametrize("bulk", [False, True])
def test_observations_are_compressed_in_place_and_back(bulk):
    batch, original = observed(), observed()
    size = batch.size_bytes()
    assert batch.compress(bulk=bulk) is batch
    assert batch.size_bytes() < size / 5
    frames = [batch["obs"]["x"], *batch["obs"]["y"], batch["new_obs"]]
    assert all(is_compressed(frame if bulk else frame[0]) for frame in frames)
    assert isinstance(batch["obs"]["y"], tuple)
    assert (len(batch), plain(batch["rewards"])) == (4, [0, 1, 2, 3])
    assert batch.decompress_if_needed() is batch
    np.testing.assert_equal(dict(batch), dict(original))
    assert batch["obs"]["y"][0].dtype == np.bool_
    assert batch["obs"]["x"].flags.writeable


@pytest.mark.parametrize("bulk", [False, True])
def test_compressing_twice_is_compressing_once(bulk):
    batch = observed().compress(bulk)
    before = batch["new_obs"]
    assert batch.compress(bulk)["new_obs"] is before
    assert batch.compress(not bulk)["new_obs"] is before
    np.testing.assert_equal(dict(batch.decompress_if_needed()), dict(observed()))


def test_only_these_columns_are_compressed():
    batch = observed().compress(columns={"rewards", "absent"})
    assert [is_compressed(row) for row in batch["rewards"]] == [True] * 4
    assert plain(batch["new_obs"]) == plain(observed()["new_obs"])
    batch.decompress_if_needed()
    assert is_compressed(batch["rewards"][0])
    assert plain(batch.decompress_if_needed({"rewards"})["rewards"]) == [0, 1, 2, 3]


def test_decompressing_what_is_not_compressed_changes_nothing():
    batch = observed()
    np.testing.assert_equal(dict(batch.decompress_if_needed()), dict(observed()))
    batch["obs"] = np.array([{"a": 1}, {}], dtype=object)
    assert plain(batch.decompress_if_needed()["obs"]) == [{"a": 1}, {}]


def test_rows_can_be_taken_of_columns_that_are_compressed_by_row():
    batch = observed().compress()
    part = batch[1:3].concat(batch[3:]).decompress_if_needed()
    np.testing.assert_equal(dict(part), dict(observed()[1:]))
    batch.shuffle(np.random.default_rng(0)).decompress_if_needed()
    assert plain(batch["obs"]["x"][:, 0]) == plain(batch["rewards"]) != [0, 1, 2, 3]


@pytest.mark.parametrize("take", [lambda b: b[:1], lambda b: list(b.rows()), lambda b: b.concat(b)])
def test_rows_cannot_be_taken_of_columns_that_are_compressed_whole(take):
    with pytest.raises(
        ValueError, match=r"column '?(obs/x|obs)'? is compressed as a whole; call decompress_if_needed\(\) first"
    ):
        take(observed().compress(bulk=True))


def test_a_batch_that_is_compressed_whole_still_counts_its_rows():
    batch = SampleBatch(a=np.arange(3)).compress(bulk=True, columns={"a"})
    made = pickle.loads(pickle.dumps(batch))
    assert [len(batch), len(made), len(batch.copy())] == [3, 3, 3]
    assert plain(made.decompress_if_needed({"a"})) == {"a": [0, 1, 2]}
    del made["a"]
    assert len(made) == 0


def test_columns_without_rows_stay_as_they_are():
    batch = SampleBatch(obs=np.zeros((0, 3), dtype=np.float16)).compress().decompress_if_needed()
    assert (batch["obs"].shape, batch["obs"].dtype) == ((0, 3), np.float16)


@pytest.mark.parametrize(
    ("column", "kind"),
    [(torch.zeros(2), "Tensor"), ([{}, {}], "list"), (np.array([{}, {}], dtype=object), "objects")],
)
def test_only_arrays_of_numbers_or_text_are_compressed(column, kind):
    with pytest.raises(TypeError, match=rf"column 'infos' holds {kind}; only NumPy arrays"):
        SampleBatch(a=[1, 2], infos=column).compress(columns={"infos"})


def test_batches_of_several_policies_are_compressed_by_policy():
    batch = MultiAgentBatch({"p": observed(), "q": observed(2)}, 4)
    assert batch.compress(bulk=True) is batch
    assert all(is_compressed(batch[pid]["new_obs"]) for pid in "pq")
    assert batch.decompress_if_needed() is batch
    np.testing.assert_equal(dict(batch["q"]), dict(observed(2)))


def test_without_lz4_the_extra_is_named(monkeypatch):
    frame = pack(1)
    for module in [name for name in sys.modules if name.partition(".")[0] == "lz4"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "lz4", None)
    for attempt in (lambda: pack(1), lambda: unpack(frame), lambda: observed().compress()):
        with pytest.raises(ImportError, match=r'lz4.frame is needed to compress columns: pip install "swath\[lz4\]"'):
            attempt()
    assert plain(unpack(np.arange(2))) == [0, 1]
    assert plain(observed().decompress_if_needed()["rewards"]) == [0, 1, 2, 3]
