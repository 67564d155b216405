"""The way of one step through a bound policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from swath.rollout.policies.answers import Unpack
from swath.rollout.policies.calling import Call
from swath.rollout.spaces import Leaves


@dataclass(frozen=True)
class Path:
    """The strategies of one bound policy, in order of use.

    Attributes:
        give: leaves of observations to tensors.
        call: calls the policy.
        unpack: its answer to values, in the order of its keys.
        takes: one per value: to a leaf.
        explores: whether the policy knows the exploration type.
    """

    give: Callable[[Leaves], list[torch.Tensor]]
    call: Call
    unpack: Unpack
    takes: tuple[Callable[[Any], Any], ...]
    explores: bool
