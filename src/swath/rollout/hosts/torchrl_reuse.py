"""What a policy saw, of envs that write what a step leads to into the memory of what came before.

[root] ──▶ seen: copies ──▶ env steps ──▶ same memory under "next"? ──▶ the copy is put back into the root
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from tensordict import TensorDictBase

from swath.keys import Key, under_next

WATCHED = 3
"""How many steps are watched; entries that none of these has overwritten are not copied any more."""


class Seen:
    """Watches one env.

    Args:
        keys: entries of its roots that it writes under `"next"`, too.
    """

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)
        self._overwritten: set[Key] = set()
        self._steps = 0

    def of(self, root: TensorDictBase) -> dict[Key, torch.Tensor]:
        """Copies of what may be overwritten."""
        found = ((key, _tensor(root, key)) for key in self._keys)
        return {key: value.clone() for key, value in found if value is not None}

    def put_back(self, made: TensorDictBase, seen: Mapping[Key, torch.Tensor]) -> None:
        """A step was made: the root has what was seen, where the env has overwritten it."""
        for key, value in seen.items():
            before, after = _tensor(made, key), _tensor(made, under_next(key))
            if before is not None and after is not None and _is_overwritten(before, after, value):
                made.set(key, value)
                self._overwritten.add(key)
        if self._steps < WATCHED:
            self._steps += 1
            if self._steps == WATCHED:
                self._keys = tuple(key for key in self._keys if key in self._overwritten)


def _is_overwritten(before: torch.Tensor, after: torch.Tensor, seen: torch.Tensor) -> bool:
    return before.data_ptr() == after.data_ptr() != 0 and not torch.equal(before, seen)


def _tensor(td: TensorDictBase, key: Key) -> torch.Tensor | None:
    """An entry, if it is one tensor: not where shapes differ between agents, nor where it is no tensor at all."""
    try:
        value = td.get(key, None)
    except RuntimeError:
        return None
    return value if isinstance(value, torch.Tensor) else None
