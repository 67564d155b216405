"""Consoles to show things on, and things to show."""

import io

from rich.console import Console

from swath.report.eval_point import EvalPoint
from swath.report.seen import Sight

POINT = EvalPoint(512, 475.3, 451.2, 498.0, episodes=20)
LOSSES = {"policy": -0.01234, "value": 12.31}


def terminal(width=80, height=40, **settings):
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None, **settings)


def seen_of(facts):
    return Sight().look(facts, now=0.0)
