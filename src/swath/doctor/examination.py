"""All checks, in an order in which none trips over what an earlier one has found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from swath.doctor.env_api import check_env, raised
from swath.doctor.env_autoreset import check_autoreset
from swath.doctor.env_leaks import check_leaks
from swath.doctor.env_pickling import check_env_pickling, check_policy_pickling, check_recipe
from swath.doctor.env_seeds import check_seeds
from swath.doctor.env_speed import check_pace, measure_pace
from swath.doctor.finding import Finding, Level, told
from swath.doctor.machine import Machine
from swath.doctor.memory import check_memory
from swath.doctor.ray_cluster import check_ray
from swath.doctor.subject import Subject, is_walkable
from swath.doctor.threads import check_threads
from swath.doctor.use import check_policy, check_use
from swath.doctor.versions import check_versions
from swath.doctor.walk import Fault

Check = Callable[[Subject], Iterable[Finding]]

GATES: dict[str, Check] = {"interface": check_env, "collecting": check_use}
"""What must be well before anything else of the env can be looked at."""

LOOKS: dict[str, Check] = {
    "autoreset": check_autoreset,
    "seeds": check_seeds,
    "pickling": check_env_pickling,
    "memory": check_leaks,
}

IN_USE: dict[str, Check] = {
    "recipe": check_recipe,
    "policy": check_policy,
    "policy's pickling": check_policy_pickling,
}
SPEED = "speed"


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


def examine(subject: Subject, machine: Machine, say: Callable[[str], None] = lambda _: None) -> Report:
    """Carry out all checks.

    Args:
        subject: env, policy and plans.
        machine: facts; `Machine.here()` looks for them.
        say: called with the name of each check before it begins.
    """
    look = _Looking(Report(), say)
    _examine_env(subject, look)
    look.at("threads", lambda: check_threads(subject, machine.threads))
    look.at("shared memory", lambda: check_memory(subject, machine.shared, machine.ray))
    look.at("Ray", lambda: check_ray(subject, machine.ray))
    look.at("versions", lambda: check_versions(machine.versions, machine.required))
    return look.report


class _Looking:
    """Carries out checks one by one and keeps what they find."""

    def __init__(self, report: Report, say: Callable[[str], None]) -> None:
        self.report = report
        self._say = say

    def at(self, name: str, check: Callable[[], Iterable[Finding]]) -> bool:
        """Whether it found no error."""
        self._say(name)
        found: list[Finding] = []
        try:
            found.extend(check())
        except Fault as fault:
            found.append(raised(fault))
        except Exception as error:  # noqa: BLE001  the checks run the user's code
            found.append(broken_off(name, error))
        self.report.findings += found
        self.report.looked_at.append(name)
        return all(finding.level is not Level.ERROR for finding in found)


def broken_off(name: str, error: Exception) -> Finding:
    """A check that could not be carried out to its end."""
    move = "mend what raised it; this look could not be ended"
    return Finding(Level.ERROR, f"the look at {name}", f"it raised {told(error)}", "a look that finds its end", move)


def _examine_env(subject: Subject, look: _Looking) -> None:
    rest = [*GATES, *LOOKS, *IN_USE, SPEED]
    for name, check in GATES.items():
        rest.remove(name)
        if not look.at(name, partial(check, subject)):
            look.report.left_out += rest
            return
    if _is_walkable(subject):
        for name, check in LOOKS.items():
            look.at(name, partial(check, subject))
    else:
        look.report.left_out += LOOKS
    acts = [look.at(name, partial(check, subject)) for name, check in IN_USE.items()]
    if all(acts):
        look.at(SPEED, lambda: _timed(subject, look.report))
    else:
        look.report.left_out.append(SPEED)


def _is_walkable(subject: Subject) -> bool:
    env = subject.make()
    subject.done_with(env)
    return is_walkable(env)


def _timed(subject: Subject, report: Report) -> Iterable[Finding]:
    pace = measure_pace(subject)
    report.figures.update(pace.figures())
    return check_pace(pace)
