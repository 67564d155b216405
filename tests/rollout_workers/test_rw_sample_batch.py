"""SampleBatch as a dict of columns: what it stores, shows, counts and pickles."""

import copy
import pickle

import numpy as np
import pytest
import torch
from rw_toys import plain, sequences

from swath.rollout_workers import SampleBatch, attempt_count_timesteps

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


def known(batch):
    return {name: getattr(batch, name) for name in KNOWN}


@pytest.mark.parametrize("name", COUNTS)
def test_rows_are_counted_by_sequences_or_the_first_column_that_can_be(name):
    columns, count = COUNTS[name]
    assert attempt_count_timesteps(copy.deepcopy(columns)) == count
    batch = SampleBatch(columns)
    assert (batch.count, len(batch), batch.agent_steps(), batch.env_steps()) == (count, count, count, count)


def test_lists_and_numbers_become_arrays_whichever_way_they_are_set():
    given = {"a": [1, 2], "b": 3, "c": {"d": ([1, 2], 3.5)}}
    stored = {"a": np.array([1, 2]), "b": np.array(3), "c": {"d": (np.array([1, 2]), np.array(3.5))}}
    updated, set_ = SampleBatch(), SampleBatch()
    updated.update(**given)
    for name, column in given.items():
        set_[name] = column
    for made in (SampleBatch(given), SampleBatch(**given), updated, set_):
        np.testing.assert_equal(dict(made), stored)


def test_all_else_is_stored_as_it_is():
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
    batch.own_env_steps = 2
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
    batch = batch.like({**batch, "terminateds": np.zeros(len(batch["a"]))})
    for act in ON_ROWS:
        with pytest.raises(ValueError, match="columns of different lengths"):
            act(batch)


def test_copies_and_pickles_are_the_same_batch_and_only_shallow_ones_share_arrays():
    columns = {**sequences(), "tensor": torch.arange(6)}
    batch = SampleBatch(columns, **{f"_{name}": value for name, value in KNOWN.items()})
    deep, shallow, sent = batch.copy(), batch.copy(shallow=True), pickle.loads(pickle.dumps(batch, protocol=2))
    for made in (deep, shallow, sent):
        assert (type(made), plain(made), known(made)) == (SampleBatch, plain(batch), KNOWN)
        assert list(made) == list(batch)
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
    for made in (batch[:], batch.right_zero_pad(4)):
        assert (made.is_single_trajectory(), made.is_terminated_or_truncated()) == (single, ended)


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
    own = batch["own"]
    assert batch.to_device("cpu") is batch
    assert [leaf.dtype for leaf in (batch["a"], *batch["b"]["c"])] == [
        *(torch.int64, torch.float32, torch.float32, torch.int64)
    ]
    assert (batch["text"] is text, batch["infos"] is infos) == (True, True)
    batch["own"][0] = batch["fixed"][0] = 5
    assert (plain(own), plain(fixed)) == ([5], [0])
    with pytest.raises(NotImplementedError, match=r"framework='tf' is not served; use 'torch'"):
        batch.to_device("cpu", framework="tf")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_columns_go_to_a_gpu_and_are_there_when_they_are_read():
    batch = SampleBatch(a=np.arange(1_000_000.0), b={"c": torch.ones(3, device="cuda")}, infos=[{}])
    batch.to_device("cuda", pin_memory=True)
    assert batch["a"].is_cuda
    assert (float(batch["a"].double().sum()), float(batch["b"]["c"].sum())) == (499_999_500_000.0, 3.0)
