import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swath.report.text import BARS, duration, number, sparkline


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12345.6, "12,346"),
        (475.345, "475.3"),
        (475.0, "475"),
        (0.012345, "0.0123"),
        (-0.0000123, "-1.23e-05"),
        (math.nan, "-"),
        (math.inf, "inf"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (21, "0:21"), (725, "12:05"), (3723, "1:02:03"), (math.inf, "-")]
)
def test_durations_read_as_a_clock(seconds, text):
    assert duration(seconds) == text


def test_a_line_that_rises_goes_from_the_lowest_bar_to_the_highest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == BARS
    assert sparkline([3, 3, math.nan, 3], 8) == BARS[0] * 3
    assert sparkline([], 8) == ""


@given(values=st.lists(st.floats(-1e6, 1e6)), width=st.integers(1, 30))
def test_a_line_is_as_wide_as_its_values_but_never_wider_than_allowed(values, width):
    assert len(sparkline(values, width)) == min(len(values), width)
