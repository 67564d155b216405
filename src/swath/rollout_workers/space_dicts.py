"""Spaces as dictionaries that JSON can hold, in RLlib's format.

Box(-1, 1, (2,)) ──space_to_dict──▶ {"space": "box", "low": "eJyb7…", …} ──space_from_dict──▶ Box(-1, 1, (2,))
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

KINDS: Mapping[str, type[Space[Any]]] = {
    "box": spaces.Box,
    "discrete": spaces.Discrete,
    "multi-binary": spaces.MultiBinary,
    "multi-discrete": spaces.MultiDiscrete,
    "text": spaces.Text,
    "tuple": spaces.Tuple,
    "dict": spaces.Dict,
}
"""Spaces by RLlib's names for them."""


def space_to_dict(space: Space[Any]) -> dict[str, Any]:
    """Describe a space by texts, numbers, lists and dictionaries.

    Raises:
        ValueError: a space that is not one of gymnasium's for values of fixed structure, as Graph and Sequence.
    """
    entries: dict[str, Any]
    match space:
        case spaces.Box():
            entries = {"low": _to_text(space.low), "high": _to_text(space.high), "shape": list(space.shape)}
        case spaces.Discrete():
            entries = {"n": int(space.n), "start": int(space.start)}
        case spaces.MultiBinary():
            entries = {"n": np.asarray(space.n).tolist()}
        case spaces.MultiDiscrete():
            start = {"start": _to_text(space.start)} if space.start.any() else {}  # RLlib's format has none
            entries = {"nvec": _to_text(space.nvec), **start}
        case spaces.Text():
            lengths = {"min_length": space.min_length, "max_length": space.max_length}
            entries = {**lengths, "charset": "".join(space.character_list)}
        case spaces.Tuple():
            entries = {"spaces": [space_to_dict(part) for part in space.spaces]}
        case spaces.Dict():
            entries = {"spaces": {key: space_to_dict(part) for key, part in space.spaces.items()}}
        case _:
            raise ValueError(f"{space!r} has no description that JSON can hold; use spaces of fixed structure")
    dtype = {"dtype": np.dtype(space.dtype).str} if isinstance(space, spaces.Box | spaces.MultiDiscrete) else {}
    return {"space": next(name for name, kind in KINDS.items() if isinstance(space, kind)), **entries, **dtype}


def space_from_dict(described: Mapping[str, Any]) -> Space[Any]:
    """Build the space that `space_to_dict` described; nothing is unpickled.

    Raises:
        ValueError: a description of no space that is known.
    """
    if described["space"] not in KINDS:
        raise ValueError(f"space={described['space']!r} is none of {', '.join(KINDS)}; use what space_to_dict returned")
    entries = {name: value for name, value in described.items() if name != "space"}
    for name in ("low", "high", "nvec", "start"):
        if isinstance(entries.get(name), str):
            entries[name] = _from_text(entries[name])
    if "dtype" in entries:
        entries["dtype"] = np.dtype(entries["dtype"])
    if isinstance(parts := entries.get("spaces"), Mapping):
        entries["spaces"] = [(key, space_from_dict(part)) for key, part in parts.items()]
    elif parts is not None:
        entries["spaces"] = [space_from_dict(part) for part in parts]
    return KINDS[described["space"]](**entries)


def _to_text(array: np.ndarray[Any, Any]) -> str:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return base64.b64encode(zlib.compress(file.getvalue())).decode("ascii")


def _from_text(text: str) -> Any:
    return np.load(io.BytesIO(zlib.decompress(base64.b64decode(text))), allow_pickle=False)
