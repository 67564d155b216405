"""What a step of a TorchRL env says: who ended and how, what was earned, what there is to see.

"next" [*B] ──▶ rewards [B] · (env, terminated, truncated) · pixels of one env
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.keys import DONE, TERMINATED, TRUNCATED, Key, as_key, as_tuple
from swath.rollout.hosts.base import Ended
from swath.rollout.hosts.specs import TensorDictSpec
from swath.rollout.spaces import Array
from swath.rollout.tensordicts import entries_of

_PIXELS = "pixels"
_COLOURS = (1, 3, 4)

Group = Mapping[str, Key]
"""End flags that are beside each other, as `{"done": key, "terminated": key, …}`."""


def groups_of(done: Sequence[Key]) -> list[dict[str, Key]]:
    """End flags by their group."""
    groups: dict[tuple[str, ...], dict[str, Key]] = {}
    for key in done:
        *parents, name = as_tuple(key)
        groups.setdefault(tuple(parents), {})[name] = key
    return list(groups.values())


def ends_of(following: TensorDictBase, groups: Sequence[Group], n: int) -> list[Ended]:
    """Episodes that ended: where any flag of these groups is set."""
    done, terminated, truncated = (
        _any_of(following, groups, kind, n).tolist() for kind in (DONE, TERMINATED, TRUNCATED)
    )
    over = zip(done, terminated, truncated, strict=True)
    return [(env, ended or not cut, cut) for env, (any_end, ended, cut) in enumerate(over) if any_end or ended or cut]


def reward_of(following: TensorDictBase, spec: TensorDictSpec) -> Array:
    """Rewards `[B]`: the sum over all reward entries and their dimensions behind `*B`."""
    rewards: list[Array] = [entry.detach().cpu().numpy() for entry in entries_of(following, spec.rewarded)]
    if len(rewards) == 1 and rewards[0].size == spec.num_envs:
        return rewards[0].reshape(-1)
    total: Array = sum((reward.reshape(spec.num_envs, -1).sum(1) for reward in rewards), np.zeros(spec.num_envs))
    return total


def mean_of(following: TensorDictBase, keys: Sequence[Key], n: int) -> Array:
    """Float64 `[B]`: the mean over these entries, each the mean over its dimensions behind `*B`."""
    each = [following.get(key).detach().cpu().reshape(n, -1).double().mean(1).numpy() for key in keys]
    mean: Array = np.mean(each, axis=0)
    return mean


class StepReading:
    """Reads chosen rewards and end flags.

    Args:
        spec: the envs.
        rewards: entries whose mean is the reward.
        dones: flags that end an episode when all of them are set; the env's own flags do so too.
    """

    def __init__(self, spec: TensorDictSpec, rewards: Sequence[Key], dones: Sequence[Key]) -> None:
        self._n, self._rewards, self._dones = spec.num_envs, tuple(rewards), tuple(dones)
        self._own = [group for group in groups_of(spec.flags) if all(len(as_tuple(key)) == 1 for key in group.values())]
        parents = {as_tuple(key)[:-1] for key in dones}
        beside = [key for key in spec.flags if as_tuple(key)[:-1] in parents]
        self._beside = groups_of(beside)

    def reward(self, following: TensorDictBase) -> Array:
        """Rewards `[B]`."""
        return mean_of(following, self._rewards, self._n)

    def ends(self, following: TensorDictBase) -> list[Ended]:
        """Episodes that ended."""
        done = [following.get(key).reshape(self._n, -1).all(1) for key in self._dones]
        cut, ended = (_any_of(following, self._beside, kind, self._n).tolist() for kind in (TRUNCATED, TERMINATED))
        all_set = torch.stack(done).all(0).tolist()
        own = {end[0]: end for end in ends_of(following, self._own, self._n)}
        theirs = {env: (env, ended[env] or not cut[env], cut[env]) for env in range(self._n) if all_set[env]}
        both = {**theirs, **own}
        return [both[env] for env in sorted(both)]


def pixels_of(following: TensorDictBase | None, env: int, batch_shape: tuple[int, ...]) -> Array | None:
    """The pixels that an env has written, colours last; `None` if it has written none."""
    pixels = None if following is None else following.get(as_key((_PIXELS,)), None)
    if pixels is None:
        return None
    frame = pixels[np.unravel_index(env, batch_shape)] if batch_shape else pixels
    seen: Array = frame.detach().cpu().numpy()
    if seen.ndim == 3 and seen.shape[2] not in _COLOURS and seen.shape[0] in _COLOURS:
        seen = np.moveaxis(seen, 0, 2)
    return seen if seen.dtype == np.uint8 else (seen * 255).round().astype(np.uint8)


def _any_of(following: TensorDictBase, groups: Sequence[Group], kind: str, n: int) -> torch.Tensor:
    found = [following.get(group[kind]).reshape(n, -1).any(1) for group in groups if kind in group]
    return torch.stack(found).any(0) if found else torch.zeros(n, dtype=torch.bool)
