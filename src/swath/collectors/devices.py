"""Where envs, policy and batches are."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from swath.rollout.hosts.base import HostSpec
from swath.rollout.policies.calling import as_device


@dataclass(frozen=True)
class Devices:
    """The devices as resolved from a collector's arguments.

    Attributes:
        env: where the env runs; `None` leaves it where it is.
        policy: where the policy runs; `None` leaves it where it is.
        storing: where batches live; `None` sets no device on them.
        common: the device given for all.
    """

    env: torch.device | None = None
    policy: torch.device | None = None
    storing: torch.device | None = None
    common: torch.device | None = None

    @classmethod
    def resolve(cls, device: Any, env: Any, policy: Any, storing: Any) -> Devices:
        """`device` fills each of the others that is `None`; `env` only for an env that can go there: `movable_env`."""
        common = as_device("device", device)
        env_device, policy_device = as_device("env_device", env), as_device("policy_device", policy) or common
        store = as_device("storing_device", storing) or common
        if store is None and env_device is not None and env_device == policy_device:
            store = env_device
        return cls(env_device, policy_device, store, common)

    @property
    def movable_env(self) -> torch.device | None:
        """Where an env that can go anywhere runs; `None` leaves it where it is."""
        return self.env or self.common

    def require_env(self, spec: HostSpec) -> None:
        """Check that the env can be where it should.

        Raises:
            ValueError: a device that gymnasium's and PettingZoo's envs cannot go to.
        """
        if self.env is not None and spec.device is not None and self.env.type != spec.device.type:
            raise ValueError(
                f"env_device={str(self.env)!r}: gymnasium envs run on the CPU, and so do PettingZoo's; leave it out or "
                "give 'cpu'"
            )


def placed(policy: Any, device: torch.device | None) -> Any:
    """The policy itself, or a copy on `device` if its weights are elsewhere."""
    if device is None or not isinstance(policy, nn.Module):
        return policy
    tensors = [value for value in policy.state_dict().values() if isinstance(value, torch.Tensor)]
    if all(_same(tensor.device, device) for tensor in tensors):
        return policy
    return copy.deepcopy(policy).to(device)


def _same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (other.index is None or one.index == other.index)
