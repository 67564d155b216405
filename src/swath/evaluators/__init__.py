"""Public names of evaluation."""

from __future__ import annotations

from swath.evaluate.comparison import Comparison, compare
from swath.evaluate.result import EvalResult
from swath.evaluators.evaluate_policy import evaluate_policy
from swath.evaluators.evaluator import Evaluator

__all__ = ["Comparison", "EvalResult", "Evaluator", "compare", "evaluate_policy"]
