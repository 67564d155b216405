"""Values nested in dicts and tuples."""

import pytest
from gymnasium import spaces

from swath.rollout_workers.nests import leaves_of, map_nest, nest_of, template_of


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


@pytest.mark.parametrize(
    ("template", "nest", "leaves"),
    [
        (0, 7, [7]),
        ({"a": 0, "b": (0, {"c": 0})}, {"b": (2, {"c": 3}), "a": 1}, [1, 2, 3]),
        ((), (), []),
        ({}, {}, []),
    ],
    ids=str,
)
def test_leaves_are_taken_out_in_the_templates_order_and_put_back(template, nest, leaves):
    assert leaves_of(nest, template) == leaves
    assert nest_of(template, leaves) == nest


def test_the_structure_of_a_space_is_that_of_its_values():
    one = spaces.Discrete(2)
    assert template_of(spaces.Dict({"a": one, "b": spaces.Tuple((one, one))})) == {"a": one, "b": (one, one)}
    assert template_of(one) is one
