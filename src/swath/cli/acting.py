"""Who acts in a collection: the policy of a checkpoint, or nobody in particular."""

from __future__ import annotations

import hashlib
from contextlib import closing
from typing import TYPE_CHECKING, Any

import torch

from swath.cli.failure import told_if_misfitting, told_if_unserved
from swath.cli.folder import find_checkpoint
from swath.cli.parts import device_named
from swath.cli.state import open_run
from swath.learn import NetworkPolicy, make_policy
from swath.rollout.hosts.base import first_of
from swath.rollout.hosts.sources import Source, build

if TYPE_CHECKING:
    from gymnasium import Space

    from swath.cli.collect_config import CollectConfig


def acting_policy(config: CollectConfig) -> NetworkPolicy | None:
    """The policy of the checkpoint that the options name; `None` for random actions. Looks at the env in any case.

    Raises:
        UsageError: no checkpoint, one for other spaces, a device that is not there, or an env that cannot be served.
    """
    spaces, device = _spaces_of(config), device_named(config.device)
    if config.policy is None:
        return None
    file = find_checkpoint(config.policy)
    saved = open_run(file)
    with torch.random.fork_rng(devices=[]), told_if_unserved(config.env):
        policy = make_policy(*spaces)
    with told_if_misfitting(file, f"{config.env} as it is here"):
        policy.load_state_dict(saved.state["policy"])
    return policy.to(device)


def fingerprint(policy: NetworkPolicy | None) -> str:
    """Tells who acts from others: a policy's weights, or nobody's."""
    if policy is None:
        return "random"
    digest = hashlib.sha256()
    for name, value in sorted(policy.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return f"weights {digest.hexdigest()[:16]}"


def _spaces_of(config: CollectConfig) -> tuple[Space[Any], Space[Any]]:
    with told_if_unserved(config.env), closing(build(Source(config.env, config.env_keywords))) as host:
        one = first_of(host.env)
        return one.observation_space, one.action_space
