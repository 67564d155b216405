"""SampleBatch as a dict of columns: what it stores, shows, counts and pickles."""

import copy
import pickle

import numpy as np
import pytest
import torch
from batch_toys import episodes, plain, sequences

from swath.rollout_workers import SampleBatch, attempt_count_timesteps

STATES = {name: {"a": [[[1], [2]], [[3], [4]]]} for name in ("state_in_0", "state_out_0")}
DEEP = {"a": np.zeros((3, 1)), "b": np.zeros((3, 2))}
COUNTS = {
    "nothing": ({}, 0),
    "a list": ({"a": [1, 2]}, 2),
    "a tensor": ({"a": torch.zeros(4, 2)}, 4),
    "a nested column": ({"obs": {"a": {"b": np.zeros((3, 1))}, "c": np.zeros((3, 1))}}, 3),
    "a tuple": ({"obs": (np.zeros(2), np.zeros(2))}, 2),
    "one row of three": ({"obs": {"a": np.zeros((1, 3))}}, 1),
    "infos only": ({"infos": DEEP}, 0),
    "states only": (STATES, 0),
    "states first": ({**STATES, "obs": DEEP}, 3),
    "a number first": ({"c": True, "a": [1, 2, 3]}, 3),
    "an empty column first": ({"c": np.zeros(0), "a": [1, 2, 3]}, 3),
    "text first": ({"c": "text", "a": [1, 2, 3]}, 3),
    "an empty dict first": ({"c": {}, "a": [1, 2, 3]}, 3),
    "uneven columns": ({"a": np.zeros(3), "b": np.zeros(2)}, 3),
    "sequences": ({"obs": DEEP, "seq_lens": np.array([[1], [2], [3]])}, 6),
    "a list of sequences": ({"obs": DEEP, "seq_lens": [1, 5]}, 6),
    "sequences as a tensor": ({"seq_lens": torch.tensor([4, 1])}, 5),
    "no sequences": ({"obs": DEEP, "seq_lens": []}, 3),
}


@pytest.mark.parametrize("name", COUNTS)
def test_rows_are_counted_by_sequences_or_the_first_column_that_can_be(name):
    columns, count = COUNTS[name]
    assert attempt_count_timesteps(copy.deepcopy(columns)) == count
    batch = SampleBatch(columns)
    assert (batch.count, len(batch), batch.agent_steps(), batch.env_steps()) == (count, count, count, count)
    assert bool(batch) == (count > 0)


STORED = {
    "a list": ([1, 2], np.array([1, 2])),
    "rows of lists": ([[1.0, 2.0]], np.array([[1.0, 2.0]])),
    "a number": (3, np.array(3)),
    "a flag": (True, np.array(True)),
    "a nested list": ({"a": ([1, 2], 3)}, {"a": (np.array([1, 2]), np.array(3))}),
}


@pytest.mark.parametrize("how", ["made with", "by keyword", "set", "updated", "or", "default"])
@pytest.mark.parametrize("name", STORED)
def test_lists_and_numbers_become_arrays(name, how):
    given, stored = STORED[name]
    batch = SampleBatch({"x": given} if how == "made with" else {}, **({"x": given} if how == "by keyword" else {}))
    if how == "set":
        batch["x"] = given
    elif how == "updated":
        batch.update(x=given)
    elif how == "or":
        batch |= {"x": given}
    elif how == "default":
        assert plain(batch.setdefault("x", given)) == plain(stored)
    np.testing.assert_equal(dict(batch), {"x": stored})
    assert not isinstance(given, np.ndarray)


def test_infos_stay_what_they_are():
    infos = [{"a": 1}, {}]
    assert SampleBatch(infos=infos)["infos"] is infos


def test_arrays_tensors_and_nests_of_them_are_stored_as_they_are():
    columns = {"a": np.zeros(2), "b": torch.zeros(2), "c": {"d": (np.zeros(2),)}, "e": None, "f": "text"}
    batch = SampleBatch(columns)
    assert list(batch.items()) == list(columns.items())
    assert all(batch[name] is column for name, column in columns.items() if name != "c")
    assert batch["c"]["d"][0] is columns["c"]["d"][0]


def test_a_list_of_unequal_parts_is_refused_by_name():
    with pytest.raises(ValueError, match=r"column 'x' cannot become an array, its parts differ in shape"):
        SampleBatch(x=[[1, 2], [3]])


@pytest.mark.parametrize("seq_lens", [[2, 1], (2, 1), np.array([2, 1]), torch.tensor([2, 1])])
def test_the_longest_sequence_is_known(seq_lens):
    batch = SampleBatch(a=[1, 2, 3], seq_lens=seq_lens)
    assert batch.max_seq_len == 2
    assert plain(batch["seq_lens"]) == [2, 1]
    assert SampleBatch(a=[1, 2, 3], seq_lens=seq_lens, _max_seq_len=9).max_seq_len == 9
    if isinstance(seq_lens, list | tuple):
        assert batch["seq_lens"].dtype == np.int32


@pytest.mark.parametrize("seq_lens", [None, []])
def test_no_sequences_is_no_column(seq_lens):
    batch = SampleBatch(a=[1, 2, 3], seq_lens=seq_lens)
    assert list(batch) == ["a"]
    assert batch.max_seq_len is None


def test_what_is_said_of_a_batch_is_kept_apart_from_its_columns():
    batch = SampleBatch(
        {"a": [1]}, _time_major=True, _max_seq_len=4, _zero_padded=True, _is_training=True, _num_grad_updates=2.5
    )
    assert list(batch) == ["a"]
    said = (batch.time_major, batch.max_seq_len, batch.zero_padded, batch.is_training, batch.num_grad_updates)
    assert said == (True, 4, True, True, 2.5)


class TestDones:
    FLAGS = {
        "both": ({"terminateds": [0, 1, 0], "truncateds": [0, 0, 1]}, [False, True, True]),
        "terminateds": ({"terminateds": np.array([0, 1, 0])}, [False, True, False]),
        "truncateds": ({"truncateds": np.array([True, False, False])}, [True, False, False]),
        "tensors": ({"terminateds": torch.tensor([0, 1]), "truncateds": torch.tensor([1, 0])}, [True, True]),
        "a mixture": ({"terminateds": torch.tensor([0, 1]), "truncateds": np.array([1, 0])}, [True, True]),
    }

    @pytest.mark.parametrize("name", FLAGS)
    def test_are_computed(self, name):
        columns, dones = self.FLAGS[name]
        batch = SampleBatch(columns)
        assert plain(batch["dones"]) == plain(batch.get("dones")) == dones
        assert "dones" not in batch
        assert batch["dones"].dtype in (np.bool_, torch.bool)

    def test_cannot_be_written_into(self):
        batch = SampleBatch(terminateds=np.array([False, False]))
        with pytest.raises(ValueError, match="read-only"):
            batch["dones"][0] = True

    @pytest.mark.parametrize(
        "attempt",
        [
            lambda b: b.__setitem__("dones", [True]),
            lambda b: b.update(dones=[True]),
            lambda b: SampleBatch({"dones": [True]}),
            lambda b: SampleBatch(dones=[True]),
        ],
    )
    def test_cannot_be_set(self, attempt):
        with pytest.raises(KeyError, match=r"it is computed; set 'terminateds' and 'truncateds'"):
            attempt(SampleBatch(a=[1]))

    def test_of_a_batch_without_flags_are_missing(self):
        with pytest.raises(KeyError, match=r"neither 'terminateds' nor 'truncateds', but \['a'\]"):
            SampleBatch(a=[1])["dones"]
        assert SampleBatch(a=[1]).get("dones", 5) == 5


def test_a_column_that_is_not_there_cannot_be_read_or_deleted():
    batch = SampleBatch(a=[1])
    for attempt in (lambda: batch["b"], lambda: batch.__delitem__("b"), lambda: batch.columns(["a", "b"])):
        with pytest.raises(KeyError, match="b"):
            attempt()


class TestEnvSteps:
    def test_are_a_number_of_their_own_if_agents_shared_envs(self):
        batch = SampleBatch(a=[1, 2, 3, 4])
        batch.own_env_steps = 2
        assert (batch.env_steps(), batch.agent_steps(), batch.count) == (2, 4, 4)

    def test_are_kept_by_copies_added_up_and_lost_by_slicing(self):
        batch = SampleBatch(a=[1, 2, 3, 4], terminateds=[0, 1, 0, 0])
        batch.own_env_steps = 2
        assert batch.copy().env_steps() == batch.copy(shallow=True).env_steps() == 2
        assert pickle.loads(pickle.dumps(batch)).env_steps() == 2
        assert batch.concat(batch).env_steps() == 4
        assert batch.concat(SampleBatch(a=[1], terminateds=[0])).env_steps() == 3
        assert batch.as_multi_agent().env_steps() == 2
        assert [part.env_steps() for part in (batch[:3], batch.slice(0, 3), *batch.timeslices(3))] == [3, 3, 3, 1]
        batch.own_env_steps = None
        assert batch.env_steps() == 4


UNEVEN = {
    "two columns": (SampleBatch(a=[1, 2, 3], b=[1, 2]), r"different lengths: a: 3, b: 2"),
    "a nested one": (SampleBatch(a=[1, 2, 3], b={"c": ([1], [1, 2, 3])}), r"a: 3, b/c/0: 1, b/c/1: 3"),
    "infos": (SampleBatch(a=[1, 2, 3], infos=[{}]), r"a: 3, infos: 1"),
    "states without sequences": (SampleBatch(a=[1, 2, 3], state_in_0=[1.0]), r"a: 3, state_in_0: 1"),
    "sequences": (
        SampleBatch(a=[1, 2, 3], seq_lens=[2, 2]),
        r"a: 3; every column needs 4 rows, for 2 sequences",
    ),
    "states": (
        SampleBatch(a=[1, 2, 3], state_in_0=[0.0], seq_lens=[2, 1]),
        r"a: 3, state_in_0: 1; every column needs 3 rows, for 2",
    ),
    "padded": (
        SampleBatch(a=[1, 2, 3], seq_lens=[2, 1], _zero_padded=True, _max_seq_len=2),
        r"a: 3; every column needs 4 rows, for 2 sequences with",
    ),
}
ON_ROWS = {
    "check_lengths": lambda b: b.check_lengths(),
    "[:]": lambda b: b[:1],
    "slice": lambda b: b.slice(0, 1),
    "rows": lambda b: list(b.rows()),
    "shuffle": lambda b: b.shuffle(),
    "split_by_episode": lambda b: b.split_by_episode("dones"),
    "timeslices": lambda b: b.timeslices(1),
    "right_zero_pad": lambda b: b.copy().right_zero_pad(5),
    "concat": lambda b: b.concat(b),
    "to_tensordict": lambda b: b.to_tensordict(),
    "get_single_step_input_dict": lambda b: b.get_single_step_input_dict({}),
}


@pytest.mark.parametrize("operation", ON_ROWS)
@pytest.mark.parametrize("name", UNEVEN)
def test_columns_that_do_not_fit_are_refused_with_names_and_lengths(name, operation):
    batch, message = UNEVEN[name]
    if operation == "right_zero_pad" and "seq_lens" not in batch:
        message = "needs 'seq_lens'"
    with pytest.raises(ValueError, match=message):
        ON_ROWS[operation](batch)


@pytest.mark.parametrize("batch", [episodes(), sequences(), sequences().right_zero_pad(4), SampleBatch()])
def test_columns_that_fit_are_accepted(batch):
    batch.check_lengths()
    batch["number"], batch["nothing"], batch["text"] = 3, None, "text"
    batch.check_lengths()


@pytest.mark.parametrize("take", [lambda b: b[:1], lambda b: b.shuffle(), lambda b: list(b.rows())])
def test_time_major_sequences_cannot_be_taken_apart(take):
    batch = SampleBatch(a=np.zeros((3, 2)), seq_lens=[3, 1], _time_major=True)
    batch.check_lengths()
    with pytest.raises(ValueError, match=r"are \[T, B, …\] \(time_major\)"):
        take(batch)


class TestCopies:
    @pytest.mark.parametrize("make", [episodes, sequences])
    def test_have_their_own_arrays_or_shallow_the_same(self, make):
        batch = make()
        batch["tensor"] = torch.arange(batch.count)
        deep, shallow = batch.copy(), batch.copy(shallow=True)
        assert plain(deep) == plain(shallow) == plain(batch)
        for (_, a), (_, b), (_, c) in zip(_arrays(batch), _arrays(deep), _arrays(shallow), strict=True):
            assert c is a
            assert b is not a
            assert not _share(a, b)

    def test_keep_what_is_known_of_the_batch(self):
        batch = SampleBatch({"a": [1]}, _time_major=True, _max_seq_len=4, _zero_padded=True, _num_grad_updates=2.5)
        batch.set_training()
        made = batch.copy()
        for name in ("time_major", "max_seq_len", "zero_padded", "num_grad_updates", "is_training"):
            assert getattr(made, name) == getattr(batch, name)


class TestPickles:
    @pytest.mark.parametrize("protocol", [2, 4, 5])
    def test_are_the_same_batch(self, protocol):
        batch = sequences()
        batch.zero_padded, batch.max_seq_len, batch.num_grad_updates, batch.time_major = False, 7, 1.5, False
        batch.set_training()
        made = pickle.loads(pickle.dumps(batch, protocol))
        assert type(made) is SampleBatch
        assert plain(made) == plain(batch)
        for name in ("time_major", "max_seq_len", "zero_padded", "num_grad_updates", "is_training", "count"):
            assert getattr(made, name) == getattr(batch, name)

    def test_hold_arrays_out_of_band(self):
        batch = SampleBatch(
            whole=np.zeros((1000, 4)),
            part=np.zeros((2000, 4))[::2],
            turned=np.zeros((4, 1000)).T,
            nest={"a": np.zeros(1000)},
        )
        buffers = []
        frame = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
        assert len(frame) < 2000
        assert sum(len(buffer.raw()) for buffer in buffers) == 8 * (3 * 4000 + 1000)
        made = pickle.loads(frame, buffers=buffers)
        assert np.shares_memory(made["whole"], batch["whole"])
        assert made["part"].shape == (1000, 4)


def test_bytes_are_those_of_all_leaves():
    batch = SampleBatch(a=np.zeros(3), b={"c": torch.zeros(5)}, seq_lens=[1, 2])
    assert batch.size_bytes() == 24 + 20 + 8


def test_a_single_trajectory_is_not_done_before_its_end():
    flags = {
        (0, 0, 0): (True, False),
        (0, 0, 1): (True, True),
        (0, 1, 0): (False, False),
        (1, 0, 1): (False, True),
    }
    for dones, (single, ended) in flags.items():
        for column in ("terminateds", "truncateds"):
            batch = SampleBatch({column: np.array(dones, dtype=bool)})
            assert (batch.is_single_trajectory(), batch.is_terminated_or_truncated()) == (single, ended)
            padded = SampleBatch({column: list(dones), "seq_lens": [2, 1]}).right_zero_pad(4)
            assert (padded.is_single_trajectory(), padded.is_terminated_or_truncated()) == (single, ended)


def _arrays(batch):
    from swath.rollout_workers.batches.leaves import ARRAYS, leaves

    return [pair for column in batch.values() for pair in leaves(column) if isinstance(pair[1], ARRAYS)]


def _share(a, b):
    return a.data_ptr() == b.data_ptr() if isinstance(a, torch.Tensor) else np.shares_memory(a, b)
