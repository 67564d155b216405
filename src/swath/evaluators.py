"""Public names of evaluation."""

# ruff: noqa: PLC0414  names that are handed on, as type checkers want them

from swath.evaluation.evaluate_policy import evaluate_policy as evaluate_policy
from swath.evaluation.evaluator import Evaluator as Evaluator
from swath.evaluation.ray_eval_worker import RayEvalWorker as RayEvalWorker
from swath.evaluation.result import Comparison as Comparison
from swath.evaluation.result import EvalResult as EvalResult
from swath.evaluation.result import compare as compare
