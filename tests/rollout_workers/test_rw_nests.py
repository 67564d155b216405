"""Values nested in dicts and tuples."""

import pytest

from swath.rollout_workers.nests import map_nest


@pytest.mark.parametrize(
    ("nest", "other", "sums"),
    [
        (1, 10, 11),
        ({"a": 1, "b": (2, 3)}, {"b": (20, 30), "a": 10}, {"a": 11, "b": (22, 33)}),
        ((1, (2,)), [10, [20]], (11, (22,))),
        ([1], [10], [1, 10]),
        ((), (), ()),
        ({}, {"more": 1}, {}),
    ],
    ids=str,
)
def test_leaves_are_met_each_with_those_in_its_place(nest, other, sums):
    assert map_nest(lambda a, b: a + b, nest, other) == sums


@pytest.mark.parametrize(
    ("other", "error"), [({}, KeyError), ({"a": (1,)}, ValueError), ({"a": (1, 2, 3)}, ValueError)]
)
def test_another_structure_is_refused(other, error):
    with pytest.raises(error):
        map_nest(lambda a, b: a, {"a": (1, 2)}, other)
