"""Policies compiled, or captured in a CUDA graph, and whether such a one is called unchecked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict.nn import CudaGraphModule
from torch import nn


def compiled(policy: Any, compile_policy: Any, cudagraph_policy: Any) -> Any:
    """The policy as compiled, or captured in a CUDA graph, if that is asked for.

    Raises:
        ValueError: a CUDA graph for a policy that is not on CUDA; neither yes nor no nor options; a random policy.
    """
    for name, value in (("compile_policy", compile_policy), ("cudagraph_policy", cudagraph_policy)):
        if not (value is None or isinstance(value, bool | Mapping)):
            raise ValueError(
                f"{name}={value!r} is of type {type(value).__name__}; it must be True, False or a dict of options"
            )
        if asked_for(value) and not callable(policy):
            raise ValueError(
                f"{name} needs a policy that is called, and this is of type {type(policy).__name__}; leave it out"
            )
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
