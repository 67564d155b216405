"""Names for parameters of tests."""

import re


def plain(value):
    """A value in words that are the same in every process; several processes share the suite only if names agree."""
    if isinstance(value, set):
        value = sorted(value, key=str)
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))[:60]
