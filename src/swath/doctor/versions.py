"""Whether packages are as new as Swath needs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from swath.doctor.finding import Finding, Level
from swath.doctor.machine import name_of

LEAST = re.compile(r">=\s*([\d.]+)")
EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)")
OF_OUR_OWN = ("dev", "docs")
"""Extras for work on Swath itself: what they name is nothing that a run uses."""


def check_versions(versions: Mapping[str, str], required: Sequence[str]) -> Iterator[Finding]:
    """Packages that are installed, but older than they must be."""
    for requirement in required:
        asked, _, marker = requirement.partition(";")
        name, least, extra = name_of(requirement), LEAST.search(asked), EXTRA.search(marker)
        have = versions.get(name)
        if have and least and number_of(have) < number_of(least[1]) and not (extra and extra[1] in OF_OUR_OWN):
            yield _old(name, have, least[1], extra[1] if extra else "")


def _old(name: str, have: str, least: str, extra: str) -> Finding:
    """What an extra brings is wanted only by those who use it."""
    wanted = f"{least} or newer{f', for swath[{extra}]' if extra else ''}"
    move = f'pip install --upgrade "{name}>={least}"'
    return Finding(Level.WARNING if extra else Level.ERROR, name, have, wanted, move)


def number_of(version: str) -> tuple[int, ...]:
    """The numbers of a version: `2.13.0+cpu` is `(2, 13, 0)`."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()
