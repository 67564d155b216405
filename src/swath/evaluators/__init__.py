"""Faces: evaluation of policies."""

from __future__ import annotations

from swath.evaluate.comparison import Comparison, compare
from swath.evaluate.result import EvalResult

__all__ = ["Comparison", "EvalResult", "compare"]
