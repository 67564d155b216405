"""Backends by name."""

import pytest

from swath.workers.create import backend
from swath.workers.inline import InlineBackend
from swath.workers.process.backend import ProcessBackend
from swath.workers.thread import ThreadBackend


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("inline", InlineBackend),
        ("direct", InlineBackend),
        ("thread", ThreadBackend),
        ("process", ProcessBackend),
        ("multiprocessing", ProcessBackend),
    ],
)
def test_each_place_has_its_names(name, kind):
    made = backend(name)
    assert type(made) is kind
    made.close()


def test_an_unknown_place_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"backend='cloud' must be one of 'inline', 'thread', 'process', 'ray'"):
        backend("cloud")
