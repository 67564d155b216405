"""`swath doctor`: what was found, what is wanted, what to do."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from swath.cli.actors import actor_named
from swath.cli.failure import FAILED, OK, UsageError, told_if_broken_off, told_if_unserved, told_in_one_line
from swath.cli.naming import env_named
from swath.cli.places import backend_named
from swath.doctor import Apart, Effort, Level, Machine, Report, Subject, examine
from swath.report.text import number

if TYPE_CHECKING:
    from swath.doctor import Finding
    from swath.doctor.examination import Look

STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow", Level.NOTE: "dim"}
PLANS = ("policy", "policy_factory", "workers", "backend")
"""Options that say which looks there are, and what checks of the machine ask for."""
MEND = "mend that first; nothing else can be looked at before"


def run_doctor(env: str, given: dict[str, Any], *, as_json: bool) -> int:
    """Examine what the options name, print what was found, and return the exit code.

    Raises:
        UsageError: an option, the env or the policy cannot be used.
        BrokenOffError: the env raised, or did not come back, when it was built to see whether a checkpoint fits.
    """
    console = Console(highlight=False, emoji=False, markup=False, stderr=as_json)  # JSON stands alone on stdout
    words = given.get("policy") or given.get("policy_factory") or "random actions"
    with ExitStack() as stack:
        with told_if_broken_off(env, move=MEND):
            subject, look_at = _looking(env, given, stack)
        status = stack.enter_context(console.status("looking at this machine, and for a Ray cluster"))
        report = examine(subject, Machine.here(), lambda name: status.update(f"looking at {name}"), look_at)
    if as_json:
        print(json.dumps({"env": env, **report.to_dict()}, indent=2, allow_nan=False))
    else:
        console.print(f"{env}, {words}: {len(report.looked_at)} looks", soft_wrap=True)
        show(report, console)
    return FAILED if report.failed else OK


def _looking(env: str, given: dict[str, Any], stack: ExitStack) -> tuple[Subject, Look | None]:
    """What is planned, and who looks at env and policy: a process of its own, where the system can fork."""
    options = dict(given)
    patience = {"patience": options.pop("patience")} if "patience" in options else {}
    if not hasattr(os, "fork"):
        if patience:
            raise UsageError("--patience needs a system that can fork; leave it out")
        return subject_of(env, options), None
    with told_in_one_line():
        apart = Apart(partial(subject_of, env, options), **patience)
    look_at = stack.enter_context(apart).look
    return Subject(env, **{name: options[name] for name in PLANS if name in options}), look_at


def subject_of(env: str, options: dict[str, Any]) -> Subject:
    """What the options name.

    Raises:
        UsageError: there is no such env or policy, or a number is out of range.
    """
    given = dict(options)
    source = env_named(env)
    actor = actor_named(given.pop("policy", None), given.pop("policy_factory", None), env)
    if "backend" in given:
        given["backend"] = backend_named(given["backend"])
    effort = {name: given.pop(name) for name in ("steps", "seconds") if name in given}
    with told_in_one_line(), told_if_unserved(env):
        return Subject(source, actor.policy, actor.factory, **given, effort=Effort(**effort))


def show(report: Report, console: Console) -> None:
    """Print a report."""
    for finding in sorted(report.findings, key=lambda finding: list(Level).index(finding.level)):
        _show_finding(finding, console)
    if report.left_out:
        console.print(f"not looked at: {', '.join(report.left_out)}", soft_wrap=True)
    for line in spoken(report.figures):
        console.print(line, soft_wrap=True)
    console.print(_summary(report), soft_wrap=True)


def spoken(figures: dict[str, float]) -> list[str]:
    """What was measured, in words."""
    lines = []
    if "env_frames_per_second" in figures:
        share = figures["resetting_share"]
        lines.append(f"the env alone: {_rate(figures['env_frames_per_second'])}; resets take {share:.0%} of its time")
    if "collector_frames_per_second" in figures:
        envs = int(figures["collector_envs"])
        collector = f"a Collector of {envs} env{'s' if envs > 1 else ''}"
        lines.append(f"{collector} with random actions: {_rate(figures['collector_frames_per_second'])}")
        if "policy_frames_per_second" in figures:
            share, rate = figures["policy_share"], _rate(figures["policy_frames_per_second"])
            lines.append(f"{collector} with the policy: {rate}; the policy takes {share:.0%} of its time")
    return lines


def _rate(value: float) -> str:
    return f"{number(value)} frames/s"


def _show_finding(finding: Finding, console: Console) -> None:
    console.print(
        f"{finding.level.value}: {finding.what}: {finding.value}", style=STYLES[finding.level], soft_wrap=True
    )
    console.print(f"  wanted: {finding.wanted}", soft_wrap=True)
    console.print(f"  do: {finding.next_move}", soft_wrap=True)


def _summary(report: Report) -> str:
    levels = [finding.level for finding in report.findings]
    counts = [(level.value, levels.count(level)) for level in Level if level in levels]
    return ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in counts) or "nothing is wrong"
