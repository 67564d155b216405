"""Env and policy of one worker of an evaluation: built where they are used, the policy a private one.

env source ──▶ host, its running statistics frozen ─┐
policy | factory ──▶ private copy, in eval mode ─────┴──▶ Setting
"""

from __future__ import annotations

import logging
from contextlib import ExitStack, nullcontext
from typing import Any

import torch

from swath.errors import warn_of_no_effect
from swath.evaluate.arena import SettingRequest, make_host
from swath.evaluate.layers import frozen
from swath.evaluate.predictor import Predicts
from swath.evaluate.privacy import evaluating, made_private, private_copy
from swath.rollout.hosts.base import Host, first_of
from swath.rollout.policies.binding import compiled, from_factory
from swath.rollout.policies.calling import device_of
from swath.rollout.seeding import PrivateStreams
from swath.seeds import derive

_log = logging.getLogger("swath")


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
