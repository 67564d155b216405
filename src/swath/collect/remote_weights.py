"""How weights reach a worker past its collection: by its handle, or by schemes that it reads itself.

They act from the next fragment on, and stamp it with a negative version: no channel has given them a number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

from swath.weights.manifest import Manifest
from swath.weights.names import POLICY
from swath.weights.snapshot import Snapshot, take


class Received(Protocol):
    """A receiving scheme, as a worker needs it."""

    def init_on_receiver(self, *, model_id: str, context: Any, model: Any, worker_idx: int | None) -> None:
        """Make it a reader for a model here."""

    def receive(self) -> Any:
        """Apply what is newer than what it has seen; `None` if there is nothing."""

    def shutdown(self) -> None:
        """Forget it."""


class RemoteWeights(ABC):
    """What a worker's handle offers for weights. Runs between two fragments."""

    def __init__(self) -> None:
        super().__init__()
        self._own_versions = 0
        self._schemes: dict[str, Received] = {}

    @property
    @abstractmethod
    def worker_idx(self) -> int:
        """Index of this worker."""

    @abstractmethod
    def get_model(self, model_id: str) -> Any:
        """The model of an id: the policy, or what a path leads to.

        Raises:
            AttributeError: a path that leads nowhere.
        """

    @abstractmethod
    def _bring(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""

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
        given = [one for one in (policy_or_weights, weights, policy, policy_weights, weights_dict) if one is not None]
        if len(given) != 1:
            raise ValueError(f"{len(given)} sources of weights are given; pass one")
        if weights_dict is not None and model_id is not None:
            raise ValueError("weights_dict and model_id are both given; the dict names the models")
        by_model = {model_id or POLICY: given[0]} if weights_dict is None else weights_dict
        self._set({one: _plain(source) for one, source in by_model.items()})

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Set weights; without any take the newest of each registered scheme, if there is something newer.

        Raises:
            ValueError: several are given, or some beside registered schemes.
        """
        given = any(one is not None for one in (policy_or_weights, weights, policy))
        if self._schemes and given:
            raise ValueError("weights are given, but this worker takes its weights from registered receivers")
        if given:
            self.update_policy_weights_(policy_or_weights, weights=weights, policy=policy)
        else:
            self._receive()

    def register_scheme_receiver(
        self, weight_recv_schemes: Mapping[str, Received], *, synchronize_weights: bool = True
    ) -> None:
        """Take the newest weights of these schemes at the start of every fragment from now on.

        Args:
            weight_recv_schemes: by model; one that was registered for the same model is shut down.
            synchronize_weights: take the newest now, too, if there is one.
        """
        for model_id, scheme in weight_recv_schemes.items():
            scheme.init_on_receiver(
                model_id=model_id,
                context=self,
                model=self._receiving(model_id),
                worker_idx=self.worker_idx,
            )
            old = self._schemes.pop(model_id, None)
            if old is not None and old is not scheme:
                old.shutdown()
            self._schemes[model_id] = scheme
        if synchronize_weights:
            self._receive()

    def _receiving(self, model_id: str) -> Any:
        """What a scheme puts weights into."""
        return self.get_model(model_id)

    def _receive(self) -> None:
        """Take what is newer; what came before one that raises is in the models, and is another version."""
        news = False
        try:
            for scheme in self._schemes.values():
                news |= scheme.receive() is not None
        finally:
            if news:
                self._set({})

    def _set(self, by_model: Mapping[str, Any]) -> None:
        taken = {model_id: take(source, self.manifest_of(model_id)) for model_id, source in by_model.items()}
        self._bring({model_id: one for model_id, one in taken.items() if one is not None}, -self._own_versions - 1)
        self._own_versions += 1


def _plain(source: Any) -> Any:
    return source.weights() if isinstance(source, Snapshot) else source
