"""Policies that a function of the user builds where they run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def from_factory(build: Callable[..., Any], env: Any) -> Any:
    """What the factory builds; it gets the env if it has a required positional parameter or one named `env`.

    Raises:
        TypeError: it returned `None`.
        Exception: what the factory raised, with a note.
    """
    try:
        policy = _with_env(build, env)()
    except Exception as error:
        error.add_note(f"raised while policy_factory {build!r} built the policy")
        raise
    if policy is None:
        raise TypeError(f"policy_factory {build!r} returned None; it must return the policy")
    return policy


def _with_env(factory: Callable[..., Any], env: Any) -> Callable[[], Any]:
    """The factory, to be called without arguments."""
    parameters = inspect.signature(factory).parameters
    if "env" in parameters and parameters["env"].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return partial(factory, env=env)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = any(p.kind in positional and p.default is p.empty for p in parameters.values())
    return partial(factory, env) if required else factory
