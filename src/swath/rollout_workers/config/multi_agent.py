"""Settings of policies: which there are, which agents they act for, which of them learn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, Unpack

from swath.rollout_workers.batches.names import DEFAULT_POLICY_ID
from swath.rollout_workers.config.checks import flag, function, refuse, whole, word
from swath.rollout_workers.config.holder import Holder
from swath.rollout_workers.config.mapping import everything_to_default
from swath.rollout_workers.config.policy_spec import PolicySpec, specs
from swath.rollout_workers.config.settings import UNCHANGED, NoEffect, Setting
from swath.rollout_workers.config.to_train import PoliciesToTrain, ids_or_function

if TYPE_CHECKING:
    from swath.rollout_workers.config.other_names import OtherNames

Policies: TypeAlias = Mapping[str, PolicySpec | tuple[Any, ...] | None] | Collection[str]


def _trainable(name: str, value: object) -> PoliciesToTrain | None:
    try:
        return ids_or_function(name, value)
    except TypeError as wrong:
        raise ValueError(str(wrong)) from None


def _mapping(name: str, value: object) -> Callable[..., str]:
    if value is None:
        refuse(name, value, "callable as f(agent_id, episode, worker=worker) -> policy id")
    return function(name, value)


class MultiAgentSettings(Holder):
    """What `multi_agent` sets."""

    policies = Setting(specs, default={DEFAULT_POLICY_ID: PolicySpec()})
    policy_mapping_fn = Setting(_mapping, default=everything_to_default)
    policies_to_train = Setting(_trainable, default=None)
    count_steps_by = Setting(word("env_steps", "agent_steps"), default="env_steps")
    policy_map_capacity = NoEffect(whole(1), "policies all stay in memory", default=100)
    policy_states_are_swappable = NoEffect(flag, "policies all stay in memory", default=False)

    def multi_agent(
        self,
        policies: Policies = UNCHANGED,
        *,
        policy_mapping_fn: Callable[..., str] = UNCHANGED,
        policies_to_train: Collection[str] | Callable[..., bool] | None = UNCHANGED,
        count_steps_by: Literal["env_steps", "agent_steps"] = UNCHANGED,
        **others: Unpack[OtherNames],
    ) -> Self:
        """Say which policies there are, and which agents each acts for.

        Args:
            policies: `PolicySpec` or a tuple of up to four by policy id; or ids alone.
            policy_mapping_fn: `f(agent_id, episode, worker=worker) -> policy id`; `worker` only if it takes it.
            policies_to_train: ids, or `f(policy_id, batch=None) -> bool`; None: all.
            count_steps_by: what `rollout_fragment_length` counts.
            **others: old names, and settings without effect.
        """
        return self._given(locals())
