"""Marks: which env, which episode, which step; written into an observation of any space, and read back.

    Mark(env, episode, step) ──▶ write(space, mark) ──▶ env ──▶ batch ──▶ read(space, entry) ──▶ [..., 3]

Every leaf of a space carries the whole mark, so that a mix-up of envs, rows or leaves shows itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from swath.rollout.spaces import Array

BITS = (8, 16, 20)
"""Room for env, episode and step."""

_CHANNELS = tuple(bits + (-bits) % 8 for bits in BITS)
_N_BYTES = sum(bits // 8 for bits in _CHANNELS)
_SIZES = np.array([2**bits for bits in BITS])


class Mark(NamedTuple):
    """Which observation this is: of which env, in which episode (from 0), after how many steps."""

    env: int
    episode: int
    step: int


def _vector(dtype: Any) -> spaces.Box:
    return spaces.Box(np.zeros(3, dtype), _SIZES.astype(dtype), dtype=dtype)


def _image() -> spaces.Box:
    return spaces.Box(0, 255, (_N_BYTES, 2, 3), np.uint8)


OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": _vector(np.float32),
    "float64": _vector(np.float64),
    "image": _image(),
    "discrete": spaces.Discrete(2 ** sum(BITS), start=3),
    "multi_discrete": spaces.MultiDiscrete(_SIZES),
    "multi_binary": spaces.MultiBinary(sum(BITS)),
    "dict": spaces.Dict({"image": _image(), "place": _vector(np.float32)}),
    "tuple": spaces.Tuple((_vector(np.float32), spaces.Discrete(2 ** sum(BITS)))),
    "nested": spaces.Dict(
        {
            "camera": spaces.Dict({"left": _image(), "right": _image()}),
            "state": spaces.Tuple((_vector(np.float64), spaces.Dict({"bits": spaces.MultiBinary(sum(BITS))}))),
        }
    ),
}
"""Spaces that hold marks, by name; what is composed of their leaves by Dict and Tuple holds marks too."""


def write(space: spaces.Space[Any], mark: Mark) -> Any:
    """The observation of this space that says `mark`.

    Raises:
        ValueError: the space cannot hold marks, or the mark is too large.
    """
    if isinstance(space, spaces.Dict):
        return {name: write(part, mark) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(write(part, mark) for part in space.spaces)
    if any(not 0 <= value < size for value, size in zip(mark, _SIZES, strict=True)):
        raise ValueError(f"{mark} does not fit; env, episode and step must be below {_SIZES.tolist()}")
    return _write_leaf(space, mark)


def read(space: spaces.Space[Any], entry: Any) -> Array:
    """Marks `[..., 3]` out of the batch entry `[..., *shape]` of a leaf.

    Raises:
        AssertionError: the parts of one observation contradict each other.
    """
    values = np.asarray(entry)
    if isinstance(space, spaces.Discrete):
        return _split(values.astype(np.int64) - int(space.start))
    if isinstance(space, spaces.MultiBinary):
        return _split(values.astype(np.int64) @ (1 << np.arange(sum(BITS))))
    if isinstance(space, spaces.Box) and space.dtype == np.uint8:
        return _read_image(values)
    return values.astype(np.int64)


def leaf_spaces(space: spaces.Space[Any]) -> Iterator[spaces.Space[Any]]:
    """The leaves of a space, in the order of its batch entries."""
    if isinstance(space, spaces.Dict):
        for part in space.spaces.values():
            yield from leaf_spaces(part)
    elif isinstance(space, spaces.Tuple):
        for part in space.spaces:
            yield from leaf_spaces(part)
    else:
        yield space


def _write_leaf(space: spaces.Space[Any], mark: Mark) -> Any:
    if isinstance(space, spaces.Discrete) and space.n >= 2 ** sum(BITS):
        return np.int64(space.start + _code(mark))
    if isinstance(space, spaces.MultiBinary) and space.shape == (sum(BITS),):
        return (_code(mark) >> np.arange(sum(BITS)) & 1).astype(np.int8)
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and space.shape[:1] == (_N_BYTES,):
        channels = _bytes(mark).reshape(_N_BYTES, *[1] * (len(space.shape) - 1))
        return np.broadcast_to(channels, space.shape).copy()
    if isinstance(space, spaces.Box | spaces.MultiDiscrete) and space.shape == (3,) and space.dtype != np.uint8:
        return np.array(mark, dtype=space.dtype)
    raise ValueError(f"{space} cannot hold a mark; compose the spaces of OBSERVATIONS: {', '.join(OBSERVATIONS)}")


def _code(mark: Mark) -> int:
    return mark.env + (mark.episode << BITS[0]) + (mark.step << BITS[0] + BITS[1])


def _split(codes: Array) -> Array:
    return np.stack([codes % _SIZES[0], (codes >> BITS[0]) % _SIZES[1], codes >> BITS[0] + BITS[1]], axis=-1)


def _bytes(mark: Mark) -> Array:
    parts = [int(value).to_bytes(bits // 8, "big") for value, bits in zip(mark, _CHANNELS, strict=True)]
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


def _read_image(values: Array) -> Array:
    axis = values.ndim - len(OBSERVATIONS["image"].shape or ())
    flat = values.reshape(*values.shape[: axis + 1], -1).astype(np.int64)
    assert (flat == flat[..., :1]).all(), "pixels of one channel differ: images were mixed"
    channels = flat[..., 0]
    ends = np.cumsum([bits // 8 for bits in _CHANNELS])
    return np.stack([_number(part) for part in np.split(channels, ends[:-1], axis=-1)], axis=-1)


def _number(channels: Array) -> Array:
    weights = 256 ** np.arange(channels.shape[-1])[::-1]
    total: Array = channels @ weights
    return total
