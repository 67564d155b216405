"""Which entries of an env say what it earns and when its episodes end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from gymnasium.vector import AutoresetMode

from swath.evaluation.env_parts import counts_for_all, is_monitored
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


def scoring_of(host: Host, reward_keys: Any, done_keys: Any) -> Scoring:
    """Have the host read these beside the env's root done, which ends an episode in any case; how it is scored.

    Args:
        host: the envs.
        reward_keys: entries whose mean is the reward of a step.
        done_keys: entries that end an episode when all are set.

    Raises:
        KeyError: the envs do not write them; the message has those that they write.
    """
    rewards, dones = keys_of("reward_keys", reward_keys), keys_of("done_keys", done_keys)
    written = _written(host.spec)
    for name, keys, there in (("reward_keys", rewards, written[0]), ("done_keys", dones, written[1])):
        missing = [key for key in keys if as_tuple(key) not in map(as_tuple, there)]
        if missing:
            raise KeyError(f"{name} has {missing}, which the env does not write; it writes {there}")
    if isinstance(host.spec, ArraySpec):
        return own_sums
    assert isinstance(host, TensorDictHost | SideBySide)
    host.reader = StepReader(host.spec, [*map(_within, rewards)], [*map(_within, dones)])
    sums = [_sum_beside(key) for key in rewards]
    summed = {as_tuple(key) for key in host.spec.observed}.issuperset(map(as_tuple, sums))
    return summing(sums, host.spec.num_envs) if summed else own_sums


def trusting(env: Any) -> Scoring:
    """Score by what the env's own monitors say, if there are any."""
    if counts_for_all(env) and env.metadata.get("autoreset_mode") == AutoresetMode.DISABLED:
        return own_sums  # a reset by mask, which this mode needs, makes gymnasium's vector statistics lose their sums
    return monitored if is_monitored(env) else if_monitored


def _written(spec: HostSpec) -> tuple[list[Key], list[Key]]:
    """Entries that hold rewards, and end flags."""
    if isinstance(spec, TensorDictSpec):
        return [under_next(key) for key in spec.rewarded], [under_next(key) for key in spec.flags]
    return [under_next(REWARD)], [under_next(name) for name in (DONE, TERMINATED, TRUNCATED)]


def _within(key: Key) -> Key:
    """The key of an entry of `"next"`."""
    return as_key(as_tuple(key)[1:])


def _sum_beside(key: Key) -> Key:
    """Where `RewardSum` keeps the sum of this reward."""
    *parents, name = as_tuple(_within(key))
    return as_key((*parents, f"episode_{name}"))


def keys_of(name: str, given: Any) -> tuple[Key, ...]:
    """A nested key or a list of them.

    Raises:
        TypeError: something else.
        ValueError: an empty list.
    """
    keys = list(given) if isinstance(given, list) else [given]
    if not keys:
        raise ValueError(f"{name}=[] reads nothing; give at least one key, e.g. ('next', 'reward')")
    for key in keys:
        parts = key if isinstance(key, tuple) else (key,)
        if not parts or not all(isinstance(part, str) for part in parts):
            raise TypeError(f"{name} has {key!r}; a key is a string or a tuple of strings, e.g. ('next', 'reward')")
    return tuple(as_key(key if isinstance(key, tuple) else (key,)) for key in keys)
