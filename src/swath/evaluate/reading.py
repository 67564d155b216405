"""Which entries of an env say what it earns and when its episodes end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swath.keys import DONE, REWARD, TERMINATED, TRUNCATED, Key, as_key, as_tuple, under_next
from swath.rollout.hosts.specs import HostSpec, TensorDictSpec

REWARDS: tuple[Key, ...] = (under_next(REWARD),)
DONES: tuple[Key, ...] = (under_next(DONE),)


@dataclass(frozen=True)
class Reading:
    """What is read of each step, beside the env's root done, which ends an episode in any case.

    Attributes:
        rewards: entries whose mean is the reward of a step.
        dones: entries that end an episode when all are set.
    """

    rewards: tuple[Key, ...] = REWARDS
    dones: tuple[Key, ...] = DONES

    @classmethod
    def of(cls, reward_keys: Any, done_keys: Any) -> Reading:
        """From a nested key or a list of them each.

        Raises:
            TypeError: something else.
            ValueError: an empty list.
        """
        return cls(_keys("reward_keys", reward_keys), _keys("done_keys", done_keys))

    def require_written(self, spec: HostSpec) -> None:
        """Check that envs whose entries are arrays write these; others are asked where they are read.

        Raises:
            KeyError: they do not; the message has those that they write.
        """
        if isinstance(spec, TensorDictSpec):
            return
        dones = [under_next(name) for name in (DONE, TERMINATED, TRUNCATED)]
        for name, keys, there in (("reward_keys", self.rewards, [*REWARDS]), ("done_keys", self.dones, dones)):
            missing = [key for key in keys if as_tuple(key) not in map(as_tuple, there)]
            if missing:
                raise KeyError(f"{name} has {missing}, which the env does not write; it writes {there}")


def _keys(name: str, given: Any) -> tuple[Key, ...]:
    keys = list(given) if isinstance(given, list) else [given]
    if not keys:
        raise ValueError(f"{name}=[] reads nothing; give at least one key, e.g. ('next', 'reward')")
    return tuple(_key(name, key) for key in keys)


def _key(name: str, key: Any) -> Key:
    parts: Sequence[Any] = key if isinstance(key, tuple) else (key,)
    if not parts or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"{name} has {key!r}; a key is a string or a tuple of strings, e.g. ('next', 'reward')")
    return as_key(tuple(parts))
