"""Fates of the workers of a stage, drawn by hypothesis."""

import logging

import pytest
from hypothesis import strategies as st

from staged import NEVER
from swath.options import Restarts, Survival
from swath.workers.tickets import Name

N, DEADLINE_S = 3, 20.0
NAMES = st.builds(Name, st.integers(0, N - 1), st.integers(0, 3))
FATES = {
    "starts": st.dictionaries(NAMES, st.sampled_from([0.0, 4.0, NEVER, (OSError("no more processes"),)]), max_size=4),
    "dies": st.dictionaries(NAMES, st.sampled_from([0.0, 0.5, 1.0, 7.0]), max_size=5),
    "hangs": st.sets(NAMES, max_size=3),
}
SURVIVALS = st.builds(
    Survival,
    st.builds(Restarts, max_per_worker=st.integers(0, 3), backoff_s=st.sampled_from([0.0, 2.0])),
    min_workers=st.none() | st.integers(1, N),
    fragment_timeout_s=st.just(DEADLINE_S),
    placement_timeout_s=st.just(30.0),
)


@pytest.fixture(autouse=True)
def quiet():
    """Silence the log of thousands of restarts."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
