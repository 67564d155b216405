"""Names for parameters of tests."""

import re


def plain(value):
    """Describe a value by words that are equal in every process, as pytest-xdist requires of names."""
    if isinstance(value, set):
        value = sorted(value, key=str)
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))[:60]
