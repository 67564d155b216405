"""The spaces of an env, from one that is built to look at."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from swath.cli.failure import told_if_unserved
from swath.rollout.hosts.base import first_of
from swath.rollout.hosts.sources import Source, build

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gymnasium import Space


class Spaces(NamedTuple):
    """What one env shows, and what can be done in it."""

    observation: Space[Any]
    action: Space[Any]


def spaces_of(env: str, keywords: Mapping[str, Any] | None = None) -> Spaces:
    """Build an env, look, and close it.

    Raises:
        UsageError: its spaces cannot be served.
    """
    with told_if_unserved(env), closing(build(Source(env, dict(keywords or {})))) as host:
        one = first_of(host.env)
        return Spaces(one.observation_space, one.action_space)
