"""Exceptions that cross a border."""

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
    [ValueError("a", 1), OSError(2, "none", "file"), WorkerLate("late", workers=(1, 2), deadline=3.0)],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_as_its_own_type_with_what_it_carries(error):
    came = crossed(error)
    assert type(came) is type(error)
    assert came.args == error.args
    assert vars(came) == {**vars(error), "__notes__": came.__notes__}


def test_it_tells_its_notes_its_cause_and_where_it_was_raised():
    error = ValueError("second")
    error.add_note("while testing")
    error.__cause__ = KeyError("first")
    own, note = crossed(error).__notes__
    assert own == "while testing"
    assert note.startswith("remote traceback:\nKeyError: 'first'")
    assert "in crossed" in note
    assert "ValueError: second" in note


@pytest.mark.parametrize("error", [Picky("one", second="two"), Hostile("one and two")], ids=["picky", "hostile"])
def test_what_cannot_be_rebuilt_says_what_it_was(error):
    came = crossed(error)
    assert type(came) is RemoteFailure
    assert type(error).__name__ in came.type_name
    assert "one and two" in str(came)
    assert "in crossed" in came.traceback
