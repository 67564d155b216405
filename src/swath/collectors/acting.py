"""Which module acts: the user's own within a draw, a snapshot of it in the background.

    given ──(policy_device)──▶ policy ──▶ acts within draws, in the thread that draws
                                  └──(copied by start())──▶ snapshot ──▶ acts in the background thread

Training in the user's thread never reaches the background thread unless it is published.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from swath.collectors.options import WorkerOptions
from swath.errors import warn_of_no_effect
from swath.rollout.hosts.base import HostSpec
from swath.rollout.policies.binding import bind
from swath.rollout.policies.calling import Binding, BoundPolicy, ExplorationType, compiled, device_of
from swath.rollout.seeding import preserved
from swath.rollout.spaces import Leaves


class Acting:
    """The policy of one worker in this process: as it was given, and as it acts.

    Args:
        options: how the policy is called, and where it runs.
        given: the policy.
        spec: the envs that it acts in.

    Attributes:
        policy: what acts within draws.
        device: where its inputs go; `None` for the CPU.
    """

    def __init__(self, options: WorkerOptions, given: Any, spec: HostSpec) -> None:
        self._options, self._spec, device = options, spec, options.devices.policy
        self.policy = placed(given, device)
        self.device = device or device_of(self.policy)
        self._snapshot: nn.Module | None = None
        self._own: BoundPolicy | None = None

    @property
    def module(self) -> nn.Module | None:
        """What holds the weights that act now; `None` if there are none."""
        acts = self.policy if self._snapshot is None else self._snapshot
        return acts if isinstance(acts, nn.Module) and acts.state_dict() else None

    def modules(self) -> list[nn.Module]:
        """All that holds weights here: what acts within draws, and the snapshot if it acts now."""
        return [module for module in (self.policy, self._snapshot) if isinstance(module, nn.Module)]

    def bound(self, observation: Leaves) -> BoundPolicy:
        """The policy that acts within draws, bound to the envs by one call on their first observation.

        Raises:
            TypeError: it cannot be called, or its action has the wrong dtype.
            KeyError: an entry it reads or the action is missing.
            ValueError: its action has the wrong shape.
        """
        self._own = self._bind(self.policy, observation)
        exploration = self._options.exploration
        if not self._own.explores and exploration is not ExplorationType.RANDOM:
            warn_of_no_effect(
                f"exploration_type={exploration.name}",
                "the policy does not take it; give it a parameter named exploration_type, or use a TensorDict module",
            )
        return self._own

    def copied(self, observation: Leaves) -> BoundPolicy | None:
        """A copy of the policy, made now, which acts from now on; `None` if there is nothing to copy."""
        if not isinstance(self.policy, nn.Module):
            return None
        self._snapshot = copy.deepcopy(self.policy)
        return self._bind(self._snapshot, observation)

    def restored(self) -> BoundPolicy | None:
        """The user's own policy, which acts again; `None` if it never stopped."""
        acted, self._snapshot = self._snapshot, None
        return None if acted is None else self._own

    def _bind(self, module: Any, observation: Leaves) -> BoundPolicy:
        asked = self._options
        called = compiled(module, asked.compile_policy, asked.cudagraph_policy)
        options = Binding(
            device=self.device,
            exploration=asked.exploration,
            trust=asked.trust_policy,
            recurrent=asked.auto_register_policy_transforms is not False,
        )
        with preserved(self.device), torch.no_grad():
            return bind(called, self._spec, observation, options)


def placed(policy: Any, device: torch.device | None) -> Any:
    """The policy itself, or a copy on `device` if its weights are elsewhere."""
    if device is None or not isinstance(policy, nn.Module):
        return policy
    tensors = [value for value in policy.state_dict().values() if isinstance(value, torch.Tensor)]
    if all(tensor.device.type == device.type and device.index in (None, tensor.device.index) for tensor in tensors):
        return policy
    return copy.deepcopy(policy).to(device)
