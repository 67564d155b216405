"""SampleBatch: rows in random order, and sequences padded to one length."""

import numpy as np
import pytest
import torch
from batch_toys import episodes, plain, sequences

from swath.rollout_workers import SampleBatch


class TestShuffling:
    def test_moves_all_columns_alike(self):
        batch = episodes()
        batch["tensor"], batch["objects"], batch["c"] = torch.arange(5), np.array(list("abcde"), dtype=object), 3
        assert batch.shuffle(np.random.default_rng(1)) is batch
        order = plain(batch["rewards"])
        assert order != sorted(order)
        assert sorted(order) == [0, 1, 2, 3, 4]
        assert [info["row"] for info in batch["infos"]] == plain(batch["tensor"]) == order
        assert plain(batch["obs"]["y"][1][:, 0]) == [2 * row for row in order]
        assert plain(batch["objects"]) == ["abcde"[int(row)] for row in order]
        assert batch["c"] == 3

    def test_leaves_other_batches_of_the_same_arrays_alone(self):
        batch = episodes()
        view, shallow = batch[1:], batch.copy(shallow=True)
        batch.shuffle(np.random.default_rng(1))
        assert (plain(view["rewards"]), plain(shallow["rewards"])) == ([1, 2, 3, 4], [0, 1, 2, 3, 4])

    def test_draws_from_the_state_that_users_seed_unless_it_is_given_a_generator(self):
        orders = []
        for _ in range(2):
            np.random.seed(3)
            orders.append(plain(episodes().shuffle()["rewards"]))
            state = np.random.get_state()[2]
            episodes().shuffle(np.random.default_rng(1))
            assert np.random.get_state()[2] == state
        assert orders[0] == orders[1] == [float(row) for row in np.random.RandomState(3).permutation(5)]

    def test_keeps_padded_sequences_together(self):
        batch = sequences().right_zero_pad(4)
        batch.shuffle(np.random.default_rng(0))
        states = plain(batch["state_in_0"])
        assert states != [0, 2, 5]
        lengths, firsts = {0.0: 2, 2.0: 3, 5.0: 1}, {0.0: 10, 2.0: 12, 5.0: 15}
        assert plain(batch["seq_lens"]) == [lengths[state] for state in states]
        for row, state in zip(batch["a"].reshape(3, 4), states, strict=True):
            assert plain(row) == [firsts[state] + i if i < lengths[state] else 0 for i in range(4)]
        assert [row["infos"]["row"] + 10 for row in batch.rows()] == [row["a"] for row in batch.rows()]

    def test_of_sequences_without_padding_is_refused(self):
        batch = sequences()
        with pytest.raises(ValueError, match=r"rows of sequences cannot be shuffled; after right_zero_pad\(\)"):
            batch.shuffle()
        assert plain(batch) == plain(sequences())

    def test_of_nothing_is_nothing(self):
        assert len(SampleBatch(a=np.zeros(0)).shuffle()) == 0


class TestPadding:
    @pytest.mark.parametrize("kind", ["arrays", "tensors"])
    def test_puts_zeros_behind_each_end(self, kind):
        batch = sequences()
        batch["objects"], batch["c"] = np.array(list("abcdef"), dtype=object), 3
        batch = batch.to_device("cpu") if kind == "tensors" else batch
        assert batch.right_zero_pad(4) is batch
        assert plain(batch["a"]) == [10, 11, 0, 0, 12, 13, 14, 0, 15, 0, 0, 0]
        assert plain(batch["b"]) == {"c": [0, 1, 0, 0, 2, 3, 4, 0, 5, 0, 0, 0]}
        assert plain(batch["state_in_0"]) == [0, 2, 5]
        assert plain(batch["seq_lens"]) == [2, 3, 1]
        assert plain(batch["objects"]) == ["a", "b", None, None, "c", "d", "e", None, "f", None, None, None]
        assert [info and info["row"] for info in batch["infos"]] == [
            0,
            1,
            None,
            None,
            2,
            3,
            4,
            None,
            5,
            None,
            None,
            None,
        ]
        assert (batch.zero_padded, batch.max_seq_len, batch.count) == (True, 4, 6)

    def test_keeps_dtypes_and_leaves_the_given_arrays_alone(self):
        a = np.array([1.5, 2.5], dtype=np.float16)
        batch = SampleBatch(a=a, names=np.array(["x", "yy"]), seq_lens=[1, 1]).right_zero_pad(2)
        assert (plain(batch["a"]), batch["a"].dtype) == ([1.5, 0, 2.5, 0], np.float16)
        assert plain(batch["names"]) == ["x", "", "yy", ""]
        assert plain(a) == [1.5, 2.5]

    def test_once_done_changes_nothing(self):
        batch = sequences().right_zero_pad(4)
        assert plain(batch.right_zero_pad(4)["a"]) == plain(sequences().right_zero_pad(4)["a"])
        with pytest.raises(ValueError, match=r"padded to 4 already; pad the batch they are from to 5"):
            batch.right_zero_pad(5)

    @pytest.mark.parametrize(
        ("batch", "width", "message"),
        [
            (SampleBatch(a=[1]), 4, r"right_zero_pad\(\) needs 'seq_lens'; this batch has only \['a'\]"),
            (sequences(), 2, r"max_seq_len=2, but there is a sequence of 3 rows; use at least that"),
            (sequences(), 0, r"max_seq_len=0 must be at least 1"),
        ],
    )
    def test_that_cannot_be_done_is_refused_and_changes_nothing(self, batch, width, message):
        before = plain(batch)
        with pytest.raises(ValueError, match=message):
            batch.right_zero_pad(width)
        assert (plain(batch), batch.zero_padded) == (before, False)
