"""Env and policy of one worker of an evaluation: built where they are used, the policy a private one.

env source ──▶ host, its running statistics frozen ─┐
policy | factory ──▶ private copy, in eval mode ─────┴──▶ Setting
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from inspect import getclosurevars
from types import FunctionType
from typing import Any

import torch

from swath.errors import warn_of_no_effect
from swath.evaluation.acting import Predicts
from swath.evaluation.arena import SettingRequest, make_host
from swath.evaluation.layers import frozen
from swath.rollout.hosts.base import Host, first_of
from swath.rollout.policies.binding import compiled, from_factory
from swath.rollout.policies.calling import device_of, the_policy
from swath.rollout.seeding import PrivateStreams, preserved
from swath.seeds import derive

_log = logging.getLogger("swath")

_WAY_OUT = "evaluation runs a private copy: give it `__deepcopy__`, or an Evaluator a policy_factory"


class Setting:
    """A host and a policy.

    Args:
        request: what to build.

    Attributes:
        host: the envs.
        policy: what has the weights; nobody else has it.
        acts: the same policy, as it is called: compiled, say.
        device: where its inputs go; `None` for where the envs are.
        closed: whether the envs are closed.
        alone: as in the request.
        draws_apart: whether what is drawn in an evaluation is to come from generators of its own.

    Raises:
        Exception: what building env or policy raised.
    """

    def __init__(self, request: SettingRequest) -> None:
        self._request = request
        self._open = ExitStack()
        self.closed = False
        self.alone, self.draws_apart = request.alone, request.alone and not request.borrows
        self.host = self._host()
        try:
            self.policy = self._policy()
            self.device = request.device or device_of(self.policy)
            self.acts = compiled(self.policy, request.compile, request.cudagraph)
        except BaseException:
            self._open.close()
            if self._owned:
                self.host.close()
            raise

    def renew(self) -> None:
        """Close the envs and build them anew; those that were handed in go on from their next reset."""
        if self._owned:
            try:
                self.close()
            except Exception as error:  # noqa: BLE001  what has failed may fail again, and is not used any more
                _log.error("an env that had failed raised when it was closed; another is built", exc_info=error)
            self.closed = False
            self.host = self._host()

    def close(self) -> None:
        """Close the envs, also those that were handed in, unless they are borrowed. Twice is fine."""
        self.closed = True
        self._open.close()
        if self._owned or not self._request.borrows:
            self.host.close()

    def _host(self) -> Host:
        host, self._owned = make_host(self._request)
        self._open.enter_context(frozen(host.env))
        return host

    def _policy(self) -> Any:
        request = self._request
        if request.borrows and isinstance(request.policy, Predicts):
            self._open.enter_context(evaluating(request.policy))
            return request.policy
        policy = self._built() if request.factory is not None else private_copy(request.policy)
        if request.device is not None and isinstance(policy, torch.nn.Module):
            policy.to(request.device)
        elif request.device is not None and isinstance(policy, Predicts):
            warn_of_no_effect("device", f"{type(policy).__name__}.predict says itself where it runs")
        return policy

    def _built(self) -> Any:
        """What the factory builds, from generators that are seeded equally in every worker and life."""
        request = self._request
        assert request.factory is not None
        seed = None if request.seed is None else derive(request.seed, "policy")
        with nullcontext() if seed is None else PrivateStreams(seed, request.device).swapped():
            product = from_factory(request.factory, first_of(self.host.env))
        return made_private(product, alone=request.alone)


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
