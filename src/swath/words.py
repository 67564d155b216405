"""Words of messages."""

from __future__ import annotations

import re

_AN = re.compile(r"[aeiou]|ndarray|[fhlmnrsx](?![aeiou_])(?-i:[A-Z0-9])", re.IGNORECASE)
"""How words begin that sound as if by a vowel; also names that begin with letters that are spelt, as in RLModule."""

_YET_A = re.compile(r"uni(?![dmn])|us[aeu]|uti|eu|one|(?-i:U[A-Z])", re.IGNORECASE)
"""How those of them begin that do not: unit, user, utility, one."""


def article(word: str) -> str:
    """A word behind its article: "a dict", "an int"."""
    bare = word.lstrip("_")
    return f"{'an' if _AN.match(bare) and not _YET_A.match(bare) else 'a'} {word}"


def kind_of(value: object) -> str:
    """What a value is: the name of its class, behind its article."""
    return article(type(value).__name__)
