"""Public names of evaluation."""

from __future__ import annotations

from swath.evaluate.comparison import Comparison, compare
from swath.evaluate.result import EvalResult
from swath.evaluators.evaluate_policy import evaluate_policy
from swath.evaluators.evaluator import Evaluator
from swath.evaluators.ray_eval_worker import RayEvalWorker

__all__ = ["Comparison", "EvalResult", "Evaluator", "RayEvalWorker", "compare", "evaluate_policy"]
