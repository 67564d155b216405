"""The input for one step of a trajectory."""

import numpy as np
import pytest
from batch_toys import plain

from swath.rollout_workers import SampleBatch, ViewRequirement


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
        ({"a": ViewRequirement("obs", shift=-2)}, "last", ValueError, r"data_col='obs' and shift=-2"),
        (
            {"a": ViewRequirement()},
            "last",
            KeyError,
            r"the input needs column 'a'; the batch has \['actions', 'new_obs'",
        ),
        ({"state_in_1": ViewRequirement()}, "last", KeyError, r"needs column 'state_out_1'"),
    ],
)
def test_what_cannot_be_seen_is_refused(views, index, error, message):
    with pytest.raises(error, match=message):
        trajectory().get_single_step_input_dict(views, index)


@pytest.mark.parametrize("refused", [{"batch_repeat_value": 20}, {"index": 0}])
def test_a_view_of_other_rows_is_refused_with_a_reason(refused):
    assert ViewRequirement(batch_repeat_value=1, index=None) == ViewRequirement()
    with pytest.raises(ValueError, match=r"columns have one value per row; leave both out"):
        ViewRequirement(**refused)
