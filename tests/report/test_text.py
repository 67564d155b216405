import math

import pytest

from swath.report.text import duration, number


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
