"""The policy that a collector's arguments ask for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tensordict.nn import CudaGraphModule
from torch import nn


def require_one_source(policy: Any, factory: Any) -> None:
    """Check `policy` against `policy_factory`, before anything is built.

    Raises:
        TypeError: both are given, or the factory is none.
    """
    if policy is not None and factory is not None:
        raise TypeError("policy and policy_factory are both given; give one or the other")
    if policy is not None and not callable(policy):
        raise TypeError(
            f"policy is a {type(policy).__name__}; it must be None, a callable, an nn.Module or a TensorDict module"
        )
    if factory is not None:
        single_factory(factory)


def single_factory(factory: Any) -> Callable[..., Any]:
    """The one factory of one worker.

    Raises:
        ValueError: a list of another length than 1.
        TypeError: not callable.
    """
    if isinstance(factory, Sequence):
        if len(factory) != 1:
            raise ValueError(f"policy_factory has {len(factory)} entries for 1 worker; give one per worker")
        factory = factory[0]
    if not callable(factory):
        raise TypeError(f"policy_factory is a {type(factory).__name__}; it must be a callable that builds the policy")
    built: Callable[..., Any] = factory
    return built


def from_factory(factory: Any, env: Any) -> Any:
    """What the factory builds; it gets the env if it has a required positional parameter or one named `env`."""
    build = single_factory(factory)
    try:
        policy = build(env) if wants_env(build) else build()
    except Exception as error:
        error.add_note(f"raised while policy_factory {factory!r} built the policy")
        raise
    if policy is None:
        raise TypeError(f"policy_factory {factory!r} returned None; it must return the policy")
    return policy


def wants_env(factory: Callable[..., Any]) -> bool:
    """Whether a policy factory is called with the env."""
    parameters = inspect.signature(factory).parameters
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = any(p.kind in positional and p.default is p.empty for p in parameters.values())
    return required or "env" in parameters


def compiled(policy: Any, compile_policy: Any, cudagraph_policy: Any) -> Any:
    """The policy as compiled, or captured in a CUDA graph, if that is asked for.

    Raises:
        ValueError: a CUDA graph for a policy that is not on CUDA.
    """
    if compile_policy:
        options = compile_policy if isinstance(compile_policy, Mapping) else {}
        policy = torch.compile(policy, **options)
    if cudagraph_policy:
        if not _on_cuda(policy):
            raise ValueError("cudagraph_policy needs a policy on CUDA; leave it out, or set policy_device='cuda'")
        options = cudagraph_policy if isinstance(cudagraph_policy, Mapping) else {}
        policy = CudaGraphModule(policy, **options)
    return policy


def is_trusted(policy: Any, trust: bool | None) -> bool:
    """`None` trusts CUDA graph modules only."""
    return isinstance(policy, CudaGraphModule) if trust is None else trust


def _on_cuda(policy: Any) -> bool:
    return isinstance(policy, nn.Module) and any(tensor.is_cuda for tensor in policy.parameters())
