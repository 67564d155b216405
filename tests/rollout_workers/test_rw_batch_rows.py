"""Parts of a SampleBatch: slices, exact slices, single rows, time slices, episodes."""

import numpy as np
import pytest
import torch
from batch_toys import episodes, plain, sequences
from hypothesis import given
from hypothesis import strategies as st

from swath.rollout_workers import SampleBatch

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=6)
BOUND = st.none() | st.integers(-12, 12)


def numbered(lengths, padded_to=None):
    """Rows 0, 1, … in sequences; `state_in_0` is the number of its first row, `state_out_0` that of the next."""
    n = sum(lengths)
    starts = np.cumsum([0, *lengths[:-1]])
    batch = SampleBatch(a=np.arange(n), state_in_0=starts, state_out_0=np.arange(n) + 1, seq_lens=lengths)
    return batch if padded_to is None else batch.right_zero_pad(padded_to)


class TestSlices:
    @given(start=BOUND, stop=BOUND)
    def test_have_pythons_bounds(self, start, stop):
        batch = episodes()
        part = batch[start:stop]
        assert plain(part["infos"]) == batch["infos"][start:stop]
        assert plain(part["rewards"]) == plain(batch["rewards"])[start:stop]
        assert plain(part["obs"]["y"][1]) == plain(batch["obs"]["y"][1])[start:stop]
        assert len(part) == len(range(5)[start:stop])

    def test_are_views(self):
        batch = episodes()
        batch["tensor"] = torch.zeros(5)
        part = batch[1:3]
        part["rewards"][0], part["obs"]["y"][1][0], part["tensor"][0] = 100, 200, 300
        assert (batch["rewards"][1], plain(batch["obs"]["y"][1][1]), batch["tensor"][1]) == (100, [200, 200], 300)

    @pytest.mark.parametrize(
        ("bounds", "rows", "states"),
        [
            (slice(None, 3), [10, 11], [0.0]),  # the cut falls into the second sequence
            (slice(0, 5), [10, 11, 12, 13, 14], [0.0, 2.0]),
            (slice(3, 6), [12, 13, 14, 15], [2.0, 5.0]),
            (slice(2, 5), [12, 13, 14], [2.0]),
            (slice(None, 50), [10, 11, 12, 13, 14, 15], [0.0, 2.0, 5.0]),
            (slice(None), [10, 11, 12, 13, 14, 15], [0.0, 2.0, 5.0]),
            (slice(-1, None), [15], [5.0]),
            (slice(-2, None), [12, 13, 14, 15], [2.0, 5.0]),
            (slice(0, 0), [], []),
            (slice(0, 1), [], []),
            (slice(3, 4), [], []),
            (slice(4, 2), [], []),
        ],
    )
    @pytest.mark.parametrize("padded", [False, True])
    def test_of_sequences_snap_down_to_their_starts(self, bounds, rows, states, padded):
        batch = sequences().right_zero_pad(4) if padded else sequences()
        part = batch[bounds]
        starts = {0.0: 2, 2.0: 3, 5.0: 1}
        assert plain(part["state_in_0"]) == states
        assert plain(part["seq_lens"]) == [starts[state] for state in states]
        assert (part.count, part.zero_padded) == (len(rows), padded)
        assert part.max_seq_len == batch.max_seq_len
        assert [row["a"] for row in part.rows()] == [row["infos"]["row"] + 10 for row in part.rows()] == rows
        assert plain(part["b"]["c"] if not padded else []) == [row - 10 for row in rows if not padded]
        assert len(part["a"]) == (4 * len(states) if padded else len(rows))

    def test_that_skip_rows_are_refused(self):
        with pytest.raises(ValueError, match=r"step 2 of a slice of a batch must be 1"):
            episodes()[::2]
        assert plain(episodes()[0:2:1]["rewards"]) == [0, 1]

    def test_keep_what_is_known_of_the_batch(self):
        batch = episodes()
        parts = [batch[1:3], batch[0:0], batch.slice(1, 3), *batch.timeslices(2), *batch.split_by_episode()]
        assert {(part.num_grad_updates, part.is_training) for part in parts} == {(2, True)}


class TestExactSlices:
    @pytest.mark.parametrize(
        ("bounds", "rows", "seq_lens", "states"),
        [
            ((0, 6), [0, 1, 2, 3, 4, 5], [2, 3, 1], [0, 2, 5]),
            ((0, 3), [0, 1, 2], [2, 1], [0, 2]),
            ((1, 4), [1, 2, 3], [1, 2], [1, 2]),
            ((3, 4), [3], [1], [3]),
            ((2, 5), [2, 3, 4], [3], [2]),
            ((5, 99), [5], [1], [5]),
            ((3, 3), [], [], []),
            ((4, 2), [], [], []),
            ((9, 12), [], [], []),
            ((-2, 3), [0, 0, 0, 1, 2], [4, 1], [0, 2]),
            ((-2, 0), [0, 0], [2], [0]),
        ],
    )
    @pytest.mark.parametrize("kind", ["arrays", "tensors"])
    def test_fit_sequences_and_states(self, bounds, rows, seq_lens, states, kind):
        batch = numbered([2, 3, 1])
        if kind == "tensors":
            batch.to_device("cpu")
        part = batch.slice(*bounds)
        assert (plain(part["a"]), plain(part["seq_lens"])) == (rows, seq_lens)
        assert plain(part["state_in_0"]) == states
        assert part["seq_lens"].dtype == batch["seq_lens"].dtype
        part.check_lengths()

    @pytest.mark.parametrize(
        ("bounds", "rows"), [((1, 3), [1, 2]), ((3, 99), [3, 4]), ((3, 1), []), ((-2, 2), [None, None, 0, 1])]
    )
    def test_without_sequences_put_zeros_in_front(self, bounds, rows):
        batch = episodes()
        batch["tensor"], batch["agent_id"] = torch.arange(5), np.array(list("abcde"), dtype=object)
        part = batch.slice(*bounds)
        assert plain(part["tensor"]) == plain(part["rewards"]) == [row or 0 for row in rows]
        assert plain(part["obs"]["y"][1]) == [[0, 0] if row is None else [2 * row, 2 * row + 1] for row in rows]
        assert part["infos"] == [None if row is None else {"row": row} for row in rows]
        assert plain(part["agent_id"]) == [None if row is None else "abcde"[row] for row in rows]
        assert part["rewards"].dtype == np.float32

    def test_are_views(self):
        batch = sequences()
        batch.slice(1, 4)["a"][0] = 99
        assert batch["a"][1] == 99

    @pytest.mark.parametrize(
        ("arguments", "seq_lens", "states"),
        [((0, 3, 0, 2), [2, 1], [0.0, 2.0]), ((2, 5, 1, 2), [3], [2.0]), ((2, 4, 1, 2), [2], [2.0])],
    )
    def test_may_be_told_the_sequences(self, arguments, seq_lens, states):
        part = sequences().slice(*arguments)
        assert (plain(part["seq_lens"]), plain(part["state_in_0"])) == (seq_lens, states)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((0, 3, 0, None), r"state_start=0 and state_end=None are given both or not at all"),
            ((0, 4, 0, 1), r"rows 0 to 4 are from sequences 0 to 2, not \(0, 1\)"),
            ((-3, -1), r"end=-1 must be at least 0"),
            ((0.5, 2), r"start=0.5 is of type float"),
        ],
    )
    def test_that_make_no_sense_are_refused(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            sequences().slice(*arguments)

    def test_of_padded_sequences_are_refused(self):
        with pytest.raises(ValueError, match=r"of padded sequences only whole ones can be taken"):
            sequences().right_zero_pad(4).slice(0, 2)

    @given(lengths=LENGTHS, start=st.integers(-3, 20), end=st.integers(0, 20))
    def test_have_these_rows_whatever_the_sequences(self, lengths, start, end):
        batch = numbered(lengths)
        part = batch.slice(start, end)
        assert plain(part["a"]) == [0] * max(-start, 0) + list(range(sum(lengths)))[max(start, 0) : end]
        assert part.count == len(part["a"])
        if start >= 0:
            firsts = np.cumsum([0, *plain(part["seq_lens"])])[:-1]
            assert plain(part["state_in_0"]) == plain(part["a"][firsts])


class TestRows:
    def test_are_dicts(self):
        batch = episodes()
        batch["c"] = 5
        rows = list(batch.rows())
        assert len(rows) == 5
        assert plain(rows[2]) == {
            "obs": {"x": 2.0, "y": (2, [4, 5])}, "rewards": 2.0, "terminateds": True, "truncateds": False, "eps_id": 7,
            "infos": {"row": 2}, "c": 5,
        }  # fmt: skip

    @pytest.mark.parametrize("padded_to", [None, 4])
    def test_of_sequences_are_sequences_of_one_row(self, padded_to):
        rows = [plain(row) for row in numbered([2, 3, 1], padded_to).rows()]
        assert [row["a"] for row in rows] == [0, 1, 2, 3, 4, 5]
        assert {row["seq_lens"] for row in rows} == {1}
        assert [row["state_in_0"] for row in rows] == [0, 1, 2, 3, 4, 5]


class TestTimeSlices:
    @pytest.mark.parametrize(
        ("how", "sizes"),
        [
            ({"size": 2}, [2, 2, 1]),
            ({"k": 2}, [2, 2, 1]),
            ({"size": 1}, [1, 1, 1, 1, 1]),
            ({"size": 5}, [5]),
            ({"size": 9}, [5]),
            ({"num_slices": 2}, [2, 3]),
            ({"num_slices": 3}, [1, 2, 2]),
            ({"num_slices": 5}, [1] * 5),
            ({"num_slices": 7}, [0, 0, 1, 1, 1, 1, 1]),
            ({"num_slices": 1}, [5]),
        ],
    )
    def test_hold_each_row_once(self, how, sizes):
        parts = episodes().timeslices(**how)
        assert list(map(len, parts)) == sizes
        assert [info["row"] for part in parts for info in part["infos"]] == [0, 1, 2, 3, 4]

    @given(lengths=LENGTHS, size=st.integers(1, 9), padded=st.booleans(), by_number=st.booleans())
    def test_of_sequences_hold_each_of_them_once_and_none_is_empty(self, lengths, size, padded, by_number):
        batch = numbered(lengths, 5 if padded else None)
        parts = batch.timeslices(num_slices=size) if by_number else batch.timeslices(size)
        assert [int(n) for part in parts for n in part["seq_lens"]] == lengths
        assert [int(row["a"]) for part in parts for row in part.rows()] == list(range(sum(lengths)))
        assert all(part.count for part in parts)

    @pytest.mark.parametrize(
        ("how", "message"),
        [
            ({}, r"takes one of size=None, num_slices=None, k=None"),
            ({"size": 2, "num_slices": 2}, r"takes one of size=2, num_slices=2, k=None"),
            ({"size": 0}, r"size=0 must be at least 1"),
            ({"k": -1}, r"size=-1 must be at least 1"),
            ({"num_slices": 0}, r"num_slices=0 must be at least 1"),
            ({"size": 1.5}, r"size=1.5 is of type float"),
        ],
    )
    def test_that_make_no_sense_are_refused(self, how, message):
        with pytest.raises(ValueError, match=message):
            episodes().timeslices(**how)


class TestEpisodes:
    @pytest.mark.parametrize("key", [None, "eps_id", "dones"])
    @pytest.mark.parametrize("flags", [{"terminateds": [0, 0, 0, 1, 0, 0]}, {"truncateds": np.eye(6)[3] > 0}])
    def test_are_told_apart_by_ids_or_dones(self, key, flags):
        batch = SampleBatch({"a": np.arange(6), "eps_id": [4, 4, 4, 4, 1, 1], **flags})
        assert [plain(part["a"]) for part in batch.split_by_episode(key)] == [[0, 1, 2, 3], [4, 5]]
        del batch["eps_id"]
        assert [plain(part["a"]) for part in batch.split_by_episode("dones")] == [[0, 1, 2, 3], [4, 5]]
        assert [plain(part["a"]) for part in batch.split_by_episode()] == [[0, 1, 2, 3], [4, 5]]

    def test_are_runs_of_an_id(self):
        batch = SampleBatch(eps_id=[5, 5, 2, 5])
        assert [plain(part["eps_id"]) for part in batch.split_by_episode()] == [[5, 5], [2], [5]]

    def test_within_sequences_cut_them(self):
        batch = numbered([2, 3, 1])
        batch["eps_id"] = [0, 0, 0, 1, 1, 1]
        parts = batch.split_by_episode()
        assert [plain(part["a"]) for part in parts] == [[0, 1, 2], [3, 4, 5]]
        assert [plain(part["seq_lens"]) for part in parts] == [[2, 1], [2, 1]]
        assert [plain(part["state_in_0"]) for part in parts] == [[0, 2], [3, 5]]

    @pytest.mark.parametrize("column", ["eps_id", "terminateds"])
    def test_are_told_apart_in_padded_sequences(self, column):
        batch = numbered([2, 3, 1])
        batch[column] = {"eps_id": [0, 0, 0, 0, 0, 1], "terminateds": [0, 0, 0, 0, 1, 0]}[column]
        parts = batch.right_zero_pad(4).split_by_episode()
        assert [plain(part["seq_lens"]) for part in parts] == [[2, 3], [1]]
        assert [len(part["a"]) for part in parts] == [8, 4]

    def test_that_end_in_the_middle_of_a_padded_sequence_cannot_be_cut(self):
        batch = numbered([2, 3])
        batch["eps_id"] = [0, 0, 0, 1, 1]
        with pytest.raises(ValueError, match=r"a padded sequence goes on over the end of an episode"):
            batch.right_zero_pad(3).split_by_episode()

    def test_cannot_be_told_apart_without_a_column(self):
        batch = SampleBatch(a=[1, 2], eps_id=[0, 1])
        with pytest.raises(KeyError, match="dones"):
            batch.split_by_episode("dones")
        del batch["eps_id"]
        for key in (None, "dones"):
            with pytest.raises(KeyError, match="dones"):
                batch.split_by_episode(key)
        with pytest.raises(KeyError, match="eps_id"):
            batch.split_by_episode("eps_id")
        with pytest.raises(ValueError, match=r"split_by_episode\(key='t'\)"):
            batch.split_by_episode("t")
