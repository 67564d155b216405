"""Reaching inside a collector: attribute paths and repeated calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swath.collect.collection import Collection
from swath.collect.making.acting import Acting
from swath.collect.paths import call_at, call_each, follow
from swath.collectors.outlet import WeightOutlet
from swath.collectors.receivers import Receivers
from swath.rollout.hosts.base import first_of
from swath.weights.names import POLICY


class Reaching:
    """Methods of a collector in this process that follow attribute paths. After shutdown all raise `Closed`."""

    _collection: Collection
    _acting: Acting
    _outlet: WeightOutlet
    _receivers: Receivers

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow names, dots and `[literal]` from this object and call what is found.

        Raises:
            AttributeError: a part is missing.
            ValueError: arguments for something that cannot be called.
        """
        self._collection.gate.require_open()
        return call_at(self, attr_path, args, kwargs)

    def get_distant_attr(self, path: str) -> Any:
        """The attribute at the end of a path."""
        return self._follow(self, path)

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method once per entry; once without arguments if there are no lists.

        Raises:
            ValueError: the lists are not of the same length.
        """
        return call_each(self._follow(self, method_name), list_of_args, list_of_kwargs)

    def getattr_env(self, name: str) -> Any:
        """An attribute of the env; of the first of several copies."""
        return self._follow(first_of(self._collection.worker.host.env), name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the policy."""
        return self._follow(self._acting.policy, name)

    def getattr_rb(self, name: str) -> Any:
        """An attribute of the replay buffer."""
        return self._follow(self._collection.buffer, name)

    def get_model(self, model_id: str) -> Any:
        """The model of an id.

        Raises:
            KeyError: no such model.
            AttributeError: a path that leads nowhere.
        """
        self._collection.gate.require_open()
        if model_id not in self._receivers:
            self._outlet.require_models(model_id)
        return self._acting.policy if model_id == POLICY else follow(self, model_id)

    def _follow(self, root: Any, path: str) -> Any:
        self._collection.gate.require_open()
        return follow(root, path)
