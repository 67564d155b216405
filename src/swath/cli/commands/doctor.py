"""`swath doctor`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from swath.cli.naming import env_named
from swath.cli.options import OPTIONS, Count, GivenText, backend_named, require_in_range


def doctor(
    env: str,
    /,
    *,
    policy: GivenText = None,
    workers: Count = 1,
    backend: GivenText = None,
    json: Annotated[bool, Parameter(group=OPTIONS, negative="", show_default=False)] = False,
) -> int:
    """Look for what is wrong with an env, a policy, this machine and Ray, and say what to do about it.

    The exit code is 1 if there is an error among what was found, 0 if not, 2 if there is nothing to look at.

    Args:
        env: An id, such as CartPole-v1, or module:name, where name is a class or function that makes an env, or an id
            that importing the module registers; modules of the current folder are found, too.
        policy: Who acts: a folder of `swath train`, a checkpoint of one, or module:name. [default: random actions]
        workers: Workers that there are to be.
        backend: Where they are to live: inline, process, thread or ray. [default: left open]
        json: Print what was found as JSON, for scripts.
    """
    require_in_range(workers=workers)
    place = None if backend is None else backend_named(backend)
    env_named(env)
    from swath.cli.doctor import run_doctor  # noqa: PLC0415  imports torch

    return run_doctor(env, policy, workers, place, as_json=json)
