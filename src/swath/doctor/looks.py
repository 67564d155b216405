"""The looks at an env and a policy by their names, carried out in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from swath.doctor.env_api import check_env, raised
from swath.doctor.env_autoreset import check_autoreset
from swath.doctor.env_leaks import check_leaks
from swath.doctor.env_pickling import check_env_pickling, check_policy_pickling, check_recipe
from swath.doctor.env_seeds import check_seeds
from swath.doctor.env_speed import check_pace, measure_pace
from swath.doctor.fault import Fault
from swath.doctor.finding import Finding, Level, told
from swath.doctor.stacks import users_line
from swath.doctor.subject import Subject
from swath.doctor.use import check_policy, check_use

Check = Callable[[Subject], Iterable[Finding]]

INTERFACE_LOOK = "interface"
GATES: dict[str, Check] = {INTERFACE_LOOK: check_env, "collecting": check_use}
"""What must be well before anything else of the env can be looked at."""

LOOKS: dict[str, Check] = {
    "autoreset": check_autoreset,
    "seeds": check_seeds,
    "pickling": check_env_pickling,
    "memory": check_leaks,
}

RECIPE: dict[str, Check] = {"recipe": check_recipe}
POLICY: dict[str, Check] = {"policy": check_policy, "policy's pickling": check_policy_pickling}
"""For those who gave one."""

SPEED = "speed"


@dataclass(frozen=True)
class Looked:
    """What came of one look.

    Attributes:
        findings: in the order in which they were found.
        figures: what was measured, by name.
    """

    findings: list[Finding]
    figures: dict[str, float] = field(default_factory=dict)


def look(subject: Subject, name: str) -> Looked:
    """Carry out the look of this name."""
    figures: dict[str, float] = {}
    checks: dict[str, Check] = {**GATES, **LOOKS, **RECIPE, **POLICY, SPEED: partial(_timed, figures=figures)}
    return Looked(found(name, partial(checks[name], subject)), figures)


def found(name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What a check finds, and what keeps it from its end."""
    findings: list[Finding] = []
    try:
        findings.extend(check())
    except Fault as fault:
        findings.append(raised(fault))
    except (Exception, SystemExit) as error:  # noqa: BLE001  the checks run the user's code
        findings.append(broken_off(name, error))
    return findings


def broken_off(name: str, error: BaseException) -> Finding:
    """A check that could not be carried out to its end."""
    line = users_line(error)
    move = f"mend what raised it{f' at {line}' if line else ''}; this look could not be ended"
    return Finding(Level.ERROR, f"the look at {name}", f"it raised {told(error)}", "a look that finds its end", move)


def _timed(subject: Subject, figures: dict[str, float]) -> Iterable[Finding]:
    pace = measure_pace(subject)
    figures.update(pace.figures())
    return check_pace(pace)
