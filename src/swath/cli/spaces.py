"""The spaces of an env, from one that is built to look at."""

from __future__ import annotations

from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from swath.cli.failure import UsageError, told_if_unserved
from swath.cli.naming import env_named, maker_named
from swath.rollout.hosts.base import first_of
from swath.rollout.hosts.sources import Source, build
from swath.rollout.hosts.vector_reset import is_vector_env

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gymnasium import Space


class Spaces(NamedTuple):
    """What one env shows, and what can be done in it."""

    observation: Space[Any]
    action: Space[Any]


def spaces_of(env: str) -> Spaces:
    """What an env shows; of one that is batched already, what one of its envs does.

    Args:
        env: as it is named; it is built and closed again, unless the name is that of an env.

    Raises:
        UsageError: there is no such env, or its spaces cannot be served.
    """
    source = env_named(env)
    with told_if_unserved(env), _looked_at(Source(source)) as one:
        return _spaces(one)


def spaces_of_copies(env: str) -> Spaces:
    """What an env shows of which a command steps several together.

    Args:
        env: as it is named; it is built and closed again.

    Raises:
        UsageError: there is no such env, its spaces cannot be served, or it can have no copies.
    """
    maker = maker_named(env)
    with told_if_unserved(env), _looked_at(Source(maker)) as one:
        if is_vector_env(one):
            raise UsageError(
                f"{env} is batched already ({one.num_envs} envs); name what makes one of them, of which --envs are "
                "stepped together"
            )
        return _spaces(one)


@contextmanager
def _looked_at(source: Source) -> Iterator[Any]:
    host = build(source)
    with nullcontext() if source.is_instance else closing(host):
        yield first_of(host.env)


def _spaces(env: Any) -> Spaces:
    alone = "single_" if is_vector_env(env) else ""
    return Spaces(getattr(env, f"{alone}observation_space"), getattr(env, f"{alone}action_space"))
