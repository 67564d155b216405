"""The host for envs with several agents each, stepped one after another in this thread; and what such envs return.

    reset ──▶ observations, infos               step ──▶ observations, rewards, terminateds, truncateds, infos

    observations   [[{agent: observation}, …]]   one leaf: a list of N dicts, of the agents that each env returned
    actions        [[{agent: action}, …], …]     likewise, of the agents that act; all leaves behind it are ignored

Agents come and go, so there is nothing to stack here: that is done where agents are sorted by their policies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from gymnasium import spaces

from swath.rollout.hosts.base import ArraySpec, Make
from swath.rollout.hosts.gymnasium import ListHost
from swath.rollout.hosts.returned import bad_answer, flags_of, rewards_of

# Values by agent id; in flags also by `ALL`.
ByAgent: TypeAlias = dict[Any, Any]

# Observations, rewards, terminated and truncated flags, infos: all of them dicts. Those in the middle are `Any` to
# type checkers: gymnasium's base class declares a number and two booleans.
Step: TypeAlias = tuple[ByAgent, Any, Any, Any, ByAgent]

# The flag of the whole env, in both dicts of flags.
ALL = "__all__"

# The key of an info that is for no agent alone.
COMMON = "__common__"

# What `Transition.info` has of each env that stepped: rewards, flags and infos of its agents, each a dict.
REWARDS, TERMINATEDS, TRUNCATEDS, INFOS = "rewards", "terminateds", "truncateds", "infos"

STEP = "an env with several agents has step(actions) -> observations, rewards, terminateds, truncateds, infos: dicts"


class MultiAgentHost(ListHost):
    """N multi-agent envs. What breaks the promises of such envs has failed, as one that raises has.

    The reward `[N]` of a transition is the sum over agents; what each of them was paid is in its `info`.

    Args:
        envs: at least one env.
        make: builds the envs anew.
    """

    reset_form = "an env with several agents has reset(*, seed=None, options=None) -> observations, infos: dicts"

    def __init__(self, envs: Sequence[Any], *, make: Make | None = None) -> None:
        n = len(envs)
        spec = ArraySpec(n, (n,), (), (), spaces.Dict(), spaces.Dict())  # nothing is everybody's
        super().__init__(envs, make, spec, lambda rows: [list(rows)], lambda leaves: leaves[0])

    def info_of(self, env: int) -> ByAgent:
        """The infos by agent that came with this env's latest observations."""
        said: ByAgent = super().info_of(env)[INFOS]
        return said

    def _step_of(self, env: Any) -> Callable[[Any], Any]:
        """How to step an env as if its agents were one."""

        def step(actions: ByAgent) -> Any:
            returned = env.step(actions)
            try:
                observations, rewards, terminateds, truncateds, infos = returned
                said = {REWARDS: rewards, TERMINATEDS: terminateds, TRUNCATEDS: truncateds, INFOS: infos}
                _check("step", observations, said)
                said[REWARDS], paid = _paid(rewards)
            except Exception as error:
                raise bad_answer(error, env, STEP) from error
            return observations, paid, terminateds[ALL], truncateds[ALL], said

        return step

    def _read_reset(self, answer: Any) -> tuple[ByAgent, ByAgent]:
        observations, infos = answer
        _check("reset", observations, {INFOS: infos})
        return observations, {INFOS: infos}


def _check(what: str, observations: ByAgent, said: Mapping[str, ByAgent]) -> None:
    """Check what a step or reset returned.

    Raises:
        TypeError: no dict where there must be one.
        ValueError: flags without `"__all__"`, or that say neither yes nor no; an info of an agent that is not observed.
    """
    for name, value in (("observations", observations), *said.items()):
        if type(value) is not dict and not isinstance(value, Mapping):
            raise TypeError(f"{what} returned {name}={value!r}; it must be a dict by agent")
    for name in {TERMINATEDS, TRUNCATEDS} & said.keys():
        flags = said[name]
        if ALL not in flags:
            raise ValueError(f"step returned {name} of {_list(flags)} without {ALL!r}; both dicts of flags need it")
        for agent, value in flags.items():
            if value and value is not True:
                flags_of(f"{name}[{agent!r}]", value)
    for agent, info in said[INFOS].items():
        if type(info) is not dict and not isinstance(info, Mapping):
            raise TypeError(f"{what} returned infos[{agent!r}]={info!r}; an info is a dict")
    strangers = said[INFOS].keys() - observations.keys() - {COMMON}
    if strangers:
        raise ValueError(f"{what} returned infos of {_list(strangers)}, but observations of {_list(observations)} only")


def _paid(rewards: ByAgent) -> tuple[ByAgent, float]:
    """The rewards as numbers, and their sum.

    Raises:
        ValueError: that of an agent is not one number.
    """
    try:
        return rewards, float(sum(rewards.values()))
    except (TypeError, ValueError):
        numbers = {agent: float(rewards_of(reward, 1, f" of agent {agent!r}")[0]) for agent, reward in rewards.items()}
        return numbers, sum(numbers.values())


def _list(ids: Collection[Hashable]) -> str:
    return ", ".join(sorted(map(repr, ids))) or "nobody"
