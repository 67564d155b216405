"""From what was asked for to a policy: built by its factory, compiled, captured in a CUDA graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from tensordict.nn import CudaGraphModule
from torch import nn

from swath.collect.making.policy_request import PolicyRequest
from swath.rollout.policies.random_policy import RandomPolicy


class Given:
    """The policy as the user gave it, or as the factory builds it, once; random actions if there is neither.

    Args:
        asked: which policy.
    """

    def __init__(self, asked: PolicyRequest) -> None:
        self._asked = asked
        self._policy = RandomPolicy() if asked.policy is None else asked.policy
        self._to_build = asked.factory is not None

    def __call__(self, env: Any) -> Any:
        """The policy; a factory that wants an env gets the first one that is asked with."""
        if self._to_build:
            self._policy = from_factory(self._asked.single_factory(), env)
            self._to_build = False
        return self._policy


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


def compiled(policy: Any, compile_policy: Any, cudagraph_policy: Any) -> Any:
    """The policy as compiled, or captured in a CUDA graph, if that is asked for.

    Raises:
        ValueError: a CUDA graph for a policy that is not on CUDA.
    """
    if asked_for(compile_policy):
        policy = torch.compile(policy, **_options(compile_policy))
    if asked_for(cudagraph_policy):
        if not _on_cuda(policy):
            raise ValueError("cudagraph_policy needs a policy on CUDA; leave it out, or set policy_device='cuda'")
        policy = CudaGraphModule(policy, **_options(cudagraph_policy))
    return policy


def asked_for(value: Any) -> bool:
    """Whether this is `True` or options, of which there may be none."""
    return isinstance(value, Mapping) or bool(value)


def _options(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def is_trusted(policy: Any, trust: bool | None) -> bool:
    """`None` trusts CUDA graph modules only."""
    return isinstance(policy, CudaGraphModule) if trust is None else trust


def _on_cuda(policy: Any) -> bool:
    return isinstance(policy, nn.Module) and any(tensor.is_cuda for tensor in policy.parameters())
