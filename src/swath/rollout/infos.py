"""Entries of the infos of envs, as leaves: float32 `[B]`, NaN where an info lacks the entry.

list of dicts, one per env             ─┐
a vector env's dict of batches, masked ─┼─▶ read ─▶ one leaf per key
a simulator's dict of tensors, masked  ─┘
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from swath.errors import BadAnswer
from swath.keys import RESERVED, Key, as_key, as_tuple
from swath.rollout.hosts.base import ArraySpec, DeviceEnds, Ends, HostSpec, Infos, TensorDictSpec
from swath.rollout.hosts.results import FINAL_INFO
from swath.rollout.spaces import Array, Leaves


def info_reader(keys: Sequence[Key], spec: HostSpec) -> InfoReader | None:
    """Return a reader of entries of infos, or `None` for no entries.

    Args:
        keys: names, or paths through nested infos.
        spec: properties of the envs.

    Raises:
        ValueError: the envs have no infos, or an entry has the name of another one in batches.
    """
    keys = [as_key(as_tuple(key)) for key in keys]
    if not keys:
        return None
    if isinstance(spec, TensorDictSpec):
        advice = "read infos by set_info_dict_reader (TorchRL), or observe them (PettingZoo)"
        raise ValueError(f"info_keys={keys} are for gymnasium's envs; {advice}")  # noqa: TRY004
    duplicates = [key for key in keys if key in spec.observation_keys or as_tuple(key)[0] in RESERVED]
    if duplicates:
        raise ValueError(f"info_keys has {duplicates}, which batches have already; rename them in the env")
    paths = {*map(as_tuple, keys)}
    if nested := [path for path in sorted(paths) if any(path[:n] in paths for n in range(len(path)))]:
        raise ValueError(f"info_keys has {nested} and entries around them; leave either out")
    return InfoReader(keys, spec)


class InfoReader:
    """Reader of entries of infos.

    Args:
        keys: names, or paths through nested infos.
        spec: properties of the envs.
    """

    def __init__(self, keys: Sequence[Key], spec: ArraySpec) -> None:
        self.keys, self._spec, self._paths = tuple(keys), spec, [*map(as_tuple, keys)]

    def read(self, infos: Infos, ends: Ends | DeviceEnds) -> Leaves:
        """Return one leaf `[B]` per key; where a vector env has reset itself, from the info of the last step.

        Raises:
            BadAnswer: an entry that is not one number per env.
        """
        if self._spec.of_tensors:
            return [self._read_tensor(infos, path, ends) for path in self._paths]
        if isinstance(infos, Mapping):
            return [self._read_batch(infos, path, ends) for path in self._paths]
        return [np.array([_to_number(info, path) for info in infos], np.float32) for path in self._paths]

    def _read_batch(self, infos: Infos, path: tuple[str, ...], ends: Any) -> Array:
        """Return an entry of a vector env's infos, where `_name` is the mask of the envs that have `name`."""
        values = self._masked_array(infos, path)
        if isinstance(infos, Mapping) and FINAL_INFO in infos:
            values[ends.envs] = self._masked_array(infos[FINAL_INFO], path)[ends.envs]
        return values

    def _masked_array(self, infos: Any, path: tuple[str, ...]) -> Array:
        n, present, value = self._spec.num_envs, np.ones(self._spec.num_envs, np.bool_), infos
        for name in path:
            mask = value.get(f"_{name}") if isinstance(value, Mapping) else None
            value = value.get(name) if isinstance(value, Mapping) else None
            present = present if mask is None else present & np.asarray(mask, np.bool_)
        if value is None:
            return np.full(n, np.nan, np.float32)
        try:
            numbers = np.asarray(value, np.float32).reshape(-1)
        except (TypeError, ValueError) as error:
            raise _number_error(path, value) from error
        if numbers.size not in (1, n):
            raise _number_error(path, value)
        return np.where(present, numbers, np.float32(np.nan))

    def _read_tensor(self, infos: Any, path: tuple[str, ...], ends: Any) -> torch.Tensor:
        values = self._masked_tensor(infos, path)
        if isinstance(infos, Mapping) and FINAL_INFO in infos:
            values = torch.where(ends.ended, self._masked_tensor(infos[FINAL_INFO], path), values)
        return values

    def _masked_tensor(self, infos: Any, path: tuple[str, ...]) -> torch.Tensor:
        value, n, device, masks = infos, self._spec.num_envs, self._spec.device, list[Any]()
        for name in path:
            if not isinstance(value, Mapping):
                value = None
                break
            if f"_{name}" in value:
                masks.append(value[f"_{name}"])
            value = value.get(name)
        if value is None:
            return torch.full((n,), torch.nan, device=device)
        try:
            numbers = torch.as_tensor(value, dtype=torch.float32, device=device).reshape(-1)
            present = [torch.as_tensor(mask, dtype=torch.bool, device=device).expand(n) for mask in masks]
        except (TypeError, ValueError, RuntimeError) as error:
            raise _number_error(path, value) from error
        if numbers.numel() not in (1, n):
            raise _number_error(path, value)
        numbers = numbers.expand(n)
        for mask in present:
            numbers = torch.where(mask, numbers, torch.nan)
        return numbers


def _to_number(info: Any, path: tuple[str, ...]) -> float:
    value = info
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return np.nan
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise _number_error(path, value) from error


def _number_error(path: tuple[str, ...], value: Any) -> BadAnswer:
    return BadAnswer(f"info {'.'.join(path)!r} is {value!r:.100}; info_keys takes entries of one number per env")
