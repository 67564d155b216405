"""From rows to the batch that users see."""

import numpy as np
import pytest
import torch

from plain import plain
from swath.options import Entries
from swath.rollout.buffer import Rows
from swath.rollout.fragment import Fragment, Layout

KEYS = {
    "observation",
    ("in", "x"),
    "action",
    ("stats", "value"),
    "done",
    "terminated",
    "truncated",
    ("next", "observation"),
    ("next", "in", "x"),
    ("next", "reward"),
    ("next", "done"),
    ("next", "terminated"),
    ("next", "truncated"),
    ("collector", "traj_ids"),
    ("collector", "policy_version"),
}


def fragment(n_envs=2, n_steps=3, valid=None):
    def array(*shape, dtype=np.float32):
        return np.arange(n_envs * n_steps * int(np.prod(shape)), dtype=dtype).reshape(n_envs, n_steps, *shape)

    end = np.zeros((n_envs, n_steps), dtype=bool)
    end[-1, 1] = True
    rows = Rows(
        [array(4), array(1, dtype=np.uint8)],
        [array(dtype=np.int64), array(2)],
        [array(4) + 1, array(1, dtype=np.uint8)],
        array(),
        end,
        np.zeros_like(end),
        valid,
    )
    ids, counts = array(dtype=np.int64), array(dtype=np.int64)
    return Fragment(rows, ids, counts, version=7)


def layout(shape=(2,), **changed):
    return Layout(shape, ("observation", ("in", "x")), ("action", ("stats", "value")), **changed)


def keys(td):
    return set(td.keys(include_nested=True, leaves_only=True))


def test_a_batch_has_exactly_its_entries():
    td = fragment().to_tensordict(layout())
    assert keys(td) == KEYS
    assert td.batch_size == torch.Size([2, 3])
    assert td.names == [None, "time"]
    assert td["next"].batch_size == torch.Size([2, 3])


def test_shapes_and_dtypes_are_those_of_the_contract():
    td = fragment().to_tensordict(layout())
    for key in ("done", ("next", "truncated")):
        assert (td[key].shape, td[key].dtype) == (torch.Size([2, 3, 1]), torch.bool)
    assert (td["next", "reward"].shape, td["next", "reward"].dtype) == (torch.Size([2, 3, 1]), torch.float32)
    for key in (("collector", "traj_ids"), ("collector", "policy_version")):
        assert (td[key].shape, td[key].dtype) == (torch.Size([2, 3]), torch.int64)
    assert td["action"].shape == torch.Size([2, 3])
    assert td["stats", "value"].shape == torch.Size([2, 3, 2])
    assert td["in", "x"].dtype == torch.uint8


def test_one_bare_env_has_no_env_dimension():
    td = fragment(1).to_tensordict(layout(()))
    assert td.batch_size == torch.Size([3])
    assert td.names == ["time"]
    assert td["observation"].shape == torch.Size([3, 4])
    assert td["next", "done"].shape == torch.Size([3, 1])


def test_flags_are_those_of_the_rows_and_the_root_ones_are_false():
    td = fragment().to_tensordict(layout())
    assert td["next", "done"][..., 0].tolist() == [[False] * 3, [False, True, False]]
    assert torch.equal(td["next", "terminated"], td["next", "done"])
    assert not any(td[key].any() for key in ("done", "terminated", "truncated", ("next", "truncated")))
    assert (td["collector", "policy_version"] == 7).all()


def test_memory_is_shared_with_the_fragment_and_root_flags_share_none_with_each_other():
    made = fragment()
    td = made.to_tensordict(layout())
    td["observation"].fill_(3)
    td["next", "reward"].fill_(4)
    assert (made.rows.observation[0] == 3).all()
    assert (made.rows.reward == 4).all()
    td["done"].fill_(True)
    assert not td["terminated"].any()
    assert not td["truncated"].any()


@pytest.mark.parametrize(
    ("changed", "more", "less"),
    [
        ({"step_count": True}, {"step_count", ("next", "step_count")}, set()),
        ({"extras": Entries(track_version=True)}, {"policy_version", ("next", "policy_version")}, set()),
        ({"extras": Entries(track_ids=False)}, set(), {("collector", "traj_ids")}),
        ({"extras": Entries(compact_obs=True)}, set(), {("next", "observation"), ("next", "in", "x")}),
        ({"masked": True}, {("collector", "mask")}, set()),
    ],
    ids=plain,
)
def test_extras_come_and_go_as_asked(changed, more, less):
    assert keys(fragment().to_tensordict(layout(**changed))) == (KEYS | more) - less


def test_step_counts_count_from_zero_and_one():
    td = fragment().to_tensordict(layout(step_count=True))
    assert td["step_count"][0, :, 0].tolist() == [0, 1, 2]
    assert td["next", "step_count"][0, :, 0].tolist() == [1, 2, 3]


def test_the_mask_says_which_rows_are_transitions():
    valid = np.array([[True, False, True], [True, True, True]])
    made = fragment(valid=valid)
    assert made.frames == 5
    assert made.to_tensordict(layout())["collector", "mask"].tolist() == valid.tolist()
    assert fragment().frames == 6
    assert fragment().to_tensordict(layout(masked=True))["collector", "mask"].all()
