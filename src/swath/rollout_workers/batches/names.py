"""Names of columns, as users of RLlib know them, and which optional ones a policy gets: in its input, and in batches.

             prev_actions  prev_rewards   infos  env_id  agent_id
Policy       both          both           -      -       -            what a class of one's own starts with
TorchPolicy  -             -              -      -       -            so that nobody pays for what nobody reads
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gymnasium import Space

# The policy of all agents where nothing else is said.
DEFAULT_POLICY_ID = "default_policy"

STATE_IN, STATE_OUT = "state_in_", "state_out_"


class ColumnNames:
    """Every column that a worker writes, and what it holds in row i."""

    OBS = CUR_OBS = "obs"  # the observation acted on, processed and filtered
    NEXT_OBS = "new_obs"  # the observation after it; where an episode ends, its true last one
    ACTIONS = "actions"  # as the policy gave them
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    DONES = "dones"  # computed, never stored: terminated or truncated
    INFOS = "infos"  # that came with `new_obs`, one dict each
    T = "t"  # index, in the episode, of the env step that led to `new_obs`; the first is 0
    EPS_ID = "eps_id"  # trajectory id, unique over workers and their lives
    UNROLL_ID = "unroll_id"  # of one agent, episode, call and version; never repeats
    AGENT_INDEX = "agent_index"  # in which order agents appeared in the episode
    AGENT_ID = "agent_id"
    ENV_ID = "env_id"
    POLICY_VERSION = "policy_version"  # of the weights that acted
    PREV_ACTIONS = "prev_actions"  # one step before; zeros at an episode's start
    PREV_REWARDS = "prev_rewards"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTION_LOGP = "action_logp"
    ACTION_PROB = "action_prob"
    VF_PREDS = "vf_preds"
    VALUES_BOOTSTRAPPED = "values_bootstrapped"  # of the next state, as the estimate of advantages took it
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    SEQ_LENS = "seq_lens"  # rows of each sequence; `state_in_0`, … have one row per sequence


def is_state_in(name: str) -> bool:
    """Whether the column holds states at the beginnings of sequences."""
    return name.startswith(STATE_IN)


def state_out_of(name: str) -> str:
    """The column of states after each transition that goes with a `state_in_…`."""
    return STATE_OUT + name.removeprefix(STATE_IN)


def counts_sequences(name: str) -> bool:
    """Whether the column has, by its name, one row per sequence and not per transition."""
    return name == ColumnNames.SEQ_LENS or is_state_in(name)


@dataclass
class ViewRequirement:
    """A column that a policy reads.

    Attributes:
        data_col: the column that it is taken from; None for its own name.
        space: of one row, where it cannot be seen from the data.
        shift: 0 for the same step, -1 for the one before.
        used_for_compute_actions: whether it is part of the input for actions.
        used_for_training: whether it is part of batches.
    """

    data_col: str | None = None
    space: Space[Any] | None = None
    shift: int = 0
    used_for_compute_actions: bool = True
    used_for_training: bool = True

    def require_own_step(self, name: str) -> None:
        """Raise `ValueError` unless it is a view of the column's own step."""
        if (self.data_col or name, self.shift) not in ((name, 0), (SHIFTED.get(name), -1)):
            why = "columns are of their own step; make others in postprocess_trajectory"
            raise ValueError(f"view_requirements[{name!r}]={self} must be ViewRequirement({name!r}): {why}")


# Columns that hold what another held one step before.
SHIFTED = {ColumnNames.PREV_ACTIONS: ColumnNames.ACTIONS, ColumnNames.PREV_REWARDS: ColumnNames.REWARDS}

BEFORE = tuple(SHIFTED)
# The columns that are there only if a policy asks for them.
OPTIONAL = (*BEFORE, ColumnNames.INFOS, ColumnNames.ENV_ID, ColumnNames.AGENT_ID)


class WantedColumns(NamedTuple):
    """Optional columns, by where they go.

    Attributes:
        input: what the policy gets beside observations and states when it acts.
        batch: what becomes part of batches.
    """

    input: frozenset[str]
    batch: frozenset[str]

    @classmethod
    def of(cls, views: Mapping[str, ViewRequirement]) -> WantedColumns:
        """As the view requirements of a policy say.

        Raises:
            ValueError: a column that is not optional, or one of another step than its own.
        """
        for name, view in views.items():
            view.require_own_step(name)
            if name not in OPTIONAL:
                raise ValueError(f"view_requirements[{name!r}]: workers add only {', '.join(OPTIONAL)} where asked")
        acting = frozenset(name for name, view in views.items() if view.used_for_compute_actions)
        return cls(acting, frozenset(name for name, view in views.items() if view.used_for_training))


def views(*wanted: str) -> dict[str, ViewRequirement]:
    """Requirements for all optional columns, of which these are wanted."""
    return {
        name: ViewRequirement(used_for_compute_actions=name in wanted, used_for_training=name in wanted)
        for name in OPTIONAL
    }
