"""Where the weights of a collector come from, by the arguments of its constructor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swath.collectors.plan import Automatic
from swath.weights.schemes import WeightSyncScheme, require_schemes
from swath.weights.snapshot import POLICY
from swath.weights.updaters import WeightUpdaterBase

Schemes = Mapping[str, WeightSyncScheme]


@dataclass(frozen=True)
class WeightSettings:
    """Where weights come from.

    Attributes:
        policy: the user's own policy.
        built_there: whether a factory builds the policy where it acts.
        updater: the weight updater, if there is one.
        schemes: senders by model, declared by the user or by default.
        receivers: receivers by model.
        declared: whether the user declared the senders.
    """

    policy: Any = None
    built_there: bool = False
    updater: WeightUpdaterBase | None = None
    schemes: Schemes = field(default_factory=dict)
    receivers: Schemes = field(default_factory=dict)
    declared: bool = False

    @property
    def acting(self) -> Any:
        """What workers build their policy from: nothing where it is only the source of weights."""
        return None if self.built_there and self.declared and POLICY in self.schemes else self.policy

    @classmethod
    def of(
        cls,
        policy: Any,
        factory: Any,
        weight_updater: Any,
        schemes: tuple[Any, Callable[[], WeightSyncScheme] | None],
        weight_recv_schemes: Any,
    ) -> WeightSettings:
        """From arguments.

        Args:
            policy: as given.
            factory: as given.
            weight_updater: an instance, a class, a callable, or `None`.
            schemes: `weight_sync_schemes`, and what makes the scheme of the policy where there is nothing else.
            weight_recv_schemes: receivers by model.

        Raises:
            TypeError: updater and schemes, or something that is neither.
        """
        declared, default = schemes
        if weight_updater is not None and declared is not None:
            raise TypeError("weight_updater and weight_sync_schemes are both given; give one or the other")
        updater = made_updater(weight_updater, policy)
        sending = require_schemes("weight_sync_schemes", declared)
        if declared is None and updater is None and default is not None:
            sending = {POLICY: default()}
        receiving = require_schemes("weight_recv_schemes", weight_recv_schemes)
        return cls(policy, factory is not None, updater, sending, receiving, declared is not None)

    def require_source(self, automatic: Automatic) -> None:
        """Check that automatic updates have something to publish.

        Raises:
            ValueError: they have not.
        """
        if automatic.off or not self.built_there:
            return
        scheme = self.schemes.get(POLICY)
        supplied = scheme is not None and (not scheme.sends or scheme.source is not None)
        if self.updater.supplies if self.updater is not None else supplied or self.policy is not None:
            return
        raise ValueError(
            "automatic updates of weights have no source: a policy_factory builds the policies; give a policy, a "
            "weight_updater or a scheme with weights, or call update_policy_weights_(weights) yourself"
        )


def made_updater(given: Any, policy: Any) -> WeightUpdaterBase | None:
    """The updater: itself, or what a class or a callable makes.

    Raises:
        TypeError: it is none.
    """
    made = given
    if isinstance(given, type) and issubclass(given, WeightUpdaterBase):
        made = given.from_policy(policy)
        made = given() if made is None else made
    elif given is not None and not isinstance(given, WeightUpdaterBase) and callable(given):
        made = given()
    if made is not None and not isinstance(made, WeightUpdaterBase):
        raise TypeError(
            f"weight_updater is of type {type(made).__name__}; give an instance of a WeightUpdaterBase, a class of "
            "these, or a callable that makes one"
        )
    return made
