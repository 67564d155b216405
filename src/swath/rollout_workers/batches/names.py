"""Names of columns, as users of RLlib know them, and which optional ones a policy gets: in its input, and in batches.

             prev_actions  prev_rewards   infos  env_id  agent_id
Policy       both          both           -      -       -            the default of a class of the user's
TorchPolicy  -             -              -      -       -            columns that are not read cost nothing
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from gymnasium import Space, spaces

# The policy of all agents by default.
DEFAULT_POLICY_ID = "default_policy"

STATE_IN, STATE_OUT = "state_in_", "state_out_"


class ColumnNames:
    """Names of the columns that workers write, with the content of row i."""

    OBS = CUR_OBS = "obs"  # the observation acted on, processed and filtered
    NEXT_OBS = "new_obs"  # the observation after it; where an episode ends, its true last one
    ACTIONS = "actions"  # actions of the policy, before processing for envs
    REWARDS = "rewards"
    TERMINATEDS = "terminateds"
    TRUNCATEDS = "truncateds"
    DONES = "dones"  # computed, never stored: terminated or truncated
    INFOS = "infos"  # info dicts that came with `new_obs`
    T = "t"  # index, in the episode, of the env step that led to `new_obs`; the first is 0
    EPS_ID = "eps_id"  # trajectory id, unique over workers and their lives
    UNROLL_ID = "unroll_id"  # number of an agent in an episode, call and version; never repeats
    AGENT_INDEX = "agent_index"  # in which order agents appeared in the episode
    AGENT_ID = "agent_id"
    ENV_ID = "env_id"
    POLICY_VERSION = "policy_version"  # version of the weights that acted
    PREV_ACTIONS = "prev_actions"  # one step before; zeros at an episode's start
    PREV_REWARDS = "prev_rewards"
    ACTION_DIST_INPUTS = "action_dist_inputs"
    ACTION_LOGP = "action_logp"
    ACTION_PROB = "action_prob"
    VF_PREDS = "vf_preds"
    VALUES_BOOTSTRAPPED = "values_bootstrapped"  # values of the next state in the estimate of advantages
    ADVANTAGES = "advantages"
    VALUE_TARGETS = "value_targets"
    SEQ_LENS = "seq_lens"  # rows of each sequence; `state_in_0`, … have one row per sequence


def is_state_in(name: str) -> bool:
    """Return whether the column holds states at the beginnings of sequences."""
    return name.startswith(STATE_IN)


def state_out_of(name: str) -> str:
    """Return the column of states after each transition that goes with a `state_in_…`."""
    return STATE_OUT + name.removeprefix(STATE_IN)


def counts_sequences(name: str) -> bool:
    """Return whether the column has, by its name, one row per sequence and not per transition."""
    return name == ColumnNames.SEQ_LENS or is_state_in(name)


@dataclass
class ViewRequirement:
    """A column that a policy reads, with RLlib's arguments in RLlib's order.

    Workers make views of a column's own step, and `prev_actions` and `prev_rewards`. Others can be described, and are
    refused with a `ValueError` where they would be made.

    Attributes:
        data_col: the column that it is taken from; None for its own name.
        space: of one row; None for a number without bounds.
        shift: 0 for the same step, -1 for the one before; several as a list or as `"from:to"`.
        index: a fixed place in the trajectory.
        batch_repeat_value: how many steps share a row; columns of states have one row per sequence in any case.
        used_for_compute_actions: whether it is part of the input for actions.
        used_for_training: whether it is part of batches.
    """

    data_col: str | None = None
    space: Space[Any] | None = None
    shift: int | str | list[int] = 0
    index: int | None = None
    batch_repeat_value: int = 1
    used_for_compute_actions: bool = True
    used_for_training: bool = True

    def __post_init__(self) -> None:
        if self.space is None:
            self.space = spaces.Box(-math.inf, math.inf, ())

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as a dictionary that JSON can hold.

        Raises:
            ValueError: a space that JSON cannot describe.
        """
        assert self.space is not None  # set at construction
        return {**vars(self), "space": _to_json(self.space)}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Self:
        """Build the requirement that `to_dict` described.

        Args:
            d: as `to_dict` returns it; it stays unchanged.

        Raises:
            TypeError: an entry that is no argument.
            ValueError: a description of no space that is known.
        """
        return cls(**{**d, "space": d["space"] and _space_from(d["space"])})

    def require_own_step(self, name: str) -> None:
        """Raise `ValueError` unless it is a view of the column's own step."""
        is_own = (self.data_col or name, self.shift) in ((name, 0), (SHIFTED.get(name), -1))
        if not is_own or self.index is not None or (self.batch_repeat_value != 1 and not is_state_in(name)):
            advice = "workers make columns of the same step only; make others in postprocess_trajectory"
            raise ValueError(f"view_requirements[{name!r}]={self} must be ViewRequirement({name!r}): {advice}")


# By RLlib's name of a kind of spaces: the class, and the attributes that it is built of.
_KINDS: dict[str, tuple[Callable[..., Space[Any]], str]] = {
    "box": (spaces.Box, "low high dtype"),
    "discrete": (spaces.Discrete, "n start"),
    "multi-binary": (spaces.MultiBinary, "n"),
    "multi-discrete": (spaces.MultiDiscrete, "nvec start dtype"),
    "text": (spaces.Text, "max_length min_length character_list"),
    "tuple": (spaces.Tuple, "spaces"),
    "dict": (spaces.Dict, "spaces"),
}


def _to_json(value: Any) -> Any:
    """Describe a space, or a value that it is built of, by texts, numbers, lists and dicts."""
    if isinstance(value, Space):
        kind = next((name for name, (kind, _) in _KINDS.items() if type(value) is kind), None)
        if kind is None:
            raise ValueError(f"{value!r} has no description that JSON can hold; use spaces of fixed structure")
        return {"space": kind, **{name: _to_json(getattr(value, name)) for name in _KINDS[kind][1].split()}}
    if isinstance(value, np.dtype):
        return value.str
    if isinstance(value, dict | tuple):
        return [*map(_to_json, value)] if isinstance(value, tuple) else [[k, _to_json(v)] for k, v in value.items()]
    return np.asarray(value).tolist()


def _space_from(description: Mapping[str, Any]) -> Space[Any]:
    """Build the space that `_to_json` described; nothing is unpickled."""
    kind, arguments = description["space"], {name: value for name, value in description.items() if name != "space"}
    if kind not in _KINDS:
        raise ValueError(f"space={kind!r} is none of {', '.join(_KINDS)}; use what to_dict() returned")
    if "dtype" in arguments:
        arguments["dtype"] = np.dtype(arguments["dtype"])
    if kind == "box":
        arguments |= {bound: np.array(arguments[bound], arguments["dtype"]) for bound in ("low", "high")}
    elif kind == "text":
        arguments["charset"] = "".join(arguments.pop("character_list"))
    elif kind == "tuple":
        arguments["spaces"] = [*map(_space_from, arguments["spaces"])]
    elif kind == "dict":
        arguments["spaces"] = [(name, _space_from(part)) for name, part in arguments["spaces"]]
    return _KINDS[kind][0](**arguments)


# Columns that hold what another held one step before.
SHIFTED = {ColumnNames.PREV_ACTIONS: ColumnNames.ACTIONS, ColumnNames.PREV_REWARDS: ColumnNames.REWARDS}

BEFORE = tuple(SHIFTED)
# Columns that workers add only if a policy requires them.
OPTIONAL = (*BEFORE, ColumnNames.INFOS, ColumnNames.ENV_ID, ColumnNames.AGENT_ID)


class WantedColumns(NamedTuple):
    """The optional columns that a policy gets, by destination.

    Attributes:
        input: columns that the policy gets in addition to observations and states when it acts.
        batch: columns of batches.
    """

    input: frozenset[str]
    batch: frozenset[str]

    @classmethod
    def of(cls, views: Mapping[str, ViewRequirement]) -> WantedColumns:
        """Read the view requirements of a policy.

        Raises:
            ValueError: a column that is not optional, or one of another step than its own.
        """
        for name, view in views.items():
            view.require_own_step(name)
            if name not in OPTIONAL:
                raise ValueError(f"view_requirements[{name!r}]: workers add only {', '.join(OPTIONAL)} where asked")
        acting = frozenset(name for name, view in views.items() if view.used_for_compute_actions)
        return cls(acting, frozenset(name for name, view in views.items() if view.used_for_training))


def optional_views(*used: str) -> dict[str, ViewRequirement]:
    """Return requirements for all optional columns, of which these are wanted."""
    return {
        name: ViewRequirement(used_for_compute_actions=name in used, used_for_training=name in used)
        for name in OPTIONAL
    }
