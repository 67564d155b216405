"""What a PettingZoo env's agents see, who of them is there and who has ended, as a TensorDict per group.

    {"agent": {"observation": [n, …], "mask": [n], "done": [n, 1], …}, …, "done": [1], …}

Agents that are not there have zeros. The flags of one that has ended stay set until the next reset.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict

from swath.keys import DONE, REWARD, STEP_COUNT, TERMINATED, TRUNCATED, Key, nested
from swath.rollout.hosts.agent_groups import PRESENT, Group

WHOLE: tuple[Key, ...] = (DONE, TERMINATED, TRUNCATED)
"""The flags of the env: done when no agent is left."""

_NEITHER = (False, False)


class AgentStates:
    """The agents of one env, from its reset on.

    Args:
        groups: who there may be.
        max_steps: with so many steps all that are left are truncated; `None` for no limit, and no count of steps.
    """

    def __init__(self, groups: Sequence[Group], max_steps: int | None) -> None:
        self._groups, self._max_steps = groups, max_steps
        self._steps = 0
        self._ended: dict[Any, tuple[bool, bool]] = {}  # whether terminated, whether truncated

    @property
    def observed(self) -> tuple[Key, ...]:
        """Keys of what is seen."""
        entries = [group.below(leaf.key) for group in self._groups for leaf in group.observation]
        masks = [group.below(PRESENT) for group in self._groups]
        return (*entries, *masks, *(() if self._max_steps is None else (STEP_COUNT,)))

    @property
    def flags(self) -> tuple[Key, ...]:
        """Keys of all flags."""
        return (*WHOLE, *(group.below(flag) for group in self._groups for flag in WHOLE))

    def begin(self) -> None:
        """The env was reset."""
        self._steps, self._ended = 0, {}

    def stepped(self, terminations: Mapping[Any, Any], truncations: Mapping[Any, Any], there: Collection[Any]) -> None:
        """The env was stepped: note who has ended with it. Who is there again has not."""
        self._steps += 1
        late = there if self._out_of_time else ()
        self._ended = {agent: how for agent, how in self._ended.items() if agent not in there}
        for agent in {*terminations, *truncations, *late}:
            how = bool(terminations.get(agent, False)), bool(truncations.get(agent, False)) or agent in late
            if any(how):
                self._ended[agent] = how

    def state(self, observations: Mapping[Any, Any], there: Collection[Any]) -> TensorDict:
        """The env's state now, in memory of its own.

        Raises:
            ValueError: an agent is there, but not observed.
        """
        unseen = [agent for agent in there if agent not in observations]
        if unseen:
            raise ValueError(f"agents {unseen} are there, but the observations are those of {list(observations)}")
        entries: dict[str, Any] = {group.name: self._of(group, observations, there) for group in self._groups}
        if self._max_steps is not None:
            entries[STEP_COUNT] = torch.tensor([self._steps])
        return TensorDict(entries | self._of_all(there), [])

    def following(
        self, observations: Mapping[Any, Any], rewards: Mapping[Any, Any], there: Collection[Any]
    ) -> TensorDict:
        """What a step led to: the state, and what was paid."""
        led_to = self.state(observations, there)
        for group in self._groups:
            paid = [[float(rewards.get(agent, 0.0))] for agent in group.agents]
            led_to.set(group.below(REWARD), torch.tensor(paid))
        return led_to

    @property
    def _out_of_time(self) -> bool:
        return self._steps == self._max_steps

    def _of(self, group: Group, observations: Mapping[Any, Any], there: Collection[Any]) -> TensorDict:
        ends = torch.tensor([self._ended.get(agent, _NEITHER) for agent in group.agents])
        flags = {DONE: ends.any(1, keepdim=True), TERMINATED: ends[:, :1].clone(), TRUNCATED: ends[:, 1:].clone()}
        present = torch.tensor([agent in there for agent in group.agents])
        entries = nested(group.packed(observations).items())
        return TensorDict({**entries, PRESENT: present, **flags}, [len(group.agents)])

    def _of_all(self, there: Collection[Any]) -> dict[str, Any]:
        """The flags of the env: terminated if every agent that has ended was."""
        terminated = not there and all(terminated for terminated, _ in self._ended.values())
        truncated = self._out_of_time or (not there and not terminated)
        flags = {DONE: terminated or truncated, TERMINATED: terminated, TRUNCATED: truncated}
        return {name: torch.tensor([flag]) for name, flag in flags.items()}
