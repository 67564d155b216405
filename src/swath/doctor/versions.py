"""Whether packages are as new as Swath needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from swath.doctor.finding import Finding, Level
from swath.doctor.machine import name_of

LEAST = re.compile(r">=\s*([\d.]+)")


def check_versions(versions: Mapping[str, str], required: Sequence[str]) -> Iterator[Finding]:
    """Packages that are installed, but older than they must be."""
    for requirement in required:
        name, least = name_of(requirement), LEAST.search(requirement.split(";")[0])
        have = versions.get(name)
        if have and least and number_of(have) < number_of(least[1]):
            yield Finding(
                Level.ERROR, name, have, f"{least[1]} or newer", f'pip install --upgrade "{name}>={least[1]}"'
            )


def number_of(version: str) -> tuple[int, ...]:
    """The numbers of a version: `2.13.0+cpu` is `(2, 13, 0)`."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
