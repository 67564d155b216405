"""Watching for NaN and infinities in what a policy sees and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from swath.errors import NonFinite
from swath.keys import Key
from swath.rollout.policies.bound import BoundPolicy
from swath.rollout.spaces import Leaves


class Finite:
    """Acts as a policy does, and checks that what it sees and what it answers is finite.

    Args:
        policy: the policy.
        observed: keys of the observation leaves.
    """

    def __init__(self, policy: BoundPolicy, observed: Sequence[Key]) -> None:
        self._policy, self._observed = policy, observed
        self.begin, self.rewind = policy.begin, policy.rewind

    def __call__(self, observation: Leaves) -> Leaves:
        """The policy's outputs.

        Raises:
            NonFinite: one of them, or of the observations, is NaN or infinite.
        """
        for key, leaf in zip(self._observed, observation, strict=True):
            require_finite(f"observation {key!r}", leaf)
        outputs = self._policy(observation)
        for key, leaf in zip(self._policy.keys, outputs, strict=True):
            require_finite(f"policy output {key!r}", leaf)
        return outputs


class FiniteTensorDict:
    """The same for a policy that writes into a TensorDict, its only leaf.

    Args:
        policy: the policy.
    """

    def __init__(self, policy: BoundPolicy) -> None:
        self._policy = policy
        self.keys, self.columns, self.explores = policy.keys, policy.columns, policy.explores
        self.begin, self.rewind = policy.begin, policy.rewind
        self.skip, self.take_over = policy.skip, policy.take_over

    def __call__(self, observation: Leaves) -> Leaves:
        """What the policy makes of the TensorDict.

        Raises:
            NonFinite: one of its entries, before or after, is NaN or infinite.
        """
        require_finite_entries("observation", observation[0])
        outputs = self._policy(observation)
        require_finite_entries("policy output", outputs[0])
        return outputs


def require_finite_entries(what: str, td: TensorDictBase) -> None:
    """Raise `NonFinite` for the first entry of a TensorDict with a NaN or an infinity."""
    for key, value in td.items(include_nested=True, leaves_only=True):
        require_finite(f"{what} {key!r}", value.reshape(td.numel(), -1))


def require_finite(what: str, leaf: Any) -> None:
    """Raise `NonFinite` naming the first env with a NaN or an infinity in `leaf` `[B, …]`."""
    values = torch.as_tensor(leaf)
    if not values.is_floating_point() or bool(values.isfinite().all()):
        return
    env = int((~values.isfinite()).reshape(len(values), -1).any(dim=1).nonzero()[0])
    raise NonFinite(
        f"{what} is not finite in env {env}: {values[env].tolist()}; look for a diverged network or env state"
    )
