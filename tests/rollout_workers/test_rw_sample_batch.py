"""SampleBatch: what it stores, counts and pickles; slices, rows, episodes; rows in another order, and padded."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rw_toys import episodes, plain, sequences

from swath.rollout_workers import SampleBatch, ViewRequirement, attempt_count_timesteps

STATES = {name: {"a": [[[1], [2]], [[3], [4]]]} for name in ("state_in_0", "state_out_0")}
DEEP = {"a": np.zeros((3, 1)), "b": np.zeros((3, 2))}
COUNTS = {
    "nothing": ({}, 0),
    "a nested column": ({"obs": {"a": {"b": np.zeros((3, 1))}, "c": np.zeros((3, 1))}}, 3),
    "infos and states only": ({"infos": DEEP, **STATES}, 0),
    "states, a number, an empty column first": ({**STATES, "c": True, "d": np.zeros(0), "obs": DEEP}, 3),
    "uneven columns": ({"a": np.zeros(3), "b": np.zeros(2)}, 3),
    "sequences": ({"obs": DEEP, "seq_lens": np.array([[1], [2], [3]])}, 6),
    "no sequences": ({"obs": DEEP, "seq_lens": []}, 3),
}
KNOWN = {"time_major": True, "max_seq_len": 4, "zero_padded": True, "num_grad_updates": 2.5, "is_training": True}


@pytest.mark.parametrize("name", COUNTS)
def test_rows_are_counted_by_sequences_or_the_first_column_that_can_be(name):
    columns, count = COUNTS[name]
    assert attempt_count_timesteps(copy.deepcopy(columns)) == count
    batch = SampleBatch(columns)
    assert (batch.count, len(batch), batch.agent_steps(), batch.env_steps()) == (count, count, count, count)


def test_lists_and_numbers_become_arrays_and_other_values_stay_unchanged():
    lists = {"a": [1, 2], "b": 3, "c": {"d": ([1, 2], 3.5)}}
    stored = {"a": np.array([1, 2]), "b": np.array(3), "c": {"d": (np.array([1, 2]), np.array(3.5))}}
    updated, set_ = SampleBatch(), SampleBatch()
    updated.update(**lists)
    for name, column in lists.items():
        set_[name] = column
    for result in (SampleBatch(lists), SampleBatch(**lists), updated, set_):
        np.testing.assert_equal(dict(result), stored)
    columns = {"a": np.zeros(2), "b": torch.zeros(2), "infos": [{"a": 1}, {}], "e": None, "f": "text"}
    batch = SampleBatch(columns)
    assert all(batch[name] is column for name, column in columns.items())
    assert SampleBatch(a=np.zeros(3), b={"c": torch.zeros(5)}, seq_lens=[1, 2]).size_bytes() == 24 + 20 + 8
    for attempt in (lambda: batch["z"], lambda: batch.__delitem__("z"), lambda: batch.columns(["a", "z"])):
        with pytest.raises(KeyError, match="z"):
            attempt()


FLAGS = [
    ({"terminateds": [0, 1, 0], "truncateds": [0, 0, 1]}, [False, True, True]),
    ({"terminateds": np.array([0, 1, 0])}, [False, True, False]),
    ({"terminateds": torch.tensor([0, 1]), "truncateds": np.array([1, 0])}, [True, True]),
]


@pytest.mark.parametrize(("columns", "dones"), FLAGS)
def test_dones_are_computed_cannot_be_set_and_may_be_missing(columns, dones):
    batch, without = SampleBatch(columns), SampleBatch(a=[1])
    assert plain(batch["dones"]) == plain(batch.get("dones")) == dones
    assert "dones" not in batch
    for attempt in (lambda: batch.__setitem__("dones", [True]), lambda: SampleBatch({"dones": [True]})):
        with pytest.raises(KeyError, match=r"it is computed; set 'terminateds' and 'truncateds'"):
            attempt()
    with pytest.raises(KeyError, match=r"neither 'terminateds' nor 'truncateds', but \['a'\]"):
        without["dones"]
    assert without.get("dones", 5) == 5


def test_env_steps_of_several_agents_are_kept_by_copies_added_up_and_lost_by_slicing():
    batch = SampleBatch(a=[1, 2, 3, 4], terminateds=[0, 1, 0, 0])
    batch.shared_env_steps = 2
    assert (batch.env_steps(), batch.agent_steps(), batch.count) == (2, 4, 4)
    assert batch.copy().env_steps() == batch.copy(shallow=True).env_steps() == batch.as_multi_agent().env_steps() == 2
    assert pickle.loads(pickle.dumps(batch)).env_steps() == 2
    assert batch.concat(batch).env_steps() == 4
    assert batch.concat(SampleBatch(a=[1], terminateds=[0])).env_steps() == 3
    assert [part.env_steps() for part in (batch[:3], batch.slice(0, 3), *batch.timeslices(3))] == [3, 3, 3, 1]


UNEVEN = {
    "a nested column": (SampleBatch(a=[1, 2, 3], b={"c": ([1], [1, 2, 3])}), r"a: 3, b/c/0: 1, b/c/1: 3"),
    "states without sequences": (SampleBatch(a=[1, 2, 3], state_in_0=[1.0]), r"a: 3, state_in_0: 1"),
    "sequences": (SampleBatch(a=[1, 2, 3], seq_lens=[2, 2]), r"a: 3; .* as its 2 sequences have"),
    "states": (SampleBatch(a=[1, 2, 3], state_in_0=[0.0], seq_lens=[2, 1]), r"a: 3, state_in_0: 1; .* 2 sequences"),
}
ON_ROWS = (
    *(lambda b: b[:1], lambda b: b.slice(0, 1), lambda b: list(b.rows()), lambda b: b.shuffle()),
    *(lambda b: b.split_by_episode("dones"), lambda b: b.timeslices(1), lambda b: b.copy().right_zero_pad(5)),
    *(lambda b: b.concat(b), lambda b: b.to_tensordict(), lambda b: b.get_single_step_input_dict({})),
)


@pytest.mark.parametrize("name", UNEVEN)
def test_columns_that_do_not_fit_are_refused_with_names_and_lengths(name):
    batch, message = UNEVEN[name]
    with pytest.raises(ValueError, match=message):
        batch.check_lengths()
    batch = batch.with_columns({**batch, "terminateds": np.zeros(len(batch["a"]))})
    for act in ON_ROWS:
        with pytest.raises(ValueError, match="columns of different lengths"):
            act(batch)


def test_copies_and_pickles_are_the_same_batch_and_only_shallow_ones_share_arrays():
    columns = {**sequences(), "tensor": torch.arange(6)}
    batch = SampleBatch(columns, **{f"_{name}": value for name, value in KNOWN.items()})
    deep, shallow, sent = batch.copy(), batch.copy(shallow=True), pickle.loads(pickle.dumps(batch, protocol=2))
    for clone in (deep, shallow, sent):
        kept = {name: getattr(clone, name) for name in KNOWN}
        assert (type(clone), plain(clone), kept) == (SampleBatch, plain(batch), KNOWN)
        assert list(clone) == list(batch)
    for name in ("a", "tensor"):
        assert shallow[name] is batch[name]
        deep[name][0] = 99
        assert batch[name][0] != 99


@pytest.mark.parametrize("column", ["terminateds", "truncateds"])
@pytest.mark.parametrize(
    ("dones", "single", "ended"),
    [((0, 0, 0), True, False), ((0, 0, 1), True, True), ((0, 1, 0), False, False), ((1, 0, 1), False, True)],
)
def test_a_single_trajectory_is_not_done_before_its_end(column, dones, single, ended):
    batch = SampleBatch({column: np.array(dones, dtype=bool), "seq_lens": [2, 1]})
    for result in (batch[:], batch.right_zero_pad(4)):
        assert (result.is_single_trajectory(), result.is_terminated_or_truncated()) == (single, ended)


def test_pickles_hold_arrays_out_of_band():
    batch, buffers = SampleBatch(whole=np.zeros((1000, 4)), part=np.zeros((2000, 4))[::2]), []
    frame = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    assert (len(frame) < 2000, sum(len(buffer.raw()) for buffer in buffers)) == (True, 8 * 8000)
    assert np.shares_memory(pickle.loads(frame, buffers=buffers)["whole"], batch["whole"])


def test_columns_become_tensors_in_place_in_the_same_memory_where_it_can_be_written():
    infos, text, fixed = [{"a": 1}], np.array(["x"]), np.zeros(1, dtype=np.float32)
    fixed.flags.writeable = False
    nest = {"c": (np.array([4.5]), torch.tensor([3.0]).double(), 1)}
    columns = {"a": [1], "b": nest, "fixed": fixed, "own": np.zeros(1, np.float32), "text": text, "infos": infos}
    batch = SampleBatch(columns)
    array = batch["own"]
    assert batch.to_device("cpu") is batch
    kinds = [torch.int64, torch.float32, torch.float32, torch.int64]
    assert [leaf.dtype for leaf in (batch["a"], *batch["b"]["c"])] == kinds
    assert (batch["text"] is text, batch["infos"] is infos) == (True, True)
    batch["own"][0] = batch["fixed"][0] = 5
    assert (plain(array), plain(fixed)) == ([5], [0])
    with pytest.raises(NotImplementedError, match=r"framework='tf' is not served; use 'torch'"):
        batch.to_device("cpu", framework="tf")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_columns_go_to_a_gpu_and_are_there_when_they_are_read():
    batch = SampleBatch(a=np.arange(1_000_000.0), b={"c": torch.ones(3, device="cuda")}, infos=[{}])
    batch.to_device("cuda", pin_memory=True)
    assert batch["a"].is_cuda
    assert (float(batch["a"].double().sum()), float(batch["b"]["c"].sum())) == (499_999_500_000.0, 3.0)


LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=6)
BOUND = st.none() | st.integers(-12, 12)


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

    def test_are_views_and_keep_the_attributes_of_the_batch(self):
        batch = of_all_kinds()
        part = batch[1:3]
        part["rewards"][0], part["obs"]["y"][1][0], part["tensor"][0] = 100, 200, 300
        assert (batch["rewards"][1], plain(batch["obs"]["y"][1][1]), batch["tensor"][1]) == (100, [200, 200], 300)
        for piece in (part, batch[0:0], *batch.timeslices(2), *batch.split_by_episode()):
            assert (piece.num_grad_updates, piece.is_training) == (2, True)
        with pytest.raises(ValueError, match=r"step 2 of a slice of a batch must be 1"):
            batch[::2]

    @pytest.mark.parametrize(
        ("bounds", "rows", "states"),
        [
            (slice(None, 3), [0, 1], [0]),  # the cut falls into the second sequence
            (slice(0, 5), [0, 1, 2, 3, 4], [0, 2]),
            (slice(3, 6), [2, 3, 4, 5], [2, 5]),
            (slice(-2, None), [2, 3, 4, 5], [2, 5]),
        ],
    )
    @pytest.mark.parametrize("padded", [False, True])
    def test_of_sequences_snap_down_to_their_starts(self, bounds, rows, states, padded):
        batch = sequences(padded_to=4 if padded else None)
        del batch["state_out_0"]
        part, lengths = batch[bounds], {0: 2, 2: 3, 5: 1}
        assert plain(part["state_in_0"]) == states
        assert plain(part["seq_lens"]) == [lengths[state] for state in states]
        assert (part.count, part.zero_padded, part.max_seq_len) == (len(rows), padded, batch.max_seq_len)
        assert [row["a"] for row in part.rows()] == [row["infos"]["row"] for row in part.rows()] == rows
        assert len(part["a"]) == (4 * len(states) if padded else len(rows))


class TestExactSlices:
    @pytest.mark.parametrize(
        ("bounds", "rows", "seq_lens", "states"),
        [
            ((0, 3), [0, 1, 2], [2, 1], [0, 2]),
            ((1, 4), [1, 2, 3], [1, 2], [1, 2]),
            ((4, 2), [], [], []),
            ((-2, 3), [0, 0, 0, 1, 2], [4, 1], [0, 2]),
            ((0, 3, 0, 2), [0, 1, 2], [2, 1], [0, 2]),
        ],
    )
    @pytest.mark.parametrize("kind", ["arrays", "tensors"])
    def test_fit_sequences_and_states(self, bounds, rows, seq_lens, states, kind):
        batch = sequences()
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


def test_rows_are_dicts_and_sequences_of_one_row():
    batch = episodes()
    batch["c"] = 5
    rows = list(batch.rows())
    assert len(rows) == 5
    assert plain(rows[2]) == {
        "obs": {"x": 2.0, "y": (2, [4, 5])}, "rewards": 2.0, "terminateds": True, "truncateds": False, "eps_id": 7,
        "infos": {"row": 2}, "c": 5,
    }  # fmt: skip

    for padded_to in (None, 4):
        rows = [plain(row) for row in sequences(padded_to=padded_to).rows()]
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
        batch = sequences(lengths, 5 if padded else None)
        parts = batch.timeslices(num_slices=size) if by_number else batch.timeslices(size)
        assert [int(n) for part in parts for n in part["seq_lens"]] == lengths
        assert [int(row["a"]) for part in parts for row in part.rows()] == list(range(sum(lengths)))
        assert all(part.count for part in parts)

    def test_that_make_no_sense_are_refused(self):
        for how in ({}, {"size": 2, "num_slices": 2}, {"k": -1}, {"num_slices": 0}):
            with pytest.raises(ValueError, match=r"takes one of|must be at least 1"):
                episodes().timeslices(**how)


@pytest.mark.parametrize("flags", [{"terminateds": [0, 0, 0, 1, 0, 0]}, {"truncateds": np.eye(6)[3] > 0}])
def test_episodes_are_runs_of_an_id_or_end_with_dones(flags):
    batch = SampleBatch({"a": np.arange(6), "eps_id": [4, 4, 4, 4, 1, 1], **flags})
    for key in (None, "eps_id", "dones"):
        assert [plain(part["a"]) for part in batch.split_by_episode(key)] == [[0, 1, 2, 3], [4, 5]]
    for key, error in ((None, KeyError), ("eps_id", KeyError), ("t", ValueError)):
        with pytest.raises(error, match=key or "dones"):
            SampleBatch(t=[1, 2]).split_by_episode(key)


class TestShuffling:
    def test_moves_all_columns_alike_and_leaves_other_batches_of_the_same_arrays_alone(self):
        batch = of_all_kinds()
        view, shallow = batch[1:], batch.copy(shallow=True)
        np.random.seed(1)
        assert batch.shuffle() is batch
        order = plain(batch["rewards"])
        assert order != sorted(order) == [0, 1, 2, 3, 4]
        assert [info["row"] for info in batch["infos"]] == plain(batch["tensor"]) == order
        assert plain(batch["obs"]["y"][1][:, 0]) == [2 * row for row in order]
        assert plain(batch["objects"]) == ["abcde"[int(row)] for row in order]
        assert batch["c"] == 3
        assert (plain(view["rewards"]), plain(shallow["rewards"])) == ([1, 2, 3, 4], [0, 1, 2, 3, 4])
        assert len(SampleBatch(a=np.zeros(0)).shuffle()) == 0

    def test_keeps_padded_sequences_together_and_refuses_others(self):
        batch, lengths = sequences(padded_to=4), {0: 2, 2: 3, 5: 1}
        np.random.seed(0)
        batch.shuffle()
        states = plain(batch["state_in_0"])
        assert states != [0, 2, 5]
        assert plain(batch["seq_lens"]) == [lengths[state] for state in states]
        for row, state in zip(batch["b"]["c"].reshape(3, 4), states, strict=True):
            assert plain(row) == [10 + state + i if i < lengths[state] else 0 for i in range(4)]
        assert [row["infos"]["row"] for row in batch.rows()] == [row["a"] for row in batch.rows()]
        with pytest.raises(ValueError, match=r"rows of sequences cannot be shuffled; after right_zero_pad\(\)"):
            sequences().shuffle()


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_padding_puts_zeros_behind_each_end(kind):
    batch = sequences()
    batch["objects"], batch["c"] = np.array(list("abcdef"), dtype=object), 3
    batch = batch.to_device("cpu") if kind == "tensors" else batch
    assert batch.right_zero_pad(4) is batch
    rows = [0, 1, None, None, 2, 3, 4, None, 5, None, None, None]
    assert plain(batch["a"]) == [row or 0 for row in rows]
    assert plain(batch["b"]) == {"c": [0 if row is None else 10 + row for row in rows]}
    assert (plain(batch["state_in_0"]), plain(batch["seq_lens"])) == ([0, 2, 5], [2, 3, 1])
    assert plain(batch["objects"]) == [None if row is None else "abcdef"[row] for row in rows]
    assert [info and info["row"] for info in batch["infos"]] == rows
    assert (batch.zero_padded, batch.max_seq_len, batch.count) == (True, 4, 6)
    with pytest.raises(ValueError, match=r"right_zero_pad\(\) needs 'seq_lens'"):
        SampleBatch(a=[1]).right_zero_pad(4)
    with pytest.raises(ValueError, match=r"there is a sequence of 3 rows"):
        sequences().right_zero_pad(2)


def trajectory():
    return SampleBatch(
        obs={"x": np.array([[0], [1], [2]])},
        new_obs={"x": np.array([[1], [2], [3]])},
        actions=(np.array([10, 11, 12]), np.array([20, 21, 22])),
        rewards=[0.5, 1.5, 2.5],
        state_in_0=[100.0, 102.0],
        state_out_0=[101.0, 102.0, 103.0],
        seq_lens=[2, 1],
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


@pytest.mark.parametrize("views", [None, VIEWS])
@pytest.mark.parametrize("index", [*STEPS, -1])
def test_an_input_equals_the_policys_input_before_acting(views, index):
    row = trajectory().get_single_step_input_dict(views, index)
    step = STEPS[index % 3 if index != "last" else index]
    assert plain(row) == {**step, "seq_lens": [1]}
    assert (type(row), len(row), row.zero_padded) == (SampleBatch, 1, False)


def test_missing_rows_and_other_steps_are_refused():
    with pytest.raises(IndexError, match="out of range"):
        trajectory().get_single_step_input_dict(None, 3)
    with pytest.raises(ValueError, match="shift=-2"):
        trajectory().get_single_step_input_dict({"a": ViewRequirement("obs", shift=-2)}, "last")


def test_rows_are_taken_as_numpy_takes_them():
    batch = SampleBatch({"obs": np.arange(4.0), "seq_lens": np.array([3, 1])})
    flat = SampleBatch({"obs": np.arange(4.0)})
    for columns in (batch, flat):
        assert columns.take(np.array([2, -1])).columns(["obs"])[0].tolist() == [2, 3]
        assert columns.take(np.array([True, False, False, True])).columns(["obs"])[0].tolist() == [0, 3]
        with pytest.raises(IndexError, match="4 is out of bounds"):
            columns.take(np.array([4]))
    assert batch.take(np.array([2, -1]))["seq_lens"].tolist() == [1, 1]
