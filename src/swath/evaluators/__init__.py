"""Public names of evaluation."""

from __future__ import annotations

from swath.evaluate.comparison import Comparison, compare
from swath.evaluate.result import EvalResult
from swath.evaluators.evaluate_policy import evaluate_policy

__all__ = ["Comparison", "EvalResult", "compare", "evaluate_policy"]
