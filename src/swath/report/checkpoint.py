"""Checkpoints: a tree of tensors and plain values in one `.safetensors` file.

```
{"policy": {"w": tensor}, "frames": 100}
   ├─ tensors ─────▶ "policy/w"                                       readable by anything that reads safetensors
   └─ all the rest ▶ {"policy": {"w": {"$tensor": "policy/w"}}, …}    JSON in the file's metadata
```
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from swath.report.atomic import replacing

FORMAT, FORMAT_VERSION = "swath-checkpoint", 1

State: TypeAlias = dict[str, Any]
"""Nested dicts (keys: text or integers), lists and tuples of tensors, numbers, text, booleans and None."""

_TENSOR, _TUPLE, _ITEMS = "$tensor", "$tuple", "$items"


def save_checkpoint(path: str | Path, state: State) -> None:
    """Write the state to one file, by temporary file and rename; the tensors are copied to the CPU.

    Raises:
        TypeError: the state holds something that is neither a tensor nor a plain value; the message says where.
        OSError: the file could not be written; the one that was there is as before.
    """
    tensors: dict[str, torch.Tensor] = {}
    metadata = {"format": FORMAT, "version": str(FORMAT_VERSION), "state": json.dumps(_encode(state, "", tensors))}
    with replacing(path) as draft:
        try:
            save_file(tensors, str(draft), metadata)
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error


def load_checkpoint(path: str | Path) -> State:
    """The state as it was saved, tensors on the CPU; dicts, lists, tuples and integer keys come back as they were.

    Raises:
        OSError: there is no such file, or it may not be read.
        ValueError: the file is damaged, or no checkpoint of Swath's, or from a newer version of it.
    """
    file = Path(path)
    file.open("rb").close()  # safetensors would say of one that may not be read that it is not there
    try:
        with safe_open(str(file), framework="pt") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118  no mapping
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file ({error}); take another checkpoint") from None
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{file} was not written by Swath: its metadata lack format={FORMAT!r}")
    found = metadata.get("version", "")
    if not found.isdecimal() or int(found) > FORMAT_VERSION:
        raise ValueError(f"{file} has checkpoint format {found}, this Swath reads {FORMAT_VERSION}; upgrade Swath")
    try:
        state: State = _decode(json.loads(metadata["state"]), tensors)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} is damaged: its state cannot be read ({error!r}); take another checkpoint") from None
    return state


def _encode(value: Any, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The value as JSON has it; its tensors are added to the others under names of their own."""
    if isinstance(value, torch.Tensor):
        while where in tensors:  # "a/b" is an entry of the root, and one of "a"
            where += "'"
        tensors[where] = value.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: where}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise TypeError(f"{where or 'the state'} has the key {key!r}; keys are text or integers")
        items = [(key, _encode(item, f"{where}/{key}".removeprefix("/"), tensors)) for key, item in value.items()]
        plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
        return dict(items) if plain else {_ITEMS: items}
    if isinstance(value, list | tuple):
        parts = [_encode(item, f"{where}/{index}", tensors) for index, item in enumerate(value)]
        return {_TUPLE: parts} if isinstance(value, tuple) else parts
    if value is None or isinstance(value, str | bool | int | float):
        return value
    what = f"{where or 'the state'} is of type {type(value).__name__}"
    raise TypeError(f"{what}; a checkpoint holds tensors and plain values")


def _decode(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, list):
        return [_decode(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _TENSOR in tree:
        return tensors[tree[_TENSOR]]
    if _TUPLE in tree:
        return tuple(_decode(tree[_TUPLE], tensors))
    return {key: _decode(item, tensors) for key, item in tree.get(_ITEMS, tree.items())}
