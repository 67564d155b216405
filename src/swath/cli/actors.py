"""Who acts, by the names that a command line has for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swath.cli.acting import policy_at
from swath.cli.failure import UsageError, told_in_one_line
from swath.cli.naming import object_named
from swath.cli.spaces import spaces_of

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Actor:
    """Who acts: a policy, or what builds one; neither for random actions.

    Attributes:
        policy: as `Collector` takes it.
        factory: builds it.
        words: what the user calls it.
    """

    policy: Any = None
    factory: Callable[..., Any] | None = None
    words: str = "random actions"


def actor_named(policy: str | None, factory: str | None, env: str) -> Actor:
    """Who acts: a checkpoint of `swath train`, or what `module:name` is.

    Args:
        policy: as it is named.
        factory: what makes it, as that is named.
        env: as it is named.

    Raises:
        UsageError: both are given, there is no such thing, or it is for other spaces.
    """
    if policy is not None and factory is not None:
        raise UsageError("--policy and --policy-factory are two ways to say who acts; leave one of them out")
    if factory is not None:
        return Actor(factory=object_named(factory), words=factory)
    if policy is None:
        return Actor()
    if ":" in policy and not Path(policy).exists():
        return Actor(object_named(policy), words=policy)
    with told_in_one_line():
        return Actor(policy_at(Path(policy), env, spaces_of(env)), words=policy)
