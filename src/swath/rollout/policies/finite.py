"""Watching for NaN and infinities in what a policy sees and answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        require_finite_leaves("observation", self._observed, observation)
        outputs = self._policy(observation)
        require_finite_leaves("policy output", self._policy.keys, outputs)
        return outputs


def require_finite_leaves(what: str, keys: Sequence[Key], leaves: Leaves) -> None:
    """Raise `NonFinite` for the first leaf with a NaN or an infinity; of a TensorDict, the only leaf, for its entry."""
    td = leaves[0]
    named = _entries(td) if isinstance(td, TensorDictBase) else zip(keys, leaves, strict=True)
    for key, leaf in named:
        require_finite(f"{what} {key!r}", leaf)


def require_finite(what: str, leaf: Any) -> None:
    """Raise `NonFinite` naming the first env with a NaN or an infinity in `leaf` `[B, …]`."""
    values = torch.as_tensor(leaf)
    if not values.is_floating_point() or bool(values.isfinite().all()):
        return
    env = int((~values.isfinite()).reshape(len(values), -1).any(dim=1).nonzero()[0])
    raise NonFinite(
        f"{what} is not finite in env {env}: {values[env].tolist()}; look for a diverged network or env state"
    )


def _entries(td: TensorDictBase) -> Iterator[tuple[Key, torch.Tensor]]:
    """Entries of a TensorDict `[*B]`, as `[B, …]`."""
    for key, value in td.items(include_nested=True, leaves_only=True):
        yield key, value.reshape(td.numel(), -1)
