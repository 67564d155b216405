"""What one process promises: any env source looks like B envs stepped together, any policy acts in it, rows are exact.

Here: spaces as leaves: keys, dtypes, what cannot be served, and actions on their way to the envs."""

import pytest
from gymnasium import spaces

from swath.rollout.spaces import action_leaves, observation_leaves

BOX = spaces.Box(-1, 1, (2,))


def test_dict_spaces_give_root_entries_and_tuples_are_numbered():
    space = spaces.Dict({"b": spaces.Tuple((BOX, spaces.Discrete(2))), "a": spaces.Dict({"c": spaces.MultiBinary(3)})})
    assert [leaf.key for leaf in observation_leaves(space)] == [("a", "c"), "b_0", "b_1"]
    assert [leaf.key for leaf in observation_leaves(spaces.Tuple((BOX, BOX)))] == ["observation_0", "observation_1"]


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
