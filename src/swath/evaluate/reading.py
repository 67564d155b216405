"""Which entries of an env say what it earns and when its episodes end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swath.evaluate.scoring import Scoring, own_sums, summing
from swath.keys import DONE, REWARD, TERMINATED, TRUNCATED, Key, as_key, as_tuple, under_next
from swath.rollout.hosts.base import Host
from swath.rollout.hosts.parallel_env import ParallelEnvHost
from swath.rollout.hosts.specs import ArraySpec, HostSpec, TensorDictSpec
from swath.rollout.hosts.tensordict_list import TensorDictListHost
from swath.rollout.hosts.torchrl import TorchRLHost

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
        """Check that the envs write these.

        Raises:
            KeyError: they do not; the message has those that they write.
        """
        rewards, dones = _written(spec)
        for name, keys, there in (("reward_keys", self.rewards, rewards), ("done_keys", self.dones, dones)):
            missing = [key for key in keys if as_tuple(key) not in map(as_tuple, there)]
            if missing:
                raise KeyError(
                    f"{name} has {missing}, which the env does not write; it writes {there}: give an Evaluator one or "
                    f"several of these as {name}"
                )

    def applied_to(self, host: Host) -> Scoring:
        """Have the host read these; how its episodes are scored.

        Raises:
            KeyError: the envs do not write them.
        """
        self.require_written(host.spec)
        if isinstance(host.spec, ArraySpec):
            return own_sums
        assert isinstance(host, TorchRLHost | ParallelEnvHost | TensorDictListHost)
        host.read([_within(key) for key in self.rewards], [_within(key) for key in self.dones])
        sums = [_sum_beside(key) for key in self.rewards]
        summed = {as_tuple(key) for key in host.spec.observed}.issuperset(map(as_tuple, sums))
        return summing(sums, host.spec.num_envs) if summed else own_sums


def _written(spec: HostSpec) -> tuple[list[Key], list[Key]]:
    """Entries that hold rewards, and end flags."""
    if isinstance(spec, TensorDictSpec):
        return [under_next(key) for key in spec.rewarded], [under_next(key) for key in spec.flags]
    return [*REWARDS], [under_next(name) for name in (DONE, TERMINATED, TRUNCATED)]


def _within(key: Key) -> Key:
    """The key of an entry of `"next"`."""
    return as_key(as_tuple(key)[1:])


def _sum_beside(key: Key) -> Key:
    """Where `RewardSum` keeps the sum of this reward."""
    *parents, name = as_tuple(_within(key))
    return as_key((*parents, f"episode_{name}"))


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
