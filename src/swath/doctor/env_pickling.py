"""Whether env and policy can travel to workers elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle

from swath.doctor.finding import Finding, Level, told
from swath.doctor.subject import Subject, is_batched

LARGE = 16 * 2**20


def check_recipe(subject: Subject) -> Iterator[Finding]:
    """What is sent to workers to build the env."""
    if not subject.is_instance:
        yield from recipe("what builds the env", subject.env)


def check_env_pickling(subject: Subject) -> Iterator[Finding]:
    """The env itself, which is copied where it is handed over as one."""
    env = subject.make()
    try:
        if subject.is_instance or not is_batched(env):
            env.reset(seed=subject.seed)
            yield from itself(env, handed_over=subject.is_instance)
    finally:
        subject.done_with(env)


def check_policy_pickling(subject: Subject) -> Iterator[Finding]:
    """The policy, or what builds it."""
    if subject.policy is not None:
        yield from recipe("pickling of the policy", subject.policy)
    if subject.policy_factory is not None:
        yield from recipe("pickling of the policy factory", subject.policy_factory)


def recipe(what: str, value: Any) -> Iterator[Finding]:
    """Something that every worker needs."""
    try:
        size = len(cloudpickle.dumps(value))
    except Exception as error:  # noqa: BLE001  pickling runs the user's code
        yield Finding(
            Level.ERROR,
            what,
            f"cannot be pickled: {told(error)}{culprit(value)}",
            "something that travels to workers in processes and on Ray",
            "build what cannot travel inside the function, in the worker, not outside it",
        )
        return
    if size > LARGE and not hasattr(value, "state_dict"):
        yield Finding(
            Level.WARNING,
            what,
            f"takes {size / 2**20:.0f} MiB with all that it refers to",
            f"less than {LARGE / 2**20:.0f} MiB: it is sent to every worker, and again when one is replaced",
            "load large data inside the function, in the worker, from a file",
        )


def itself(env: Any, *, handed_over: bool) -> Iterator[Finding]:
    """An env that has been reset."""
    try:
        cloudpickle.loads(cloudpickle.dumps(env))
    except Exception as error:  # noqa: BLE001  pickling runs the user's code
        yield Finding(
            Level.ERROR if handed_over else Level.WARNING,
            "pickling of the env",
            f"it cannot be pickled: {told(error)}{culprit(getattr(env, 'unwrapped', env))}",
            "an env that can be copied" if handed_over else "an env that can be copied, should one be handed over",
            "always hand over its id or a function that builds it, never the env itself; or drop the attribute in "
            "__getstate__ and make it again in __setstate__",
        )


def culprit(value: Any) -> str:
    """The attributes that cannot be pickled."""
    parts = getattr(value, "__dict__", {}).items()
    names = [f"{name} ({type(part).__name__})" for name, part in parts if not _travels(part)]
    return f"; attribute {', '.join(names)}" if names else ""


def _travels(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001  pickling runs the user's code
        return False
    return True
