"""Which policy a collector was asked to use, and how to call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swath.rollout.policies.calling import ExplorationType
from swath.rollout.policies.random import RandomPolicy


@dataclass(frozen=True)
class PolicyRequest:
    """A policy or its factory, and how it is called.

    Attributes:
        policy: the policy, or `None`.
        factory: builds it instead.
        trust: call it with the TensorDict, unchecked.
        recurrent: supply `is_init` and recurrent state: `None` beside the env, True by transforms of the env, if it
            takes any, False not at all.
        exploration: how it picks actions.
        compile: whether and how to compile it.
        cudagraph: whether and how to capture it.
    """

    policy: Any = None
    factory: Callable[..., Any] | Sequence[Callable[..., Any]] | None = None
    trust: bool | None = None
    recurrent: bool | None = None
    exploration: ExplorationType = ExplorationType.RANDOM
    compile: bool | Mapping[str, Any] | None = None
    cudagraph: bool | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.policy is not None and self.factory is not None:
            raise TypeError("policy and policy_factory are both given; give one or the other")
        if not (self.policy is None or isinstance(self.policy, RandomPolicy) or callable(self.policy)):
            raise TypeError(
                f"policy is of type {type(self.policy).__name__}; it must be None, a callable, an nn.Module "
                "or a TensorDict module"
            )
        if self.factory is not None:
            self.single_factory()

    def single_factory(self) -> Callable[..., Any]:
        """The one factory of one worker.

        Raises:
            ValueError: a list of another length than 1.
            TypeError: not callable.
        """
        factory: Any = self.factory
        if isinstance(factory, Sequence):
            if len(factory) != 1:
                raise ValueError(f"policy_factory has {len(factory)} entries for 1 worker; give one per worker")
            factory = factory[0]
        if not callable(factory):
            raise TypeError(
                f"policy_factory is of type {type(factory).__name__}; it must be a callable that builds the policy"
            )
        built: Callable[..., Any] = factory
        return built
