"""Public names of evaluation."""

from __future__ import annotations

from swath.evaluation.evaluate_policy import evaluate_policy
from swath.evaluation.evaluator import Evaluator
from swath.evaluation.ray_eval_worker import RayEvalWorker
from swath.evaluation.result import Comparison, EvalResult, compare

__all__ = ["Comparison", "EvalResult", "Evaluator", "RayEvalWorker", "compare", "evaluate_policy"]
