"""Names of columns, as users of RLlib know them."""

from __future__ import annotations

DEFAULT_POLICY_ID = "default_policy"
"""The policy of all agents where nothing else is said."""

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


def counts_sequences(name: str) -> bool:
    """Whether the column has, by its name, one row per sequence and not per transition."""
    return name == ColumnNames.SEQ_LENS or is_state_in(name)


def state_out_of(name: str) -> str:
    """The column of states after each transition that goes with a `state_in_…`."""
    return STATE_OUT + name.removeprefix(STATE_IN)
