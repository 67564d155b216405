"""How weights get from the user to many workers: the forms of weights, whom they are for, and the channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from swath.collect.background import Background
from swath.collectors.fleet_assembly import Assembled
from swath.collectors.weight_arguments import POLICY, WeightArguments, renamed
from swath.options import deadline
from swath.weights.manifest import Manifest
from swath.weights.snapshot import Snapshot, take


@dataclass
class Publisher:
    """Takes snapshots, checked here against what the workers' models need, and publishes them.

    Attributes:
        assembled: the collection and its workers.
        policy: the user's own policy, whose weights are fetched where none are given; `None` with a factory.
        models: manifests of the models that can be updated, by id; `None` until it is asked for.
    """

    assembled: Assembled
    policy: Any
    models: dict[str, Manifest | None] = field(default_factory=lambda: {POLICY: None})

    def publish(self, given: Mapping[str, Any], workers: Sequence[int] | None) -> int:
        """One version with these weights, by model; of the user's own policy where they are `None`."""
        snapshots = {model_id: self.taken(model_id, source) for model_id, source in given.items()}
        return self.assembled.collection.desk.channel.publish(snapshots, workers)

    def publish_each(self, given: Mapping[int, Any], model_id: str) -> int:
        """One version with weights of their own for some workers."""
        unknown = sorted(set(given) - set(self.assembled.described))
        if unknown:
            raise ValueError(f"weights are for workers {unknown}; workers are {sorted(self.assembled.described)}")
        snapshots = {worker: {model_id: self.taken(model_id, source)} for worker, source in given.items()}
        return self.assembled.collection.desk.channel.publish_each(snapshots)

    def taken(self, model_id: str, source: Any) -> Snapshot | None:
        """A snapshot for a model.

        Raises:
            KeyError: no such model, or names that do not fit.
            RuntimeError: no weights, and nothing to fetch them from.
            TypeError, ValueError: the weights do not fit.
        """
        if model_id not in self.models:
            raise KeyError(f"no model {model_id!r}; known are {sorted(self.models)}")
        manifest = self.manifest(model_id)
        if source is None and not manifest.empty:
            source = self.fetched(model_id)
        return None if source is None else take(source, manifest)

    def fetched(self, model_id: str) -> Any:
        """The weights of the user's own policy.

        Raises:
            RuntimeError: there is none.
        """
        if model_id != POLICY or self.policy is None:
            raise RuntimeError(f"no weights of {model_id!r} to publish: pass weights, or give the collector a policy")
        return self.policy

    def manifest(self, model_id: str) -> Manifest:
        """What the weights of a model must look like, as the first worker that answers says."""
        known = self.models[model_id]
        if known is None:
            first = next(iter(self.assembled.described.values()))
            known = first.manifest if model_id == POLICY else self._asked(model_id)
            self.models[model_id] = known
        return known

    def _asked(self, model_id: str) -> Manifest:
        answers = self.assembled.collection.control(
            "manifest_of", (model_id,), workers=sorted(self.assembled.fleet.up)[:1]
        )
        manifest: Manifest = next(iter(answers.values()))
        return manifest


class FleetTakesWeights:
    """Methods that publish weights, from any thread, before, during and between draws. After shutdown: `Closed`."""

    _assembled: Assembled
    _background: Background
    _publisher: Publisher
    _policy_devices: Sequence[torch.device | None]

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        *,
        weights: Any = None,
        policy: Any = None,
        worker_ids: Any = None,
        model_id: str | None = None,
        weights_dict: Mapping[str, Any] | None = None,
        wait: bool = False,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> None:
        """Publish weights under the next version; workers take them with the next request, between two fragments.

        Values are read before this returns, and it waits for no worker.

        Args:
            policy_or_weights: a module, a TensorDict, a dict of tensors, nested or as `state_dict()` gives, or
                `{worker: weights}`; `None` for the weights that the collector's own policy has now.
            weights: a TensorDict or dict.
            policy: a module.
            worker_ids: whom it is for: an int, a list of ints, a device, or a list of devices where policies run.
            model_id: which model; `"policy"` by default.
            weights_dict: `{model_id: weights}`, all in one version.
            wait: return when every addressed worker that is up runs this version or a newer one.
            timeout_s: how long to wait, in seconds; `None` for `fragment_timeout_s`.
            **kwargs: `policy_weights`, the old name of the first argument.

        Raises:
            TypeError: not weights.
            KeyError: names do not fit, or an unknown model.
            ValueError: shapes do not fit, two forms at once, or no such worker. In all cases nothing is published.
            RuntimeError: no weights, and a factory built the policy.
            WorkerLate: `wait`, and somebody does not run it in time; the weights are published all the same.
        """
        old_name = renamed(kwargs)
        if old_name is not None and policy_or_weights is not None:
            raise ValueError("policy_weights and policy_or_weights are both given; give one of them")
        first = policy_or_weights if old_name is None else old_name
        patience = deadline("timeout_s", timeout_s)
        workers = self._addressed(worker_ids)
        self._publish(WeightArguments(first, weights, policy, model_id, weights_dict), workers)
        if wait:
            collection = self._assembled.collection
            collection.answers(collection.send("touch", (), {}, workers), patience)

    def publish_weights(self, weights: Any, *, worker_ids: Any = None, model_id: str = POLICY) -> int:
        """Publish weights past any updater; returns the version."""
        return self._publish(WeightArguments(weights, model_id=model_id), self._addressed(worker_ids))

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Publish weights to all workers, as `update_policy_weights_`; without any source do nothing."""
        given = WeightArguments(policy_or_weights, weights, policy)
        self._assembled.collection.gate.require_open()
        if given.empty and self._publisher.policy is None:
            return
        self._publish(given, None)

    def increment_version(self) -> int:
        """Publish the newest weights again under the next version, and return it."""
        self._assembled.collection.gate.require_open()
        return self._assembled.collection.desk.channel.publish({})

    @property
    def policy_version(self) -> int:
        """The newest version that was published; 0 at construction."""
        return self._assembled.collection.version

    def get_policy_version(self) -> int:
        """The same as `policy_version`."""
        return self._assembled.collection.version

    def _publish(self, given: WeightArguments, workers: Sequence[int] | None) -> int:
        self._background.raise_kept()
        self._assembled.collection.gate.require_open()
        each = given.per_worker()
        if each is None:
            return self._publisher.publish(given.by_model(), workers)
        if workers is not None:
            raise ValueError(f"worker_ids and weights by worker {sorted(each)} are both given; give one of them")
        return self._publisher.publish_each(each, given.model_id or POLICY)

    def _addressed(self, worker_ids: Any) -> list[int] | None:
        """Workers by index or by the device of their policies; `None` for all."""
        if worker_ids is None:
            return None
        wanted = worker_ids if isinstance(worker_ids, list | tuple) else [worker_ids]
        return sorted({worker for one in wanted for worker in self._named(one)})

    def _named(self, who: Any) -> list[int]:
        known = sorted(self._assembled.described)
        if isinstance(who, int) and not isinstance(who, bool):
            if who in known:
                return [who]
            raise ValueError(f"worker_ids={who}: there is no such worker; workers are {known}")
        device = torch.device(who)
        places = {worker: self._assembled.described[worker].policy_device for worker in known}
        found = [worker for worker, place in places.items() if (place or torch.device("cpu")) == device]
        if not found:
            raise ValueError(f"worker_ids={who!r}: no policy runs there; workers and devices are {places}")
        return found
