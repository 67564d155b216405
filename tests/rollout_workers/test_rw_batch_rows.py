"""Parts of a SampleBatch: slices, single rows, time slices, episodes; rows in another order, and padded."""

import numpy as np
import pytest
import torch
from batch_toys import episodes, plain, sequences
from hypothesis import given
from hypothesis import strategies as st

from swath.rollout_workers import SampleBatch, ViewRequirement

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=6)
BOUND = st.none() | st.integers(-12, 12)


def numbered(lengths, padded_to=None):
    """Rows 0, 1, … in sequences; `state_in_0` is the number of its first row, `state_out_0` that of the next."""
    n = sum(lengths)
    starts = np.cumsum([0, *lengths[:-1]])
    batch = SampleBatch(a=np.arange(n), state_in_0=starts, state_out_0=np.arange(n) + 1, seq_lens=lengths)
    return batch if padded_to is None else batch.right_zero_pad(padded_to)


def of_all_kinds():
    batch = episodes()
    batch["tensor"], batch["objects"], batch["c"] = torch.arange(5), np.array(list("abcde"), dtype=object), 3
    return batch


class TestSlices:
    @given(start=BOUND, stop=BOUND)
    def test_have_pythons_bounds(self, start, stop):
        batch = episodes()
        part = batch[start:stop]
        assert plain(part["infos"]) == batch["infos"][start:stop]
        assert plain(part["rewards"]) == plain(batch["rewards"])[start:stop]
        assert plain(part["obs"]["y"][1]) == plain(batch["obs"]["y"][1])[start:stop]
        assert len(part) == len(range(5)[start:stop])

    @pytest.mark.parametrize("cut", [lambda b: b[1:3], lambda b: b.slice(1, 3)])
    def test_are_views_and_keep_what_is_known_of_the_batch(self, cut):
        batch = of_all_kinds()
        part = cut(batch)
        part["rewards"][0], part["obs"]["y"][1][0], part["tensor"][0] = 100, 200, 300
        assert (batch["rewards"][1], plain(batch["obs"]["y"][1][1]), batch["tensor"][1]) == (100, [200, 200], 300)
        for made in (part, batch[0:0], *batch.timeslices(2), *batch.split_by_episode()):
            assert (made.num_grad_updates, made.is_training) == (2, True)
        with pytest.raises(ValueError, match=r"step 2 of a slice of a batch must be 1"):
            batch[::2]

    @pytest.mark.parametrize(
        ("bounds", "rows", "states"),
        [
            (slice(None, 3), [10, 11], [0.0]),  # the cut falls into the second sequence
            (slice(0, 5), [10, 11, 12, 13, 14], [0.0, 2.0]),
            (slice(3, 6), [12, 13, 14, 15], [2.0, 5.0]),
            (slice(None, 50), [10, 11, 12, 13, 14, 15], [0.0, 2.0, 5.0]),
            (slice(-1, None), [15], [5.0]),
            (slice(-2, None), [12, 13, 14, 15], [2.0, 5.0]),
            (slice(0, 1), [], []),
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
        assert (part.count, part.zero_padded, part.max_seq_len) == (len(rows), padded, batch.max_seq_len)
        assert [row["a"] for row in part.rows()] == [row["infos"]["row"] + 10 for row in part.rows()] == rows
        assert len(part["a"]) == (4 * len(states) if padded else len(rows))


class TestExactSlices:
    @pytest.mark.parametrize(
        ("bounds", "rows", "seq_lens", "states"),
        [
            ((0, 3), [0, 1, 2], [2, 1], [0, 2]),
            ((1, 4), [1, 2, 3], [1, 2], [1, 2]),
            ((5, 99), [5], [1], [5]),
            ((4, 2), [], [], []),
            ((-2, 3), [0, 0, 0, 1, 2], [4, 1], [0, 2]),
            ((-2, 0), [0, 0], [2], [0]),
            ((0, 3, 0, 2), [0, 1, 2], [2, 1], [0, 2]),
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
        part = of_all_kinds().slice(*bounds)
        assert plain(part["tensor"]) == plain(part["rewards"]) == [row or 0 for row in rows]
        assert plain(part["obs"]["y"][1]) == [[0, 0] if row is None else [2 * row, 2 * row + 1] for row in rows]
        assert part["infos"] == [None if row is None else {"row": row} for row in rows]
        assert plain(part["objects"]) == [None if row is None else "abcde"[row] for row in rows]
        assert part["rewards"].dtype == np.float32

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((0, 3, 0, None), r"rows 0 to 3 are from sequences 0 to 2, not \(0, None\)"),
            ((0, 4, 0, 1), r"rows 0 to 4 are from sequences 0 to 2, not \(0, 1\)"),
            ((-3, -1), r"end=-1 must be at least 0"),
            ((0.5, 2), r"start=0.5 is of type float"),
        ],
    )
    def test_that_make_no_sense_are_refused(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            sequences().slice(*arguments)
        padded = numbered([2, 3, 1], 4)
        padded["eps_id"] = np.zeros(12, dtype=int)
        for cut in (lambda: padded.slice(0, 2), padded.split_by_episode):
            with pytest.raises(ValueError, match=r"of padded sequences only whole ones can be taken"):
                cut()

    @given(lengths=LENGTHS, start=st.integers(-3, 20), end=st.integers(0, 20))
    def test_have_these_rows_whatever_the_sequences(self, lengths, start, end):
        part = numbered(lengths).slice(start, end)
        assert plain(part["a"]) == [0] * max(-start, 0) + list(range(sum(lengths)))[max(start, 0) : end]
        assert part.count == len(part["a"])
        if start >= 0:
            firsts = np.cumsum([0, *plain(part["seq_lens"])])[:-1]
            assert plain(part["state_in_0"]) == plain(part["a"][firsts])


def test_rows_are_dicts():
    batch = episodes()
    batch["c"] = 5
    rows = list(batch.rows())
    assert len(rows) == 5
    assert plain(rows[2]) == {
        "obs": {"x": 2.0, "y": (2, [4, 5])}, "rewards": 2.0, "terminateds": True, "truncateds": False, "eps_id": 7,
        "infos": {"row": 2}, "c": 5,
    }  # fmt: skip


@pytest.mark.parametrize("padded_to", [None, 4])
def test_rows_of_sequences_are_sequences_of_one_row(padded_to):
    rows = [plain(row) for row in numbered([2, 3, 1], padded_to).rows()]
    assert [row["a"] for row in rows] == [row["state_in_0"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert {row["seq_lens"] for row in rows} == {1}


class TestTimeSlices:
    @pytest.mark.parametrize(
        ("how", "sizes"),
        [
            ({"size": 2}, [2, 2, 1]),
            ({"k": 2}, [2, 2, 1]),
            ({"size": 9}, [5]),
            ({"num_slices": 2}, [2, 3]),
            ({"num_slices": 3}, [1, 2, 2]),
            ({"num_slices": 7}, [0, 1, 1, 0, 1, 1, 1]),
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
    def test_are_runs_of_an_id_or_end_with_dones(self, key, flags):
        batch = SampleBatch({"a": np.arange(6), "eps_id": [4, 4, 4, 4, 1, 1], **flags})
        assert [plain(part["a"]) for part in batch.split_by_episode(key)] == [[0, 1, 2, 3], [4, 5]]
        del batch["eps_id"]
        assert [plain(part["a"]) for part in batch.split_by_episode()] == [[0, 1, 2, 3], [4, 5]]

    def test_within_sequences_cut_them(self):
        batch = numbered([2, 3, 1])
        batch["eps_id"] = [0, 0, 0, 1, 1, 1]
        parts = batch.split_by_episode()
        assert [plain(part["a"]) for part in parts] == [[0, 1, 2], [3, 4, 5]]
        assert [plain(part["seq_lens"]) for part in parts] == [[2, 1], [2, 1]]
        assert [plain(part["state_in_0"]) for part in parts] == [[0, 2], [3, 5]]

    def test_need_a_column(self):
        for columns, key in (({"eps_id": [0, 1]}, "dones"), ({}, None), ({}, "eps_id")):
            with pytest.raises(KeyError, match=key or "dones"):
                SampleBatch(a=[1, 2], **columns).split_by_episode(key)
        with pytest.raises(ValueError, match="splits by one of"):
            SampleBatch(t=[1, 2]).split_by_episode("t")


class TestShuffling:
    def test_moves_all_columns_alike_and_leaves_other_batches_of_the_same_arrays_alone(self):
        batch = of_all_kinds()
        view, shallow = batch[1:], batch.copy(shallow=True)
        assert batch.shuffle(np.random.default_rng(1)) is batch
        order = plain(batch["rewards"])
        assert order != sorted(order) == [0, 1, 2, 3, 4]
        assert [info["row"] for info in batch["infos"]] == plain(batch["tensor"]) == order
        assert plain(batch["obs"]["y"][1][:, 0]) == [2 * row for row in order]
        assert plain(batch["objects"]) == ["abcde"[int(row)] for row in order]
        assert batch["c"] == 3
        assert (plain(view["rewards"]), plain(shallow["rewards"])) == ([1, 2, 3, 4], [0, 1, 2, 3, 4])
        assert len(SampleBatch(a=np.zeros(0)).shuffle()) == 0

    def test_draws_from_the_state_that_users_seed_unless_it_is_given_a_generator(self):
        np.random.seed(3)
        order = plain(episodes().shuffle()["rewards"])
        assert order == [float(row) for row in np.random.RandomState(3).permutation(5)]
        state = np.random.get_state()[2]
        episodes().shuffle(np.random.default_rng(1))
        assert np.random.get_state()[2] == state

    def test_keeps_padded_sequences_together_and_refuses_others(self):
        batch = sequences().right_zero_pad(4)
        batch.shuffle(np.random.default_rng(0))
        states = plain(batch["state_in_0"])
        assert states != [0, 2, 5]
        lengths, firsts = {0.0: 2, 2.0: 3, 5.0: 1}, {0.0: 10, 2.0: 12, 5.0: 15}
        assert plain(batch["seq_lens"]) == [lengths[state] for state in states]
        for row, state in zip(batch["a"].reshape(3, 4), states, strict=True):
            assert plain(row) == [firsts[state] + i if i < lengths[state] else 0 for i in range(4)]
        assert [row["infos"]["row"] + 10 for row in batch.rows()] == [row["a"] for row in batch.rows()]
        with pytest.raises(ValueError, match=r"rows of sequences cannot be shuffled; after right_zero_pad\(\)"):
            sequences().shuffle()


class TestPadding:
    @pytest.mark.parametrize("kind", ["arrays", "tensors"])
    def test_puts_zeros_behind_each_end(self, kind):
        batch = sequences()
        batch["objects"], batch["names"], batch["c"] = np.array(list("abcdef"), dtype=object), np.array(["x"] * 6), 3
        batch["half"] = np.ones(6, dtype=np.float16)
        batch = batch.to_device("cpu") if kind == "tensors" else batch
        given = batch["a"]
        assert batch.right_zero_pad(4) is batch
        rows = [0, 1, None, None, 2, 3, 4, None, 5, None, None, None]
        assert plain(batch["a"]) == [0 if row is None else 10 + row for row in rows]
        assert plain(batch["b"]) == {"c": [row or 0 for row in rows]}
        assert (plain(batch["state_in_0"]), plain(batch["seq_lens"])) == ([0, 2, 5], [2, 3, 1])
        assert plain(batch["objects"]) == [None if row is None else "abcdef"[row] for row in rows]
        assert plain(batch["names"]) == ["" if row is None else "x" for row in rows]
        assert [info and info["row"] for info in batch["infos"]] == rows
        assert batch["half"].dtype in (np.float16, torch.float16)
        assert (batch.zero_padded, batch.max_seq_len, batch.count, len(given)) == (True, 4, 6, 6)

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


def trajectory(**more):
    return SampleBatch(
        obs={"x": np.array([[0], [1], [2]])},
        new_obs={"x": np.array([[1], [2], [3]])},
        actions=(np.array([10, 11, 12]), np.array([20, 21, 22])),
        rewards=[0.5, 1.5, 2.5],
        state_in_0=[100.0, 102.0],
        state_out_0=[101.0, 102.0, 103.0],
        seq_lens=[2, 1],
        **more,
    )


VIEWS = {
    "obs": ViewRequirement(),
    "prev_actions": ViewRequirement(data_col="actions", shift=-1),
    "prev_rewards": ViewRequirement(data_col="rewards", shift=-1),
    "state_in_0": ViewRequirement(),
}
STEPS = {
    0: {"obs": {"x": [[0]]}, "prev_actions": ([0], [0]), "prev_rewards": [0], "state_in_0": [100]},
    1: {"obs": {"x": [[1]]}, "prev_actions": ([10], [20]), "prev_rewards": [0.5], "state_in_0": [101]},
    2: {"obs": {"x": [[2]]}, "prev_actions": ([11], [21]), "prev_rewards": [1.5], "state_in_0": [102]},
    "last": {"obs": {"x": [[3]]}, "prev_actions": ([12], [22]), "prev_rewards": [2.5], "state_in_0": [103]},
}


@pytest.mark.parametrize("views", [None, VIEWS, {name: ViewRequirement() for name in VIEWS}])
@pytest.mark.parametrize("index", [*STEPS, -1, -3])
@pytest.mark.parametrize("padded", [False, True])
def test_an_input_is_what_a_policy_saw_before_acting(views, index, padded):
    batch = trajectory().right_zero_pad(3) if padded else trajectory()
    made = batch.get_single_step_input_dict(views, index)
    step = STEPS[index % 3 if index != "last" else index]
    assert plain(made) == {**step, "seq_lens": [1]}
    assert (type(made), len(made), made.zero_padded) == (SampleBatch, 1, False)


@pytest.mark.parametrize(
    ("views", "index", "expected"),
    [
        ({"prev_rewards": {}}, 0, {"prev_rewards": [7]}),  # a column that is there is preferred to a shifted one
        ({"prev_rewards": {}}, "last", {"prev_rewards": [2.5]}),
        ({"infos": {}, "new_obs": {}}, "last", {"infos": [{"row": 2}], "new_obs": {"x": [[3]]}}),
        ({"obs": {}, "rewards": {"used_for_compute_actions": False}}, 0, {"obs": {"x": [[0]]}}),
    ],
)
def test_other_columns_are_given_where_they_are_wanted(views, index, expected):
    batch = trajectory(prev_rewards=[7.0, 8.0, 9.0], infos=[{"row": i} for i in range(3)])
    made = batch.get_single_step_input_dict({name: ViewRequirement(**said) for name, said in views.items()}, index)
    assert plain(made) == {**expected, "seq_lens": [1]}


def test_what_a_batch_has_not_is_left_out_by_default():
    batch = SampleBatch(obs=[1, 2], new_obs=[2, 3], rewards=[0.5, 1.5])
    assert plain(batch.get_single_step_input_dict()) == {"obs": [3], "prev_rewards": [1.5], "seq_lens": [1]}


@pytest.mark.parametrize(
    ("views", "index", "error", "message"),
    [
        (None, 3, IndexError, "out of range"),
        (None, -4, IndexError, "out of range"),
        ({"a": ViewRequirement("obs", shift=-2)}, "last", ValueError, "shift=-2"),
        ({"a": ViewRequirement()}, "last", KeyError, "no column 'a'; there are obs, new_obs"),
        ({"state_in_1": ViewRequirement()}, "last", KeyError, "no column 'state_out_1'"),
        ({"obs": ViewRequirement(batch_repeat_value=20)}, 0, ValueError, "columns have one value per row"),
        ({"obs": ViewRequirement(index=0)}, 0, ValueError, "columns have one value per row"),
    ],
)
def test_what_cannot_be_seen_is_refused(views, index, error, message):
    with pytest.raises(error, match=message):
        trajectory().get_single_step_input_dict(views, index)
