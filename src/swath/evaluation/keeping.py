"""The best weights so far, on disk: one safetensors file, and the result beside it as JSON.

result better than the bar ──▶ weights ──▶ .safetensors, then .json ──▶ the bar is raised
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from swath.evaluation.result import EvalResult
from swath.evaluation.setting import module_of
from swath.report.atomic import replacing
from swath.rollout.policies.calling import the_policy
from swath.weights.snapshot import POLICY

_SUFFIX = ".safetensors"


def _parts(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The entries of a state; extra state that is a dict is one entry for each of its own, as `name.key`."""
    for name, value in state.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", part) for key, part in value.items())
        else:
            yield name, value


def keeper_of(path: str | Path | None, prefix: str, policy: Any) -> Keeper | None:
    """The keeper that is asked for.

    Args:
        path: as `Keeper` takes it; `None` for none.
        prefix: of the names in results.
        policy: whose weights it is to keep; `None` where a factory builds it.

    Raises:
        ValueError: the policy has none; a path with another suffix, or files there that are something else.
    """
    if path is None:
        return None
    if policy is not None and module_of(policy) is None:
        raise ValueError(f"keep_best={str(path)!r} keeps weights, and {the_policy(policy)} has none; leave it out")
    return Keeper(path, prefix)


class Keeper:
    """Keeps the weights of the best evaluation.

    Args:
        path: a `.safetensors` file, beside which the result is written; or a folder, which gets `best.safetensors` and
            `best.json`.
        prefix: of the names in results.

    Attributes:
        bar: the mean return to beat; minus infinity if there is none. A JSON found on disk sets it.

    Raises:
        ValueError: a path with another suffix, or files there that are something else.
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
            plain = {name: value.detach().cpu().clone().contiguous() for name, value in named.items()}
            save_file(plain, str(draft))
        with replacing(self._result) as draft:
            draft.write_text(result.to_json())
        self.bar = float(result[self._key])

    def _found(self) -> float:
        """The best of what is there."""
        if not self._result.is_file():
            return -math.inf
        try:
            bar = EvalResult.from_json(self._result.read_text())[self._key]
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(f"{self._result} is no result with {self._key!r} ({error}); move it away") from None
        return -math.inf if math.isnan(bar) else float(bar)
