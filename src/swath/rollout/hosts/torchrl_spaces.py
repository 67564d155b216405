"""What TorchRL's envs observe and do as gymnasium spaces, and its values in and out of TensorDicts as arrays.

one entry   "pixels": Bounded [3, 8, 8]               ──▶  Box(3, 8, 8)
several     "observation": …, ("game", "turn"): …     ──▶  Dict(game=Dict(turn=…), observation=…)
choices     Categorical, OneHot; of several ones      ──▶  Discrete; MultiDiscrete
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import Tensor
from torch.nn.functional import one_hot

from swath.keys import Key, as_key, as_tuple, nested
from swath.rollout.spaces import Leaf, Leaves, plain_leaves

Kind = Literal["observation", "action"]
Space = spaces.Space[Any]


@dataclass(frozen=True)
class Entry:
    """An entry of a TensorDict that is an array here.

    Attributes:
        key: where it is.
        leaf: the array.
        shape: of one env's value there.
        dtype: there.
        one_hot: how many there are of each choice, if choices are one-hot there.
    """

    key: Key
    leaf: Leaf
    shape: tuple[int, ...]
    dtype: torch.dtype
    one_hot: tuple[int, ...] = ()

    def read(self, td: TensorDictBase, num_envs: int) -> Any:
        """A fresh array `[B, …]`."""
        values = td.get(self.key).detach().cpu().reshape(num_envs, *self.shape)
        if values.dtype == torch.bfloat16:  # NumPy has none
            values = values.float()
        return np.array(values.numpy(), dtype=self.leaf.dtype)

    def write(self, td: TensorDictBase, array: Any) -> None:
        """Put an array `[B, …]` there."""
        values = torch.from_numpy(np.array(array))
        if self.one_hot:
            values = _one_hot(values, self.one_hot)
        shape = (*td.batch_size, *self.shape)
        td.set(self.key, values.to(dtype=self.dtype, device=td.device).reshape(shape))


class Entries:
    """The observations, or the actions, of an env.

    Args:
        env: an `EnvBase`.
        kind: which.

    Attributes:
        space: of one env's value; a Dict where there are several entries.
        entries: one per leaf of it, in order.

    Raises:
        TypeError: a spec that is no array of fixed shape.
    """

    def __init__(self, env: Any, kind: Kind) -> None:
        keys = [as_tuple(key) for key in (env.observation_keys if kind == "observation" else env.action_keys)]
        if not keys:
            raise TypeError(f"{env} has no {kind} entries; rollout workers need at least one")
        specs = env.full_observation_spec_unbatched if kind == "observation" else env.full_action_spec_unbatched
        self._num_envs = int(np.prod(env.batch_size, dtype=np.int64))
        found = {key: _space_of(specs[key], key, kind) for key in keys}
        self.space: Space = next(iter(found.values())) if len(keys) == 1 else _dict_of(found)
        self.entries = [
            _entry(leaf, specs, leaf.path or keys[0], hot=kind == "action") for leaf in plain_leaves(self.space, kind)
        ]

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves of the space."""
        return tuple(entry.leaf for entry in self.entries)

    def read(self, td: TensorDictBase) -> Leaves:
        """Fresh arrays `[B, …]` of what stands in a TensorDict `[*B]`."""
        return [entry.read(td, self._num_envs) for entry in self.entries]

    def write(self, td: TensorDictBase, leaves: Leaves) -> None:
        """Put arrays `[B, …]` into a TensorDict `[*B]`."""
        for entry, array in zip(self.entries, leaves, strict=False):
            entry.write(td, array)


def _entry(leaf: Leaf, specs: Any, key: tuple[str, ...], *, hot: bool) -> Entry:
    spec = specs[key]
    sizes: tuple[int, ...] = ()
    if hot and isinstance(spec, _kind("OneHot")):
        boxes = getattr(spec.space, "boxes", None)
        count = int(np.prod(spec.shape[:-1], dtype=np.int64))
        sizes = (spec.space.n,) * count if boxes is None else tuple(box.n for box in boxes)
    return Entry(as_key(key), leaf, tuple(spec.shape), spec.dtype, sizes)


def _one_hot(index: Tensor, sizes: Sequence[int]) -> Tensor:
    """Choices `[B, …]`, `[B, c]` once flattened, as `[B, sum of sizes]`."""
    columns = index.reshape(len(index), len(sizes)).long()
    return torch.cat([one_hot(columns[:, i], size) for i, size in enumerate(sizes)], dim=1)


def _dict_of(found: dict[tuple[str, ...], Space]) -> Space:
    def whole(tree: Any) -> Space:
        return spaces.Dict({name: whole(part) for name, part in tree.items()}) if isinstance(tree, dict) else tree

    return whole(nested(found.items()))


def _space_of(spec: Any, key: tuple[str, ...], kind: Kind) -> Space:
    shape = tuple(getattr(spec, "shape", ()))
    if isinstance(spec, _kind("Binary")):
        return spaces.MultiBinary(shape) if shape else spaces.Discrete(2)
    if isinstance(spec, _kind("OneHot")):
        return _choices(_sizes(spec, shape[:-1])) if kind == "action" else spaces.MultiBinary(shape)
    if isinstance(spec, _kind("Categorical")):
        return _choices(_sizes(spec, shape))
    if isinstance(spec, _kind("Bounded", "Unbounded")) and -1 not in shape:
        return _box(spec, shape)
    raise TypeError(
        f"the {kind} {as_key(key)!r} of a TorchRL env is {type(spec).__name__}{list(shape)}, which rollout workers "
        "cannot make arrays of; leave it out with torchrl's ExcludeTransform, or use a Collector"
    )


def _sizes(spec: Any, shape: tuple[int, ...]) -> Any:
    """How many there are of each choice: an array of this shape, or of its last dimension for several kinds of them."""
    boxes = getattr(spec.space, "boxes", None)
    if boxes is None:
        return np.full(shape, spec.space.n, dtype=np.int64)
    each = np.array([box.n for box in boxes], dtype=np.int64)
    return np.broadcast_to(each, (*shape[:-1], len(each))).copy()


def _choices(sizes: Any) -> Space:
    return spaces.MultiDiscrete(sizes) if sizes.ndim else spaces.Discrete(int(sizes))


def _box(spec: Any, shape: tuple[int, ...]) -> Space:
    dtype: Any = np.dtype(np.bool_ if spec.dtype == torch.bool else str(_storable(spec.dtype)).split(".")[-1])
    if dtype == np.bool_:
        return spaces.MultiBinary(shape) if shape else spaces.Discrete(2)
    if isinstance(spec, _kind("Unbounded")) and dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    low, high = (np.broadcast_to(bound.cpu().to(_storable(spec.dtype)).numpy(), shape) for bound in _bounds(spec))
    return spaces.Box(low, high, dtype=dtype.type)


def _bounds(spec: Any) -> tuple[Tensor, Tensor]:
    return spec.space.low, spec.space.high


def _storable(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which NumPy holds such numbers."""
    return torch.float32 if dtype == torch.bfloat16 else dtype


def _kind(*names: str) -> tuple[Any, ...]:
    data = sys.modules["torchrl.data"]
    return tuple(getattr(data, name) for name in names)
