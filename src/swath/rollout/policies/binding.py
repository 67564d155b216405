"""How to bind a policy to a host."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from swath.rollout.policies.exploration import ExplorationType


@dataclass(frozen=True)
class Binding:
    """How to bind a policy.

    Attributes:
        device: where its inputs go; `None` leaves them on the CPU.
        exploration: how it picks actions.
        trust: call it with the TensorDict, unchecked.
        recurrent: supply `is_init` and recurrent state where it reads them.
        finite: raise `NonFinite` if its first answer is not finite.
    """

    device: torch.device | None = None
    exploration: ExplorationType = ExplorationType.RANDOM
    trust: bool = False
    recurrent: bool = True
    finite: bool = False
