"""Checkpoints: a tree of tensors, plain values and spaces in one `.safetensors` file.

```
{"policy": {"w": tensor}, "frames": 100}
   ├─ tensors ─────▶ "policy/w"                                       readable by anything that reads safetensors
   ├─ other values ▶ {"policy": {"w": {"$tensor": "policy/w"}}, …}    JSON in the file's metadata
   └─ of both ─────▶ a checksum                                       in the metadata, compared at every read
```
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from swath.report.atomic import replace_atomically

FORMAT, FORMAT_VERSION = "swath-checkpoint", 2

State: TypeAlias = dict[str, Any]
"""Nested dicts (keys: text or integers), lists and tuples of tensors, numbers, text, booleans, None and spaces."""

_TENSOR, _TUPLE, _ITEMS, _SPACE = "$tensor", "$tuple", "$items", "$space"
_SPACES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict, spaces.Tuple)
}


def save_checkpoint(path: str | Path, state: State) -> None:
    """Write the state to one file, by temporary file and rename; the tensors are copied to the CPU.

    Raises:
        TypeError: an entry of the state is no tensor, plain value or space; the message names it.
        OSError: the file could not be written; an old file does not change.
    """
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_encode(state, "", tensors))
    checksum = str(_crc32(text, tensors))
    save_tensors(path, tensors, {"format": FORMAT, "version": str(FORMAT_VERSION), "state": text, "checksum": checksum})


def save_tensors(path: str | Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, by temporary file and rename.

    Args:
        path: the file.
        tensors: contiguous, on the CPU, without common memory.
        metadata: texts for the file's header.

    Raises:
        OSError: the file could not be written; an old file does not change.
    """
    with replace_atomically(path) as draft:
        try:
            save_file(tensors, str(draft), metadata)
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error


def load_checkpoint(path: str | Path) -> State:
    """Read a state, with tensors on the CPU, and the same dicts, lists, tuples and integer keys that were saved.

    Reading runs no code from the file: it holds tensors, plain values, and spaces of Gymnasium's six kinds.

    Raises:
        OSError: the file is missing, or may not be read.
        ValueError: the file is damaged, no checkpoint of Swath, or a checkpoint of another version.
    """
    file = Path(path)
    file.open("rb").close()  # safetensors would report a file without read permission as missing
    try:
        with safe_open(str(file), framework="pt") as content:
            metadata = content.metadata() or {}
            tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118  no mapping
    except SafetensorError as error:
        raise ValueError(f"{file} is not a whole safetensors file ({error}); take another checkpoint") from None
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{file} was not written by Swath: its metadata lack format={FORMAT!r}")
    version = metadata.get("version", "")
    if version != str(FORMAT_VERSION):
        is_old = version.isdecimal() and int(version) < FORMAT_VERSION
        advice = "train again: it has no checksum" if is_old else "upgrade Swath"
        raise ValueError(f"{file} has checkpoint format {version}, this Swath reads {FORMAT_VERSION}; {advice}")
    text, saved = metadata.get("state", ""), metadata.get("checksum")
    if (computed := str(_crc32(text, tensors))) != saved:
        raise ValueError(f"{file} is damaged: checksum {computed}, {saved} was saved; take another checkpoint")
    try:
        state: State = _decode(json.loads(text), tensors)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{file} is damaged: its state cannot be read ({reason}); take another checkpoint") from None
    return state


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU, as a view if it is contiguous."""
    flat = tensor.detach().reshape(-1).contiguous()
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy().data  # a single number may have the stride 0


def _crc32(text: str, tensors: Mapping[str, torch.Tensor]) -> int:
    """Compute the CRC-32 of a text and of the names, dtypes, shapes and bytes of tensors, in the order of the names."""
    total = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        total = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), total)
        total = zlib.crc32(bytes_of(tensor), total)
    return total


def _encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return the value for JSON, and add its tensors to `tensors` under unique names."""
    if isinstance(value, torch.Tensor):
        while path in tensors:  # "a/b" may be an entry of the root, and "b" an entry of "a"
            path += "'"
        tensors[path] = value.detach().to("cpu", copy=True).contiguous()
        return {_TENSOR: path}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise TypeError(f"{path or 'the state'} has the key {key!r}; keys are text or integers")
        items = [(key, _encode(item, f"{path}/{key}".removeprefix("/"), tensors)) for key, item in value.items()]
        plain = all(isinstance(key, str) and not key.startswith("$") for key in value)
        return dict(items) if plain else {_ITEMS: items}
    if isinstance(value, Space):
        kind = next((name for name, kind in _SPACES.items() if isinstance(value, kind)), type(value).__name__)
        return {_SPACE: kind, "of": _encode(_arguments(value, path), path, tensors)}
    if isinstance(value, list | tuple):
        parts = [_encode(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
        return {_TUPLE: parts} if isinstance(value, tuple) else parts
    if value is None or isinstance(value, str | bool | int | float):
        return value
    kind = type(value).__name__
    raise TypeError(f"{path or 'the state'} is of type {kind}; a checkpoint holds tensors, plain values and spaces")


def _arguments(space: Space[Any], path: str) -> dict[str, Any]:
    """Return constructor arguments for an equal space.

    Raises:
        TypeError: a space of another kind.
    """

    def arrays(*names: str) -> dict[str, Any]:
        return {**{name: torch.from_numpy(getattr(space, name).copy()) for name in names}, "dtype": str(space.dtype)}

    match space:
        case spaces.Box():
            return arrays("low", "high")
        case spaces.MultiDiscrete():
            return arrays("nvec", "start")
        case spaces.Discrete():
            return {"n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
        case spaces.MultiBinary():
            return {"n": space.n}
        case spaces.Dict():
            return {"spaces": tuple(space.spaces.items())}
        case spaces.Tuple():
            return {"spaces": space.spaces}
    raise TypeError(f"{path} is a space of type {type(space).__name__}; a checkpoint holds {', '.join(_SPACES)}")


def _decode(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, list):
        return [_decode(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if _TENSOR in tree:
        return tensors[tree[_TENSOR]]
    if _SPACE in tree:
        return _space(tree[_SPACE], _decode(tree["of"], tensors))
    if _TUPLE in tree:
        return tuple(_decode(tree[_TUPLE], tensors))
    return {key: _decode(item, tensors) for key, item in tree.get(_ITEMS, tree.items())}


def _space(kind: str, arguments: dict[str, Any]) -> Space[Any]:
    """Return a space of one of the kinds in `_SPACES`."""
    values = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    if "dtype" in values:
        values["dtype"] = np.dtype(values["dtype"])
    if kind == "Dict":
        values["spaces"] = OrderedDict(values["spaces"])  # gymnasium sorts the keys of a dict
    space: Space[Any] = _SPACES[kind](**values)
    return space
