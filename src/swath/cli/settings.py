"""Settings of the learner from the command line: `--ppo.learning-rate 1e-3`."""

from __future__ import annotations

import ast
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from swath.cli.failure import UsageError
from swath.learn.config import PPOConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

ELSEWHERE = {"total_frames": "--frames", "seed": "--seed"}
"""Settings that follow from an option of the run."""

NAMES = tuple(field.name for field in fields(PPOConfig) if field.name not in ELSEWHERE)


def parse_settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """Names as `PPOConfig` spells them, values as Python reads them.

    Raises:
        UsageError: an unknown name, or a value that is neither a number, True, False nor None.
    """
    return {_name(name): _value(name, text) for name, text in texts.items()}


def _name(name: str) -> str:
    known = name.replace("-", "_")
    if known in ELSEWHERE:
        raise UsageError(f"--ppo.{name}: use {ELSEWHERE[known]}")
    if known not in NAMES:
        raise UsageError(f"--ppo.{name}: PPO has the settings {', '.join(NAMES)}")
    return known


def _value(name: str, text: str) -> float | bool | None:
    try:
        value = ast.literal_eval(text.capitalize() if text.lower() in {"true", "false", "none"} else text)
    except (ValueError, SyntaxError):
        value = text
    if value is None or isinstance(value, int | float):
        return value
    raise UsageError(f"--ppo.{name} {text} must be a number, true, false or none")
