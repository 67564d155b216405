"""Batches by policy, batches one behind another, and batches as TensorDicts in the same memory."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rw_toys import episodes, plain, sequences
from tensordict import TensorDict

from swath.rollout_workers import (
    MultiAgentBatch,
    SampleBatch,
    concat_samples,
    concat_samples_into_ma_batch,
    convert_ma_batch_to_sample_batch,
)

ROWS = st.lists(st.tuples(st.integers(5, 7), st.integers(0, 4), st.integers(0, 2)), max_size=12)


def of_rows(keys, first=0):
    """A batch of rows (eps_id, t, agent_index), numbered."""
    keys = np.array(keys, dtype=np.int64).reshape(-1, 3)
    names = ("eps_id", "t", "agent_index")
    number = np.arange(first, first + len(keys))
    return SampleBatch({"number": number, "nest": {"n": number}, **dict(zip(names, keys.T, strict=True))})


def both():
    return MultiAgentBatch({"p": SampleBatch(obs=np.zeros((3, 2))), "q": {"obs": [[1.0, 2.0]]}}, 2)


def test_it_holds_batches_and_makes_them_of_dicts():
    inner = SampleBatch(a=[1, 2])
    batch = MultiAgentBatch({"p": inner, "q": {"a": [3]}}, 2)
    assert batch["p"] is batch.policy_batches["p"] is inner
    assert isinstance(batch["q"], SampleBatch)
    assert (batch.count, len(batch), batch.env_steps(), batch.agent_steps()) == (2, 2, 2, 3)
    assert batch.as_multi_agent() is batch
    with pytest.raises(TypeError, match=r"policy 'p' has list; give a SampleBatch or a dict"):
        MultiAgentBatch({"p": [1, 2]}, 1)
    with pytest.raises(KeyError, match=r"no rows of policy 'x'; the batch has rows of \['p', 'q'\]"):
        both()["x"]


def test_all_policies_are_copied_moved_to_a_device_and_converted_to_a_tensordict():
    batch = both()
    for clone in (batch.copy(), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert plain(clone) == plain(batch)
        clone["p"]["obs"][:] = 7
        assert not batch["p"]["obs"].any()
    assert batch.copy(shallow=True)["p"]["obs"] is batch["p"]["obs"]
    assert batch.size_bytes() == batch["p"].size_bytes() + batch["q"].size_bytes()
    td = batch.to_tensordict(keys=["obs"])
    assert (td.batch_size, td["p"].batch_size, td["q"].batch_size) == ((), (3,), (1,))
    td["p", "observation"][0] = 5
    assert plain(batch["p"]["obs"][0]) == [5, 5]
    assert batch.to_device("cpu") is batch
    assert [batch[pid]["obs"].dtype for pid in "pq"] == [torch.float32, torch.float32]


def test_wrapping_gives_the_default_policys_batch_alone_and_all_others_as_several():
    inner = SampleBatch(a=[1, 2])
    assert MultiAgentBatch.wrap_as_needed({"default_policy": inner}, 1) is inner
    assert (inner.env_steps(), inner.agent_steps()) == (1, 2)
    for policies in ({}, {"p": {"a": [1]}}, {"p": {"a": [1]}, "default_policy": {"a": [1]}}):
        wrapped = MultiAgentBatch.wrap_as_needed(policies, 3)
        assert (type(wrapped), wrapped.count, list(wrapped.policy_batches)) == (MultiAgentBatch, 3, list(policies))
        with pytest.raises(ValueError, match="are no single SampleBatch"):
            convert_ma_batch_to_sample_batch(wrapped)


@given(p=ROWS, q=ROWS, k=st.integers(1, 4))
def test_time_slices_are_as_sorting_the_rows_one_by_one(p, q, k):
    batch = MultiAgentBatch({"p": of_rows(p), "q": of_rows(q, first=100)}, 1)
    rows = [(*key, first + i, pid) for pid, keys, first in (("p", p, 0), ("q", q, 100)) for i, key in enumerate(keys)]
    steps = sorted({row[:2] for row in rows})
    parts = batch.timeslices(k)
    assert len(parts) == -(-len(steps) // k)
    for part, i in zip(parts, range(0, len(steps), k), strict=True):
        wanted_steps = steps[i : i + k]
        wanted = {}
        for *key, _, number, pid in sorted(rows):
            if tuple(key) in wanted_steps:
                wanted.setdefault(pid, []).append(number)
        assert part.count == len(wanted_steps)
        assert {pid: plain(batch["number"]) for pid, batch in part.policy_batches.items()} == wanted


def test_time_slices_are_copies_with_padding_taken_out_and_states_for_every_row():
    inner = SampleBatch(
        a=[0, 1, 2], t=[0, 1, 2], eps_id=[7] * 3, agent_index=[0] * 3, state_in_0=[0.0, 2.0],
        state_out_0=[1.0, 2.0, 3.0], seq_lens=[2, 1],
    ).right_zero_pad(4)  # fmt: skip
    part = MultiAgentBatch({"p": inner}, 3).timeslices(2)[0]["p"]
    assert plain(part["a"]) == plain(part["state_in_0"]) == [0, 1]
    assert (plain(part["seq_lens"]), part.zero_padded, part.count) == ([1, 1], False, 2)
    part["a"][:] = 9
    assert plain(inner["a"][:2]) == [0, 1]
    assert MultiAgentBatch({}, 2).timeslices(1) == MultiAgentBatch({"p": SampleBatch()}, 2).timeslices(1) == []
    with pytest.raises(ValueError, match=r"k=0 must be at least 1"):
        both().timeslices(0)


def test_columns_are_joined_leaf_by_leaf():
    batch = concat_samples([episodes(), episodes()[1:3]])
    assert plain(batch["rewards"]) == [0, 1, 2, 3, 4, 1, 2]
    assert plain(batch["obs"]["y"][1][5:]) == [[2, 3], [4, 5]]
    assert [info["row"] for info in batch["infos"]] == [0, 1, 2, 3, 4, 1, 2]
    assert (list(batch), batch.num_grad_updates, batch.is_training) == (list(episodes()), 2, True)


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_sequences_and_their_states_are_joined_padded_ones_too(kind):
    parts = [sequences(), sequences()[2:]]
    joined = concat_samples([part.to_device("cpu") if kind == "tensors" else part for part in parts])
    assert (plain(joined["seq_lens"]), plain(joined["state_in_0"])) == ([2, 3, 1, 3, 1], [0, 2, 5, 2, 5])
    assert (joined.count, joined.max_seq_len, joined.zero_padded) == (10, 3, False)
    joined = sequences().right_zero_pad(3).concat(sequences().right_zero_pad(3))
    assert (len(joined["a"]), joined.count, joined.zero_padded, joined.max_seq_len) == (18, 12, True, 3)


@pytest.mark.parametrize(("first", "second", "mean"), [(None, None, None), (1, 4, 3.25), (None, 4, 4), (0, 0, 0)])
def test_numbers_of_updates_are_averaged_by_rows_where_they_are_known(first, second, mean):
    parts = SampleBatch(a=[0], _num_grad_updates=first), SampleBatch(a=[0, 0, 0], _num_grad_updates=second)
    assert concat_samples(parts).num_grad_updates == mean


@pytest.mark.parametrize("empty", [SampleBatch(), SampleBatch(other=np.zeros(0)), sequences()[0:0]])
def test_empty_batches_are_passed_over(empty):
    assert plain(concat_samples([empty, SampleBatch(a=[1]), empty])) == {"a": [1]}
    for nothing in ([], [empty, empty]):
        joined = concat_samples(nothing)
        assert (type(joined), len(joined), dict(joined)) == (SampleBatch, 0, {})


REFUSED = {
    "a missing column": ([{"a": [1], "b": [1]}, {"a": [1]}], r"columns \['b'\] are in some batches only"),
    "other shapes": ([{"a": [[1]]}, {"a": [1]}], r"columns named 'a' do not fit"),
    "other nests": ([{"a": {"x": [1]}}, {"a": {"y": [1]}}], r"columns named 'a' do not fit: nested differently"),
    "tensors and arrays": ([{"a": [1]}, {"a": torch.ones(1)}], r"'a' do not fit: cannot be joined: Tensor, ndarray"),
    "padding": ([{"_zero_padded": True}, {"_zero_padded": False}], r"differ in zero_padded: True and False"),
    "layout": ([{"_time_major": True}, {"_time_major": None}], r"differ in time_major: True and None"),
    "a length in some": ([{"_max_seq_len": 3}, {}], r"differ in max_seq_len: 3 and None"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_batches_that_do_not_fit_are_refused_by_name(name):
    parts, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        concat_samples([SampleBatch(**{"a": [1], **part}) for part in parts])


def pair(n, m, env_steps):
    """So many rows of policies p and q."""
    return MultiAgentBatch({"p": SampleBatch(a=np.arange(n)), "q": {"a": np.arange(m)}}, env_steps)


def test_batches_are_joined_by_policy_and_converted_between_one_and_several_policies():
    joined = concat_samples([pair(2, 1, 2), pair(1, 0, 4), SampleBatch(a=[5, 6])])
    assert plain(joined) == (2 + 4 + 2, {"p": {"a": [0, 1, 0]}, "q": {"a": [0]}, "default_policy": {"a": [5, 6]}})
    with pytest.raises(ValueError, match=r"dict is no SampleBatch or MultiAgentBatch"):
        concat_samples_into_ma_batch([SampleBatch(a=[1]), {"a": [1]}])
    shared = SampleBatch(a=[1, 2, 3, 4])
    shared.shared_env_steps = 2
    assert concat_samples([shared, pair(1, 1, 1)]).env_steps() == 3
    joined = concat_samples([MultiAgentBatch({"default_policy": shared}, 2), SampleBatch(a=[1])])
    assert (joined.env_steps(), joined.agent_steps(), joined["default_policy"].env_steps()) == (3, 5, 3)
    several = concat_samples_into_ma_batch([SampleBatch(a=[1]), SampleBatch(a=[2])])
    assert plain(several) == (2, {"default_policy": {"a": [1, 2]}})
    batch = convert_ma_batch_to_sample_batch(MultiAgentBatch({"default_policy": SampleBatch(a=[1, 2])}, 1))
    assert (batch.env_steps(), batch.count) == (1, 2)


N = 3
COLUMNS = {
    "obs": ("observation", np.arange(6, dtype=np.float32).reshape(N, 2), [N, 2]),
    "new_obs": (("next", "observation"), np.arange(6, dtype=np.uint8).reshape(N, 2), [N, 2]),
    "actions": ("action", np.array([2, 0, 1]), [N]),
    "rewards": (("next", "reward"), np.array([0.5, 1.5, 2.5], dtype=np.float32), [N, 1]),
    "terminateds": (("next", "terminated"), np.array([False, True, False]), [N, 1]),
    "truncateds": (("next", "truncated"), np.array([False, False, True]), [N, 1]),
    "t": ("step_count", np.array([0, 1, 0]), [N, 1]),
    "eps_id": (("collector", "traj_ids"), np.array([4, 4, 2]), [N]),
    "policy_version": (("collector", "policy_version"), np.array([1, 1, 1]), [N]),
    "unroll_id": ("unroll_id", np.array([8, 8, 9]), [N]),
    "agent_index": ("agent_index", np.array([0, 0, 1]), [N]),
    "prev_actions": ("prev_actions", np.array([0, 2, 0]), [N]),
    "prev_rewards": ("prev_rewards", np.array([0, 0.5, 0]), [N]),
    "action_dist_inputs": ("action_dist_inputs", np.zeros((N, 4), dtype=np.float32), [N, 4]),
    "action_logp": ("sample_log_prob", np.array([-1.0, -2.0, -3.0]), [N]),
    "vf_preds": ("state_value", np.array([1.0, 2.0, 3.0]), [N, 1]),
    "values_bootstrapped": ("values_bootstrapped", np.array([2.0, 3.0, 4.0]), [N, 1]),
    "advantages": ("advantage", np.array([0.1, 0.2, 0.3]), [N, 1]),
    "value_targets": ("value_target", np.array([1.1, 1.2, 1.3]), [N, 1]),
    "state_out_0": ("state_out_0", np.array([5.0, 6.0, 7.0]), [N]),
}


def full_batch():
    return SampleBatch({name: array.copy() for name, (_, array, _) in COLUMNS.items()})


def test_columns_and_entries_are_the_same_memory_both_ways_and_nothing_else_comes_back():
    batch = full_batch()
    td = batch.to_tensordict()
    back = SampleBatch.from_tensordict(td)
    assert (td.batch_size, plain(back)) == ((N,), plain(batch))
    for name, (key, array, shape) in COLUMNS.items():
        assert list(td[key].shape) == shape
        td[key].view(-1)[-1] = 1
        assert batch[name].reshape(-1)[-1] == 1
        assert np.shares_memory(back[name], batch[name])
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)


def test_nests_are_nested_and_tuples_numbered():
    batch = episodes()
    td = batch.to_tensordict()
    back = SampleBatch.from_tensordict(td)
    assert plain(td["observation", "y", "1"]) == plain(batch["obs"]["y"][1])
    assert plain(back) == plain(batch)
    assert isinstance(back["obs"]["y"], tuple)
    assert np.shares_memory(back["obs"]["y"][0], batch["obs"]["y"][0])


@pytest.mark.parametrize("padded", [False, True])
def test_sequences_travel_whole(padded):
    batch = sequences()
    batch["number"] = 3
    batch = batch.right_zero_pad(3) if padded else batch
    td = batch.to_tensordict()
    assert td.batch_size == (9 if padded else 6,)
    back = SampleBatch.from_tensordict(td)
    assert plain(back) == plain(batch)
    assert back["state_in_0"] is batch["state_in_0"]


def test_dones_are_written_and_not_read_and_columns_may_be_chosen():
    td = full_batch().to_tensordict(keys=["obs", "dones"])
    assert set(td.keys(include_nested=True, leaves_only=True)) == {"observation", ("next", "done")}
    assert plain(td["next", "done"]) == [[False], [True], [True]]
    with pytest.raises(KeyError, match="no column 'x'; there are obs, new_obs"):
        full_batch().to_tensordict(keys=["x"])
    done = TensorDict({"next": {"done": torch.tensor([[True], [True], [False]])}}, [3])
    assert plain(SampleBatch.from_tensordict(done)) == {"terminateds": [True, True, False]}


def test_objects_are_entries_by_row_and_read_only_arrays_are_copied():
    infos, names, fixed = [{"a": 1}, {}], np.array(["x", (1, 2)], dtype=object), np.arange(2.0)
    fixed.flags.writeable = False
    td = SampleBatch(obs=fixed, infos=infos, agent_id=names).to_tensordict()
    td["observation"][0] = 9
    assert (plain(fixed), td[:1]["infos"]) == ([0, 1], [{"a": 1}])
    back = SampleBatch.from_tensordict(td)
    assert (back["infos"], list(back["agent_id"]), back["agent_id"].dtype) == (infos, list(names), object)


def test_rows_of_two_dimensions_are_by_env_without_masked_frames():
    mask = torch.tensor([[True, True], [True, False]])
    td = TensorDict({"observation": torch.arange(4.0).reshape(2, 2), "collector": {"mask": mask}}, [2, 2])
    assert plain(SampleBatch.from_tensordict(td)) == {"obs": [0, 1, 2]}
    with pytest.raises(ValueError, match=r"must be \[n\] or \[B, T\]; reshape"):
        SampleBatch.from_tensordict(TensorDict({"a": torch.zeros(1, 1, 1)}, [1, 1, 1]))
