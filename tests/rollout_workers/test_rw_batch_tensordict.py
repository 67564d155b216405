"""SampleBatch to TensorDict and back, in the same memory."""

import numpy as np
import pytest
import torch
from rw_toys import episodes, plain, sequences
from tensordict import TensorDict

from swath.rollout_workers import SampleBatch

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


def whole():
    return SampleBatch({name: array.copy() for name, (_, array, _) in COLUMNS.items()})


def test_columns_and_entries_are_the_same_memory_both_ways_and_nothing_else_comes_back():
    batch = whole()
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
    assert plain(td["observation", "y", "1"]) == plain(batch["obs"]["y"][1])
    back = SampleBatch.from_tensordict(td)
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
    td = whole().to_tensordict(keys=["obs", "dones"])
    assert set(td.keys(include_nested=True, leaves_only=True)) == {"observation", ("next", "done")}
    assert plain(td["next", "done"]) == [[False], [True], [True]]
    with pytest.raises(KeyError, match="no column 'x'; there are obs, new_obs"):
        whole().to_tensordict(keys=["x"])
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


def test_of_two_dimensions_rows_are_by_env_without_what_a_mask_leaves_out():
    mask = torch.tensor([[True, True], [True, False]])
    td = TensorDict({"observation": torch.arange(4.0).reshape(2, 2), "collector": {"mask": mask}}, [2, 2])
    assert plain(SampleBatch.from_tensordict(td)) == {"obs": [0, 1, 2]}
    with pytest.raises(ValueError, match=r"must be \[n\] or \[B, T\]; reshape"):
        SampleBatch.from_tensordict(TensorDict({"a": torch.zeros(1, 1, 1)}, [1, 1, 1]))
