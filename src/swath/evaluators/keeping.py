"""The best weights so far, on disk: one safetensors file, and the result beside it as JSON.

result better than the bar ──▶ weights ──▶ .safetensors, then .json ──▶ the bar is raised
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from swath.evaluate.result import EvalResult
from swath.report.atomic import replacing
from swath.weights.names import POLICY

_SUFFIX = ".safetensors"


def _parts(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a state; extra state that is a dict is one entry for each of its own, as `name.key`."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", part) for key, part in value.items())
        else:
            yield name, value


class Keeper:
    """Keeps the weights of the best evaluation.

    Args:
        path: a `.safetensors` file, beside which the result is written; or a folder, which gets `best.safetensors` and
            `best.json`.
        prefix: of the names in results.

    Attributes:
        bar: the mean return to beat; minus infinity if there is none. What is found on disk sets it.

    Raises:
        ValueError: a path with another suffix, or a file beside it that is not the JSON of a result.
    """

    def __init__(self, path: str | Path, prefix: str) -> None:
        given = Path(path)
        if given.suffix not in ("", _SUFFIX):
            raise ValueError(f"keep_best={str(path)!r} must end in {_SUFFIX}, or be a folder without a suffix")
        self._weights = given if given.suffix else given / f"best{_SUFFIX}"
        self._result = self._weights.with_suffix(".json")
        self._key = f"{prefix}/reward"
        self.bar = self._found()

    def beaten_by(self, result: EvalResult) -> bool:
        """Whether this is better than what is kept; a tie is not, NaN never is."""
        return bool(result[self._key] > self.bar)

    def keep(self, result: EvalResult, weights: Mapping[str, Mapping[str, Any]]) -> None:
        """Write both files, each whole or not at all.

        Args:
            result: the best so far.
            weights: state by model id; the policy's entries keep their names, those of others are `<id>::<name>`.

        Raises:
            OSError: they could not be written; the old ones are whole.
            TypeError: extra state of a model that is no tensor.
        """
        named = {
            name if model_id == POLICY else f"{model_id}::{name}": value
            for model_id, state in weights.items()
            for name, value in _parts(state)
        }
        strange = [name for name, value in named.items() if not isinstance(value, torch.Tensor)]
        if strange:
            raise TypeError(f"keep_best writes tensors only; {', '.join(strange)} is extra state of another kind")
        with replacing(self._weights) as draft:
            save_file({name: value.detach().cpu().clone().contiguous() for name, value in named.items()}, str(draft))
        with replacing(self._result) as draft:
            draft.write_text(result.to_json())
        self.bar = float(result[self._key])

    def _found(self) -> float:
        if not self._result.is_file():
            return -math.inf
        try:
            bar = EvalResult.from_json(self._result.read_text())[self._key]
        except (json.JSONDecodeError, KeyError, ValueError, TypeError) as error:
            raise ValueError(
                f"{self._result} is not the result of an evaluation with {self._key!r} ({error}); move it away, or "
                "choose another keep_best"
            ) from None
        return -math.inf if math.isnan(bar) else float(bar)
