"""Spaces as leaves: keys, dtypes, what cannot be served, and actions on their way to the envs."""

import numpy as np
import pytest
from gymnasium import spaces

from swath.rollout.spaces import action_leaves, joiner, observation_leaves, packer, splitter, unbatched

BOX = spaces.Box(-1, 1, (2,))


def described(leaves):
    return [(leaf.key, leaf.path, leaf.shape, str(leaf.dtype)) for leaf in leaves]


def test_a_box_or_discrete_observation_is_called_observation():
    assert described(observation_leaves(BOX)) == [("observation", (), (2,), "float32")]
    assert described(observation_leaves(spaces.Discrete(4))) == [("observation", (), (), "int64")]


def test_only_float64_changes_its_dtype():
    for dtype, kept in [("float64", "float32"), ("float16", "float16"), ("uint8", "uint8"), ("int16", "int16")]:
        (leaf,) = observation_leaves(spaces.Box(0, 1, (3,), np.dtype(dtype).type))
        assert leaf.dtype == np.dtype(kept)
    (action,) = action_leaves(spaces.Box(0, 1, (3,), np.float64))
    assert action.dtype == np.float64


def test_dict_spaces_give_root_entries_and_tuples_are_numbered():
    space = spaces.Dict({"b": spaces.Tuple((BOX, spaces.Discrete(2))), "a": spaces.Dict({"c": spaces.MultiBinary(3)})})
    assert described(observation_leaves(space)) == [
        (("a", "c"), ("a", "c"), (3,), "int8"),
        ("b_0", ("b", 0), (2,), "float32"),
        ("b_1", ("b", 1), (), "int64"),
    ]
    assert [leaf.key for leaf in observation_leaves(spaces.Tuple((BOX, BOX)))] == ["observation_0", "observation_1"]


def test_action_leaves_stand_under_action():
    space = spaces.Dict({"x": BOX, "y": spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([2, 3])))})
    assert [leaf.key for leaf in action_leaves(space)] == [("action", "x"), ("action", "y", "0"), ("action", "y", "1")]
    assert [leaf.key for leaf in action_leaves(BOX)] == ["action"]


UNSERVED = {
    "text": spaces.Text(5),
    "graph": spaces.Graph(BOX, None),
    "sequence": spaces.Sequence(BOX),
    "one of": spaces.OneOf((BOX, BOX)),
}


@pytest.mark.parametrize("space", [spaces.Dict(), spaces.Tuple(()), spaces.Dict({"a": spaces.Tuple(())})], ids=str)
@pytest.mark.parametrize("leaves", [observation_leaves, action_leaves], ids=["observation", "action"])
def test_a_space_without_entries_is_refused(leaves, space):
    with pytest.raises(ValueError, match=r"space .* at (the root|a) has no entries"):
        leaves(space)


@pytest.mark.parametrize("name", list(UNSERVED))
@pytest.mark.parametrize("leaves", [observation_leaves, action_leaves], ids=["observation", "action"])
def test_other_spaces_are_a_type_error_that_says_where_and_what_is_served(leaves, name):
    space = spaces.Dict({"in": spaces.Tuple((BOX, UNSERVED[name]))})
    with pytest.raises(TypeError, match=r"at in\.1 cannot be served; served are Box, Discrete, .*; wrap the env"):
        leaves(space)
    with pytest.raises(TypeError, match="at the root cannot be served"):
        leaves(UNSERVED[name])


@pytest.mark.parametrize(
    "key", ["action", "reward", "done", "terminated", "truncated", "next", "collector", "step_count"]
)
def test_an_observation_key_that_a_batch_needs_for_itself_is_a_value_error(key):
    with pytest.raises(ValueError, match=rf"observation keys \['{key}'\] clash .* rename them in the env"):
        observation_leaves(spaces.Dict({key: BOX, "fine": BOX}))
    with pytest.raises(ValueError, match="clash"):
        observation_leaves(spaces.Dict({key: spaces.Dict({"inner": BOX})}))


def test_two_observations_of_one_name_are_a_value_error():
    with pytest.raises(ValueError, match=r"\['b_0'\]"):
        observation_leaves(spaces.Dict({"b": spaces.Tuple((BOX,)), "b_0": BOX}))


def test_observations_are_packed_row_by_row_and_copied():
    space = spaces.Dict({"a": BOX, "b": spaces.Tuple((spaces.Discrete(9),))})
    rows = [{"a": np.full(2, i, dtype=np.float32), "b": (i,)} for i in range(3)]
    packed = packer(observation_leaves(space))(rows)
    rows[0]["a"][:] = 7
    np.testing.assert_array_equal(packed[0], [[0, 0], [1, 1], [2, 2]])
    np.testing.assert_array_equal(packed[1], [0, 1, 2])


@pytest.mark.parametrize("rows", [[np.zeros(3), np.zeros(3)], [np.zeros(2), np.zeros(3)], [None, None]], ids=str)
def test_an_observation_of_another_shape_is_a_value_error_that_names_both(rows):
    with pytest.raises(
        ValueError, match=r"observations of shape .* for 'observation'; their observation space says \(2,\)"
    ):
        packer(observation_leaves(BOX))(rows)


ACTIONS = {
    "discrete": spaces.Discrete(5, start=2),
    "box": spaces.Box(-1, 1, (2,)),
    "float64": spaces.Box(-1, 1, (2, 2), np.float64),
    "scalar": spaces.Box(-1, 1, ()),
    "bytes": spaces.Box(0, 255, (3,), np.uint8),
    "multi_discrete": spaces.MultiDiscrete([3, 4]),
    "multi_binary": spaces.MultiBinary((2, 2)),
    "tuple": spaces.Tuple((spaces.Discrete(3), BOX)),
    "nested": spaces.Dict({"x": spaces.Tuple((spaces.Dict({"z": spaces.Discrete(3), "a": BOX}),)), "b": BOX}),
}


def leaves_of(space, actions):
    def follow(value, path):
        for part in path:
            value = value[part]
        return value

    return [np.array([follow(action, leaf.path) for action in actions]) for leaf in action_leaves(space)]


def require_same(one, other):
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            require_same(one[name], other[name])
    elif isinstance(one, tuple):
        assert isinstance(other, tuple)
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            require_same(a, b)
    else:
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", list(ACTIONS))
def test_leaves_of_actions_become_actions_again(name):
    space = ACTIONS[name]
    space.seed(0)
    actions = [space.sample() for _ in range(3)]
    split = splitter(space, 3)(leaves_of(space, actions))
    assert all(space.contains(action) for action in split)
    for one, other in zip(split, actions, strict=True):
        require_same(one, other)


@pytest.mark.parametrize("name", list(ACTIONS))
def test_leaves_of_actions_become_the_batched_action_of_a_vector_env(name):
    space = ACTIONS[name]
    space.seed(0)
    actions = [space.sample() for _ in range(3)]
    batched = joiner(space)(leaves_of(space, actions))
    assert isinstance(batched, (dict, tuple, np.ndarray))
    for i, action in enumerate(actions):
        require_same(_row(batched, i), action)


def _row(batched, i):
    if isinstance(batched, dict):
        return {name: _row(part, i) for name, part in batched.items()}
    return tuple(_row(part, i) for part in batched) if isinstance(batched, tuple) else batched[i]


@pytest.mark.parametrize("name", ["box", "float64", "multi_discrete"])
def test_an_env_that_writes_into_its_action_does_not_change_what_is_recorded(name):
    space = ACTIONS[name]
    (leaf,) = action_leaves(space)
    outputs = [np.ones((2, *leaf.shape), dtype=leaf.dtype)]
    for action in splitter(space, 2)(outputs):
        action[...] = 0
    joiner(space)(outputs)[...] = 0
    assert (outputs[0] == 1).all()


def test_leaves_of_a_batched_observation_are_taken_by_path_in_their_dtypes():
    space = spaces.Dict({"a": spaces.Box(0, 1, (2,), np.float64), "b": spaces.Tuple((spaces.Discrete(3),))})
    leaves = unbatched({"a": np.ones((4, 2)), "b": (np.arange(4),)}, observation_leaves(space))
    assert [(leaf.shape, str(leaf.dtype)) for leaf in leaves] == [((4, 2), "float32"), ((4,), "int64")]


WITH_ARRAYS = {
    "box": BOX,
    "a number": spaces.Box(-1, 1, ()),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "nested": spaces.Dict({"a": spaces.Tuple((BOX, spaces.Discrete(2))), "b": spaces.Box(-1, 1, (), np.float64)}),
}


@pytest.mark.parametrize("writable", [True, False])
@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_envs_may_write_into_their_actions_only_if_they_may(name, writable):
    space = WITH_ARRAYS[name]
    leaves = [np.stack([leaf.space.sample()] * 3) for leaf in action_leaves(space)]
    kept = [leaf.copy() for leaf in leaves]
    rows = splitter(space, 3, writable=writable)(leaves)
    assert [row in space for row in rows] == [True] * 3
    first = rows[0] if not isinstance(space, spaces.Dict) else rows[0]["a"][0]
    assert first.flags.writeable == writable
    if writable:
        first[...] = 0
    np.testing.assert_equal(leaves, kept)
    assert all(leaf.flags.writeable for leaf in leaves)
