"""Which entries of an env say what it earns and when its episodes end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from swath.keys import DONE, NEXT, REWARD, TERMINATED, TRUNCATED, Key, as_key, as_tuple, under_next
from swath.rollout.hosts.base import ArraySpec, Host, HostSpec, TensorDictSpec
from swath.rollout.hosts.returned import info_of
from swath.rollout.hosts.tensordict import SideBySide, StepReader, TensorDictHost, mean_of
from swath.rollout.loop import Step

Score: TypeAlias = tuple[float, int]
"""Return and length of an episode."""

Scoring: TypeAlias = Callable[[Step, int, Score], Score | None]
"""Asked where the env says that an episode of this slot ended, with our sums: its score, or `None` if it goes on."""

_EPISODE = "episode"


def own_sums(step: Step, slot: int, sums: Score) -> Score:  # noqa: ARG001  one signature for all
    """Every end counts, with the rewards and steps we saw."""
    return sums


def summing(keys: Sequence[Key], num_envs: int) -> Scoring:
    """Scores by what the env itself has summed: the mean of these entries of `"next"`, of all agents, at the end."""

    def scored(step: Step, slot: int, sums: Score) -> Score:
        return float(mean_of(step.outputs[0].get(NEXT), keys, num_envs)[slot]), sums[1]

    return scored


def monitored(step: Step, slot: int, sums: Score) -> Score | None:  # noqa: ARG001
    """Only a step whose info carries `"episode"` ends one, with the return and length told there.

    Wrappers above the monitor may end several times within one episode (a life lost) or change the rewards.
    """
    told = info_of(step.info, slot).get(_EPISODE)
    if not isinstance(told, Mapping) or not {"r", "l"} <= told.keys():
        return None
    return float(told["r"]), int(told["l"])


def if_monitored(step: Step, slot: int, sums: Score) -> Score:
    """What the info tells if it tells something, else our sums: for envs that cannot be looked into."""
    return monitored(step, slot, sums) or sums


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
                raise KeyError(f"{name} has {missing}, which the env does not write; it writes {there}")

    def applied_to(self, host: Host) -> Scoring:
        """Have the host read these; how its episodes are scored.

        Raises:
            KeyError: the envs do not write them.
        """
        self.require_written(host.spec)
        if isinstance(host.spec, ArraySpec):
            return own_sums
        assert isinstance(host, TensorDictHost | SideBySide)
        host.reader = StepReader(host.spec, [*map(_within, self.rewards)], [*map(_within, self.dones)])
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
