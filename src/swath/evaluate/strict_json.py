"""Numbers and tensors as strict JSON and back: what JSON has no word for is spelled as a string or an object."""

from __future__ import annotations

import math
from typing import Any

import torch

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def pack(value: Any) -> Any:
    """A bool, int, float, tensor, or list of numbers, as what `json.dumps(…, allow_nan=False)` takes."""
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return {"dtype": kind, "shape": list(value.shape), "values": pack(value.flatten().tolist())}
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    return value


def unpack(value: Any) -> Any:
    """The value that `pack` wrote."""
    if isinstance(value, dict):
        values = torch.tensor(unpack(value["values"]), dtype=getattr(torch, value["dtype"]))
        return values.reshape(value["shape"])
    if isinstance(value, list):
        return [unpack(item) for item in value]
    return _NOT_FINITE[value] if isinstance(value, str) else value
