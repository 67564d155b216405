"""Checkpoints: a tree of tensors, plain values and spaces in one `.safetensors` file.

```
{"policy": {"w": tensor}, "frames": 100}
   ├─ tensors ─────▶ "policy/w"                                       readable by anything that reads safetensors
   ├─ all the rest ▶ {"policy": {"w": {"$tensor": "policy/w"}}, …}    JSON in the file's metadata
   └─ of both ─────▶ a checksum                                       in the metadata, compared whenever it is read
```
"""

from __future__ import annotations

import json
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from swath.report.atomic import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        TypeError: the state holds something that is no tensor, plain value or space; the message says where.
        OSError: the file could not be written; the one that was there is as before.
    """
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_encode(state, "", tensors))
    checksum = str(_crc32(text, tensors))
    save_tensors(path, tensors, {"format": FORMAT, "version": str(FORMAT_VERSION), "state": text, "checksum": checksum})


def save_tensors(path: str | Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file, by temporary file and rename.

    Args:
        path: the file.
        tensors: contiguous, on the CPU, none sharing memory with another.
        metadata: for the file's header.

    Raises:
        OSError: the file could not be written; the one that was there is as before.
    """
    with replacing(path) as draft:
        try:
            save_file(tensors, str(draft), metadata)
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error


def load_checkpoint(path: str | Path) -> State:
    """Read the state as it was saved, tensors on the CPU; dicts, lists, tuples and integer keys come back as they were.

    Reading runs no code that the file could name: it holds tensors, plain values, and spaces of Gymnasium's six kinds.

    Raises:
        OSError: there is no such file, or it may not be read.
        ValueError: the file is damaged, or no checkpoint of Swath's, or of another version of it.
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
    if found != str(FORMAT_VERSION):
        is_old = found.isdecimal() and int(found) < FORMAT_VERSION
        move = "train again: it has no checksum" if is_old else "upgrade Swath"
        raise ValueError(f"{file} has checkpoint format {found}, this Swath reads {FORMAT_VERSION}; {move}")
    text, saved = metadata.get("state", ""), metadata.get("checksum")
    if (computed := str(_crc32(text, tensors))) != saved:
        raise ValueError(f"{file} is damaged: checksum {computed}, {saved} was saved; take another checkpoint")
    try:
        state: State = _decode(json.loads(text), tensors)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{file} is damaged: its state cannot be read ({why}); take another checkpoint") from None
    return state


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """View a tensor on the CPU as its bytes, flat; one that is not contiguous is copied."""
    flat = tensor.detach().reshape(-1).contiguous()
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy().data  # a single number may have the stride 0


def _crc32(text: str, tensors: Mapping[str, torch.Tensor]) -> int:
    """Compute the CRC-32 of a text and of the names, dtypes, shapes and bytes of tensors, in the order of the names."""
    total = zlib.crc32(text.encode())
    for name, tensor in sorted(tensors.items()):
        total = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), total)
        total = zlib.crc32(bytes_of(tensor), total)
    return total


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
    if isinstance(value, Space):
        kind = next((name for name, kind in _SPACES.items() if isinstance(value, kind)), type(value).__name__)
        return {_SPACE: kind, "of": _encode(_arguments(value, where), where, tensors)}
    if isinstance(value, list | tuple):
        parts = [_encode(item, f"{where}/{index}", tensors) for index, item in enumerate(value)]
        return {_TUPLE: parts} if isinstance(value, tuple) else parts
    if value is None or isinstance(value, str | bool | int | float):
        return value
    what = f"{where or 'the state'} is of type {type(value).__name__}"
    raise TypeError(f"{what}; a checkpoint holds tensors, plain values and spaces")


def _arguments(space: Space[Any], where: str) -> dict[str, Any]:
    """Collect what makes an equal space.

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
    raise TypeError(f"{where} is a space of type {type(space).__name__}; a checkpoint holds {', '.join(_SPACES)}")


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
    """Make a space of one of the kinds that a checkpoint holds."""
    values = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    if "dtype" in values:
        values["dtype"] = np.dtype(values["dtype"])
    if kind == "Dict":
        values["spaces"] = OrderedDict(values["spaces"])  # in a dict keys would be sorted
    space: Space[Any] = _SPACES[kind](**values)
    return space
