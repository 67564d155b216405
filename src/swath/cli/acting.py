"""Who acts in a collection: the policy of a checkpoint, or nobody in particular."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from swath.cli.failure import told_if_misfitting, told_if_unserved
from swath.cli.folder import find_checkpoint
from swath.cli.parts import device_named
from swath.cli.spaces import spaces_of_copies
from swath.cli.state import give_weights, open_run
from swath.learn import NetworkPolicy, make_policy

if TYPE_CHECKING:
    from pathlib import Path

    from swath.cli.collect_config import CollectConfig
    from swath.cli.spaces import Spaces


def acting_policy(config: CollectConfig) -> NetworkPolicy | None:
    """The policy of the checkpoint that the options name; `None` for random actions. Looks at the env in any case.

    Raises:
        UsageError: no checkpoint, one for other spaces, a device that is not there, or an env that cannot be served.
    """
    spaces, device = spaces_of_copies(config.env), device_named(config.device)
    return None if config.policy is None else policy_at(config.policy, config.env, spaces).to(device)


def policy_at(path: Path, env: str, spaces: Spaces) -> NetworkPolicy:
    """The policy of a checkpoint, on the CPU.

    Args:
        path: a run's folder, or a checkpoint.
        env: its name, for messages.
        spaces: of the env.

    Raises:
        UsageError: no checkpoint, or one for other spaces, or spaces that cannot be served.
    """
    file = find_checkpoint(path)
    saved = open_run(file)
    with torch.random.fork_rng(devices=[]), told_if_unserved(env):
        policy = make_policy(*spaces)
    with told_if_misfitting(file, env):
        give_weights(policy, saved)
    return policy


def fingerprint(policy: NetworkPolicy | None) -> str:
    """Tells who acts from others: a policy's weights, or nobody's."""
    if policy is None:
        return "random"
    digest = hashlib.sha256()
    for name, value in sorted(policy.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return f"weights {digest.hexdigest()[:16]}"
