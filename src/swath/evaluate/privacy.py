"""What keeps an evaluation apart from training: a copy of the policy, modes and random states put back."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from inspect import getclosurevars
from types import FunctionType
from typing import Any

import torch

from swath.rollout.policies.calling import device_of, the_policy
from swath.rollout.seeding import PrivateStreams, preserved
from swath.seeds import derive

_WAY_OUT = "evaluation runs a private copy: give it `__deepcopy__`, or an Evaluator a policy_factory"


def private_copy(policy: Any) -> Any:
    """A copy of any policy, in evaluation mode, that can act while the original is trained.

    Raises:
        TypeError: the policy cannot be copied.
    """
    try:
        return _evaluating(copy.deepcopy(policy))
    except Exception as error:
        raise TypeError(f"{type(policy).__name__} cannot be copied ({error}); {_WAY_OUT}") from error


def made_private(product: Any, *, alone: bool) -> Any:
    """What a factory built, in evaluation mode; a copy where others may hold it too and it can be copied.

    Args:
        product: any policy.
        alone: whether the process has nobody else who could hold it.
    """
    if alone:
        return _evaluating(product)
    try:
        return _evaluating(copy.deepcopy(product))
    except Exception:  # noqa: BLE001  its class may refuse in any way; it was built for this evaluator
        return _evaluating(product)


def private_streams(root: int | None, policy: Any) -> AbstractContextManager[None]:
    """Draws from the process's generators leave no trace, and begin from the root seed if there is one."""
    device = device_of(policy)
    return preserved(device) if root is None else PrivateStreams(derive(root, "global"), device).swapped()


def require_own(policy: Any) -> None:
    """Check that a copy of this policy is one: a function is copied without the modules that it refers to.

    Raises:
        TypeError: it refers to one, which would act itself, with weights that training changes meanwhile.
    """
    if not isinstance(policy, FunctionType):
        return
    referred = getclosurevars(policy)
    for name, value in {**referred.globals, **referred.nonlocals}.items():
        if isinstance(value, torch.nn.Module):
            raise TypeError(f"{the_policy(policy)} refers to the module {name}, not copied with it; {_WAY_OUT}")


def _evaluating(policy: Any) -> Any:
    module = module_of(policy)
    if module is not None:
        module.eval()
    return policy


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Its module is in evaluation mode within; its modes are put back."""
    module = module_of(model)
    if module is None:
        yield
        return
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training


def module_of(policy: Any) -> torch.nn.Module | None:
    """The module that has the weights and a mode: the policy itself, or that of a model of Stable-Baselines3."""
    module = policy if isinstance(policy, torch.nn.Module) else getattr(policy, "policy", None)
    return module if isinstance(module, torch.nn.Module) else None
