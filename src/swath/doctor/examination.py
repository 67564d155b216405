"""All checks, in an order in which none trips over what an earlier one has found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from swath.doctor.env_api import INTERFACE
from swath.doctor.finding import Finding, Level
from swath.doctor.looks import GATES, LOOKS, POLICY, RECIPE, SPEED, Looked, found, look
from swath.doctor.machine import Machine
from swath.doctor.memory import check_memory
from swath.doctor.ray_cluster import check_ray
from swath.doctor.subject import Subject
from swath.doctor.threads import check_threads
from swath.doctor.versions import check_versions

Look = Callable[[str], Looked]
"""Carries out the look at env and policy of this name, wherever."""


@dataclass
class Report:
    """What was looked at, and what was found.

    Attributes:
        findings: in the order in which they were found.
        looked_at: names of the checks that were carried out.
        left_out: names of those that were not, because of what was found before, or because the env has another
            interface.
        figures: what was measured, by name.
    """

    findings: list[Finding] = field(default_factory=list)
    looked_at: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Whether there is an error among the findings."""
        return any(finding.level is Level.ERROR for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "findings": [finding.to_dict() for finding in self.findings]}


def examine(
    subject: Subject, machine: Machine, say: Callable[[str], None] = lambda _: None, look_at: Look | None = None
) -> Report:
    """Carry out all checks.

    Args:
        subject: env, policy and plans; only where it has a policy is one looked at.
        machine: facts; `Machine.here()` looks for them.
        say: called with the name of each check before it begins.
        look_at: carries out the looks at env and policy; in this process, unless it is another's, as `Apart.look` is.
    """
    looking = _Looking(Report(), say)
    in_use = [*RECIPE, *(POLICY if subject.has_policy else ())]
    _examine_env(look_at or partial(look, subject), looking, in_use)
    looking.at_facts("threads", lambda: check_threads(subject, machine.threads))
    looking.at_facts("shared memory", lambda: check_memory(subject, machine.shared, machine.ray))
    looking.at_facts("Ray", lambda: check_ray(subject, machine.ray, machine.threads))
    looking.at_facts("versions", lambda: check_versions(machine.versions, machine.required))
    return looking.report


class _Looking:
    """Carries out checks one by one and keeps what they find."""

    def __init__(self, report: Report, say: Callable[[str], None]) -> None:
        self.report = report
        self._say = say

    def at(self, name: str, look_at: Look) -> bool:
        """Whether it found no error."""
        self._say(name)
        looked = look_at(name)
        self.report.findings += looked.findings
        self.report.figures.update(looked.figures)
        self.report.looked_at.append(name)
        return all(finding.level is not Level.ERROR for finding in looked.findings)

    def at_facts(self, name: str, check: Callable[[], Iterable[Finding]]) -> None:
        """Carry out a check that is given facts."""
        self.at(name, lambda _: Looked(found(name, check)))


def _examine_env(look_at: Look, looking: _Looking, in_use: Sequence[str]) -> None:
    report, rest = looking.report, [*GATES, *LOOKS, *in_use, SPEED]
    for name in GATES:
        rest.remove(name)
        if not looking.at(name, look_at):
            report.left_out += rest
            return
    if any(finding.what == INTERFACE for finding in report.findings):
        report.left_out += LOOKS
    else:
        for name in LOOKS:
            looking.at(name, look_at)
    acts = [looking.at(name, look_at) for name in in_use]
    if all(acts):
        looking.at(SPEED, look_at)
    else:
        report.left_out.append(SPEED)
