"""Weights on their way to the workers of an evaluator: checked as a whole, kept for workers that come later.

snapshots by model id ──▶ declared? ──▶ fit what a worker says of its models? ──▶ channel ──▶ each worker, when it plays
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from swath.weights.channel import Channel
from swath.weights.manifest import Manifest, take
from swath.weights.snapshot import POLICY, Snapshot
from swath.workers.base import Shared

Ask: TypeAlias = Callable[..., Any]
"""Calls a method of any worker, by name; its answer."""


class Sending:
    """What an evaluator's workers were sent. Used by one thread.

    Args:
        declared: model ids whose weights may be sent; `None` for all there are.
    """

    def __init__(self, declared: frozenset[str] | None) -> None:
        self._declared = declared
        self._manifests: dict[str, Manifest] = {}
        self._held: dict[str, Snapshot] = {}
        self._channel: Channel | None = None

    @property
    def channel(self) -> Channel:
        """Whence workers get them."""
        assert self._channel is not None, "engage first"
        return self._channel

    def engage(self, share: Callable[[Any], Shared]) -> None:
        """Other workers are there, which get what those before them had.

        Args:
            share: puts a value where they can read it.
        """
        self._channel = Channel(share)
        if self._held:
            self._channel.publish(self._held)

    def send(self, models: Mapping[str, Snapshot], ask: Ask) -> None:
        """Check all, then publish all.

        Raises:
            KeyError, ValueError, TypeError: they do not fit; nothing was published.
        """
        self._require_declared(models)
        self._learn(models, ask)
        fitted = {model_id: self._fitted(model_id, weights) for model_id, weights in models.items()}
        extras = {model_id: each.extras for model_id, each in fitted.items() if each.extras and model_id != POLICY}
        if extras:
            ask("check", extras)
        if fitted:
            self._held.update(fitted)
            self.channel.publish(fitted)

    def state(self, ask: Ask) -> dict[str, dict[str, Any]]:
        """The state of the policy, and of other models that were sent weights, by model id."""
        self._learn([POLICY], ask)
        sent = {model_id: self._named(model_id, weights) for model_id, weights in self._held.items()}
        return sent if POLICY in sent else {POLICY: ask("weights", POLICY), **sent}

    def _require_declared(self, model_ids: Iterable[str]) -> None:
        unknown = [] if self._declared is None else sorted(set(model_ids) - self._declared)
        if unknown:
            raise KeyError(f"weights for {unknown}, but weight_sync_schemes declare {sorted(self._declared or ())}")

    def _learn(self, model_ids: Iterable[str], ask: Ask) -> None:
        unknown = [model_id for model_id in model_ids if model_id not in self._manifests]
        if unknown:
            self._manifests.update(ask("manifests", unknown))

    def _fitted(self, model_id: str, weights: Snapshot) -> Snapshot:
        fitting = take(weights, self._manifests[model_id])
        if fitting is None:
            raise TypeError(f"weights were sent for {model_id!r}, which has none; leave them out")
        return fitting

    def _named(self, model_id: str, weights: Snapshot) -> dict[str, Any]:
        """Weights under all names that the model has for them."""
        held, aliases = weights.weights(), self._manifests[model_id].aliases
        return {**held, **{name: held[first] for name, first in aliases.items() if first in held}}
