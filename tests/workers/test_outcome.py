"""Exceptions that cross a border."""

import traceback

import pytest

from swath.errors import RemoteFailure, WorkerLate
from swath.workers.outcome import frozen, thawed


class Picky(Exception):
    def __init__(self, first, *, second):
        super().__init__(f"{first} and {second}")


class Hostile(Exception):
    def __reduce__(self):
        raise RuntimeError("not to be copied")


def crossed(error):
    try:
        raise error
    except type(error) as raised:
        return thawed(frozen(raised))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a", 1),
        KeyError("b"),
        OSError(2, "none", "file"),
        StopIteration(3),
        WorkerLate("late", workers=(1, 2), deadline=3.0),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_as_its_own_type_with_what_it_carries(error):
    came = crossed(error)
    assert type(came) is type(error)
    assert came.args == error.args
    assert {name: value for name, value in vars(came).items() if name != "__notes__"} == {
        name: value for name, value in vars(error).items() if name != "__notes__"
    }


def test_it_says_where_it_was_raised_there():
    (note,) = crossed(ValueError("a")).__notes__
    assert note.startswith("remote traceback:\n")
    assert "in crossed" in note
    assert note.endswith("ValueError: a")


def test_its_notes_and_its_cause_are_told():
    def fail():
        try:
            raise KeyError("first")
        except KeyError as cause:
            error = ValueError("second")
            error.add_note("while testing")
            raise error from cause

    try:
        fail()
    except ValueError as error:
        came = thawed(frozen(error))
    text = "".join(traceback.format_exception(came))
    assert "while testing" in text
    assert "KeyError: 'first'" in text


@pytest.mark.parametrize("error", [Picky("one", second="two"), Hostile("one and two")], ids=["picky", "hostile"])
def test_what_cannot_be_rebuilt_says_what_it_was(error):
    came = crossed(error)
    assert type(came) is RemoteFailure
    assert type(error).__name__ in came.type_name
    assert "one and two" in str(came)
    assert "in crossed" in came.traceback


def test_classes_of_the_moment_travel():
    class Mine(Exception):
        pass

    assert type(crossed(Mine("here"))) is Mine
