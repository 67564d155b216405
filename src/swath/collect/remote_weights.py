"""How weights reach a worker past its collection: by its handle.

They act from the next fragment on, and stamp it with a negative version: no channel has given them a number.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from swath.group.member import Member
from swath.weights.manifest import Manifest
from swath.weights.names import POLICY
from swath.weights.snapshot import Snapshot, take


class Copied(Protocol):
    """A scheme, as a worker needs it."""

    @property
    def sends(self) -> bool:
        """Whether updates of its model publish anything."""

    @property
    def origin(self) -> tuple[str, str] | None:
        """Key of the collector that publishes what it reads, and the model."""


class RemoteWeights(Member):
    """What a worker's handle offers for weights. Runs between two fragments."""

    _built_by: str
    _own_versions = 0

    @abstractmethod
    def get_model(self, model_id: str) -> Any:
        """The model of an id: the policy, or what a path leads to.

        Raises:
            AttributeError: a path that leads nowhere.
        """

    def manifest_of(self, model_id: str) -> Manifest:
        """What the weights of a model must look like.

        Raises:
            AttributeError: a path that leads nowhere.
        """
        return Manifest.of(self.get_model(model_id))

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        *,
        weights: Any = None,
        policy: Any = None,
        policy_weights: Any = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
    ) -> None:
        """Set weights on this worker, all or nothing.

        Args:
            policy_or_weights: a module, a TensorDict or a dict.
            weights: a TensorDict or dict.
            policy: a module.
            policy_weights: the old name of the first argument.
            model_id: which model; `"policy"` by default.
            weights_dict: weights by model.

        Raises:
            ValueError: none or several are given, or `model_id` beside `weights_dict`.
            KeyError, ValueError, TypeError: they do not fit.
        """
        by_model = sources_of(
            model_id,
            {
                "policy_or_weights": policy_or_weights,
                "weights": weights,
                "policy": policy,
                "policy_weights": policy_weights,
                "weights_dict": weights_dict,
            },
        )
        if any(source is None for source in by_model.values()):
            raise ValueError("no weights are given to a worker, which has nowhere to fetch them; pass some")
        self._set({one: _plain(source) for one, source in by_model.items()})

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Set weights; without any nothing happens: the collector's come with its requests.

        Raises:
            ValueError: several are given.
        """
        if any(one is not None for one in (policy_or_weights, weights, policy)):
            self.update_policy_weights_(policy_or_weights, weights=weights, policy=policy)

    def register_scheme_receiver(
        self,
        weight_recv_schemes: Mapping[str, Copied],
        *,
        synchronize_weights: bool = True,  # noqa: ARG002  the next request brings the newest in any case
    ) -> None:
        """Take the weights of the collector that built this worker. They come with its requests, also without this.

        Args:
            weight_recv_schemes: by model; copies of that collector's schemes.
            synchronize_weights: both values hold.

        Raises:
            RuntimeError: a copy of another collector's scheme.
        """
        for model_id, scheme in weight_recv_schemes.items():
            if scheme.sends and (scheme.origin is None or scheme.origin[0] != self._built_by):
                raise RuntimeError(
                    f"the scheme for {model_id!r} is none of the collector that built this worker; pass weights to "
                    "update_policy_weights_() of its handle, or of that collector"
                )

    def _set(self, by_model: Mapping[str, Any]) -> None:
        taken = {model_id: take(source, self.manifest_of(model_id)) for model_id, source in by_model.items()}
        self.take({model_id: one for model_id, one in taken.items() if one is not None}, -self._own_versions - 1)
        self._own_versions += 1


def sources_of(model_id: str | None, forms: Mapping[str, Any]) -> Mapping[str, Any]:
    """The weights that were given in one of several forms, by model; `None` for those that are to be fetched.

    Args:
        model_id: which model; `"policy"` by default.
        forms: arguments by name; that of `weights_dict` names the models itself.

    Raises:
        TypeError: `weights_dict` is no dict.
        ValueError: two were given; the message names both.
    """
    given = {name: value for name, value in forms.items() if value is not None}
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} are both given; give one of them")
    models = given.get("weights_dict")
    if models is None:
        return {POLICY if model_id is None else model_id: next(iter(given.values()), None)}
    if not isinstance(models, Mapping):
        raise TypeError(f"weights_dict is {type(models).__name__}; it must be a dict of weights by model")
    if model_id is not None:
        raise ValueError("weights_dict and model_id are both given; the dict names the models")
    return models


def _plain(source: Any) -> Any:
    return source.weights() if isinstance(source, Snapshot) else source
