"""Measures one env and one policy in many settings, and says which is fastest.

options ─▶ grid ─▶ settings ─▶ rounds: every setting in turn, again and again ─▶ scores: medians ─▶ the best
"""

from swath.bench.grid import Grid
from swath.bench.rounds import Measurement, Rounds, Subject, measure
from swath.bench.scores import Score, as_fast, best, shares, whole_rounds
from swath.bench.setting import Setting

__all__ = [
    "Grid",
    "Measurement",
    "Rounds",
    "Score",
    "Setting",
    "Subject",
    "as_fast",
    "best",
    "measure",
    "shares",
    "whole_rounds",
]
