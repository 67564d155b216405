"""Spaces as leaves: keys, dtypes, spaces that are not served, and actions for the envs."""

import numpy as np
import pytest
from gymnasium import spaces

from swath.rollout.spaces import action_leaves, joiner, observation_leaves, packer, splitter

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
def test_a_reserved_observation_key_is_a_value_error(key):
    with pytest.raises(ValueError, match=rf"observation keys \['{key}'\] clash .* rename them in the env"):
        observation_leaves(spaces.Dict({key: BOX, "fine": BOX}))
    with pytest.raises(ValueError, match="clash"):
        observation_leaves(spaces.Dict({key: spaces.Dict({"inner": BOX})}))


# ---- numbers that a dtype cannot hold

WHOLE = [np.dtype(name) for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")]
LIMITS = sorted({limit for dtype in WHOLE for limit in (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))})


def box(dtype):
    return spaces.Box(np.iinfo(dtype).min, np.iinfo(dtype).max, (1,), dtype)


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@pytest.mark.parametrize("source", WHOLE, ids=str)
def test_integers_arrive_unchanged_or_are_refused(source, dtype):
    space, limits, other = box(dtype), np.iinfo(dtype), np.iinfo(source)
    pack, split, join = packer(observation_leaves(space)), splitter(space), joiner(space)
    for limit in LIMITS:
        for value in (limit - 1, limit, limit + 1):
            if not other.min <= value <= other.max:
                continue
            values = np.array([[value]], source)
            if limits.min <= value <= limits.max:
                results = [pack(list(values))[0], np.stack(split([values])), join([values])]
                assert [(int(result[0, 0]), result.dtype) for result in results] == [(value, dtype)] * 3
                continue
            with pytest.raises(ValueError, match=rf"the env returned {value} for 'observation', which {dtype} cannot"):
                pack(list(values))
            for convert in (split, join):
                with pytest.raises(ValueError, match=rf"the policy answered {value} for 'action', which {dtype}"):
                    convert([values])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("source", ["float32", "float64", "int64"])
def test_floats_may_be_rounded_but_do_not_overflow(source, dtype):
    space, largest = spaces.Box(-np.inf, np.inf, (1,), dtype), np.finfo(dtype).max
    pack = packer(observation_leaves(space))
    with np.errstate(over="ignore"):
        values = np.array([[float(largest) * 2 if source == "float64" else 2**30]], source)
    if values < largest:
        assert pack(list(values))[0] == values
    elif values > largest:
        with pytest.raises(ValueError, match=rf"which {dtype} cannot hold; its observation space is Box"):
            pack(list(values))
    if source != "int64":
        assert np.isposinf(pack([np.array([np.inf], source)])[0])
