"""What lives in an actor for others to reach, looked at where it is."""

import operator

import pytest

from swath.workers.ray.held import ITSELF, Held


def test_functions_are_called_with_the_object_and_what_they_return_comes_back():
    held = Held(lambda: [1, 2, 3], at_once=True)
    assert held.apply(operator.getitem, (1,)) == 2
    assert held.apply(len, ()) == 3


def test_the_object_itself_never_leaves():
    held = Held(lambda: [1], at_once=True)
    assert held.apply(operator.iadd, ([2],)) == ITSELF
    assert held.apply(len, ()) == 2


@pytest.mark.parametrize("at_once", [True, False])
def test_it_is_built_once_now_or_at_its_first_use(at_once):
    built = []
    held = Held(lambda: built.append(0) or built, at_once=at_once)
    assert len(built) == at_once
    assert held.apply(len, ()) == held.apply(len, ()) == 1


def test_iterations_go_side_by_side_and_are_forgotten_at_their_ends_and_when_they_are_over():
    held = Held(lambda: "ab", at_once=True)
    one, other = held.iterate([]), held.iterate([])
    assert held.advance(one) == held.advance(other) == ["a"]
    assert [held.advance(one) for _ in range(3)] == [["b"], [], []]
    assert list(held._iterators) == [other]
    third = held.iterate([other])
    assert list(held._iterators) == [third]
    assert held.advance(other) == []
