"""Fills pages with what was measured: whatever stands between two marks is written anew, the rest is left alone.

    <!-- figures: collectors -->            tables, verdicts and the picture of a part
    <!-- end -->
    <!-- figures: collectors tables -->     its tables alone
    <!-- end -->
    <!-- figure: collectors | NAME -->12.0<!-- end -->    the figure of one verdict, within a sentence; its name
                                                          may begin with the title above it

Two parts are made of all the others: `machine` says on what was measured, `missed` which targets were not reached.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"(<!-- figures: ([\w-]+)( tables)? -->\n).*?(<!-- end -->)", re.DOTALL)
INLINE = re.compile(r"(<!-- figure: ([\w-]+) \| (.+?) -->).*?(<!-- end -->)")

Fact = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """What one script has found.

    Attributes:
        command: that repeats it.
        seconds: it took.
        day: of the measurement.
        machine: on which it was made, a line each.
        facts: tables, courses and verdicts, in the order in which they were printed.
        failed: how it ended, if it did not come to its end.
    """

    command: str
    seconds: float
    day: str
    machine: list[str]
    facts: list[Fact]
    failed: str = ""

    @property
    def tables(self) -> list[Fact]:
        """Rows of figures under a title."""
        return [fact for fact in self.facts if fact["kind"] == "table"]

    @property
    def courses(self) -> list[Fact]:
        """What a picture shows as curves."""
        return [fact for fact in self.facts if fact["kind"] == "course"]

    @property
    def verdicts(self) -> list[tuple[str, Fact]]:
        """Figures, most with a target, each with the title of the table above it."""
        found, title = [], ""
        for fact in self.facts:
            if fact["kind"] == "table":
                title = fact["title"]
            elif fact["kind"] == "verdict":
                found.append((title, fact))
        return found

    def figure(self, name: str) -> str:
        """Of one verdict.

        Raises:
            KeyError: there is none, or more than one, of this name.
        """
        found = [one["got"] for title, one in self.verdicts if name in (one["what"], f"{title}: {one['what']}")]
        if self.failed and not found:
            return "(not measured)"
        if len(found) != 1:
            names = "; ".join(f"{title}: {one['what']}" for title, one in self.verdicts)
            raise KeyError(f"{len(found)} verdicts are called {name!r}; there are {names}")
        return str(found[0])

    def save(self, file: Path) -> None:
        """For pages that are filled later."""
        file.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> Measured:
        """What was saved."""
        return cls(**json.loads(file.read_text(encoding="utf-8")))


def filled(text: str, parts: Mapping[str, Measured]) -> str:
    """The page, with the figures of these parts; marks of others keep what they have.

    Raises:
        KeyError: a part has no verdict of a name that is asked for, or several.
    """

    def block(found: re.Match[str]) -> str:
        begin, name, only, end = found.groups()
        if name not in MADE_OF_ALL and name not in parts:
            return found[0]
        made = _tables if only else partial(_section, name)
        lines = MADE_OF_ALL[name](parts) if name in MADE_OF_ALL else made(parts[name])
        return begin + "\n" + "\n".join(lines).rstrip("\n") + "\n\n" + end

    def inline(found: re.Match[str]) -> str:
        begin, name, what, end = found.groups()
        return found[0] if name not in parts else f"{begin}{parts[name].figure(what)}{end}"

    return INLINE.sub(inline, BLOCK.sub(block, text))


def _section(name: str, part: Measured) -> Iterator[str]:
    for kind, facts in groupby(part.facts, key=lambda fact: fact["kind"]):
        if kind == "table":
            for fact in facts:
                yield from _table(fact)
        elif kind == "verdict":
            yield from _verdicts(list(facts))
    if part.failed:
        yield from (f"**{part.failed}**: what is missing here was not measured.", "")
    if part.tables:
        yield from (f"![{part.tables[0]['title']}](figures/{name}.png)", "")
    yield f"`{part.command}`, {part.day}, {part.seconds:.0f} s."


def _tables(part: Measured) -> Iterator[str]:
    for fact in part.tables:
        yield from _table(fact)


def _table(fact: Fact) -> Iterator[str]:
    yield "| " + " | ".join([fact["title"], *fact["columns"]]) + " |"
    yield "|---|" + "---:|" * len(fact["columns"])
    for name, cells in fact["rows"].items():
        yield "| " + " | ".join([name, *cells]) + " |"
    yield ""


def _verdicts(verdicts: list[Fact]) -> Iterator[str]:
    yield "| | measured | target | |"
    yield "|---|---:|---:|---|"
    for one in verdicts:
        wanted = one["wanted"] if one["passed"] else f"{one['wanted']}: **missed**"
        yield f"| {one['what']} | {one['got']} | {wanted} | {one['note']} |"
    yield ""


def _missed(parts: Mapping[str, Measured]) -> Iterator[str]:
    verdicts = [(title, one) for part in parts.values() for title, one in part.verdicts if one["wanted"]]
    missed = [(title, one) for title, one in verdicts if not one["passed"]]
    reached = f"{len(verdicts) - len(missed)} of {len(verdicts)} targets are reached"
    yield from (f"{reached}; these are missed:" if missed else f"{reached}.", "")
    for title, one in missed:
        note = f" ({one['note']})" if one["note"] else ""
        yield f"- {f'{title}: ' if title else ''}{one['what']}: {one['got']}, {one['wanted']} is wanted{note}"


def _machine(parts: Mapping[str, Measured]) -> Iterator[str]:
    for lines in {tuple(part.machine): None for part in parts.values()}:
        yield from (f"- {line}" for line in lines)


MADE_OF_ALL = {"missed": _missed, "machine": _machine}
