"""How weights come into a collector: the methods that all of them have."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from swath.collectors.background import Background
from swath.collectors.options import AnyOptions, Automatic
from swath.collectors.outlet import WeightOutlet
from swath.collectors.responding import weights_of
from swath.collectors.service import CollectorService
from swath.errors import warn
from swath.options import deadline
from swath.weights.schemes import OUTLETS, WeightSyncScheme, require_schemes
from swath.weights.snapshot import POLICY
from swath.weights.updaters import WeightUpdaterBase


class TakesWeights:
    """Methods that publish weights, from any thread, before, during and between draws. After shutdown: `Closed`."""

    collection: CollectorService
    _outlet: WeightOutlet
    _background: Background
    # What is done after shutdown, whatever that raises.
    _at_end: ExitStack
    _worker_idx: int | None

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
        policy_weights: Any = None,
    ) -> None:
        """Publish weights under the next version. Values are read before this returns, and it waits for no worker.

        With many workers, each takes them with its next request, between two fragments. With one in this process they
        are copied into the policy at once, or right after the running batch; there, within draws, the user's own
        module acts, so that without weights there is nothing to copy, and in the background a snapshot of it, which
        gets what the module has now. With a weight updater all this is the updater's business.

        Args:
            policy_or_weights: a module, a TensorDict, a dict of tensors, nested or as `state_dict()` gives, or
                `{worker: weights}`; `None` for the weights that the collector's own policy has now.
            weights: a TensorDict or dict.
            policy: a module.
            worker_ids: whom it is for: an int, a list of ints, a device, or a list of devices where policies run; not
                with one worker in this process.
            model_id: which model; `"policy"` by default.
            weights_dict: `{model_id: weights}`, all in one version.
            wait: return when every addressed worker that is up runs this version or a newer one.
            timeout_s: how long to wait, in seconds; `None` for `fragment_timeout_s`.
            policy_weights: the old name of the first argument.

        Raises:
            TypeError: not weights, or `worker_ids` where there is one worker.
            KeyError: names do not fit, or an unknown model.
            ValueError: shapes do not fit, two forms at once, or no such worker. In all cases nothing is published.
            RuntimeError: no weights, and nothing to fetch them from.
            WorkerLate: `wait`, and somebody does not run it in time; the weights are published all the same.
        """
        if policy_weights is not None:
            warn("policy_weights= is now policy_or_weights=", DeprecationWarning)
        forms = {"policy_or_weights": policy_or_weights, "policy_weights": policy_weights, "weights": weights}
        given = weights_of(model_id, {**forms, "policy": policy, "weights_dict": weights_dict})
        patience = deadline("timeout_s", timeout_s)
        self._require_ready()
        updater = self._outlet.updater
        if updater is None:
            self._outlet.require_models(*given)
            self._outlet.publish(given, worker_ids)
        else:
            if model_id is not None or weights_dict is not None:
                form, kind = "weights_dict" if model_id is None else "model_id", type(updater).__name__
                raise ValueError(f"{form} is given, but the weight updater {kind} serves the policy alone")
            self._outlet.addressed(worker_ids)
            with self._outlet.one_version():
                updater.push_weights(given[POLICY], worker_ids)
        if wait:
            self._outlet.wait(worker_ids, patience)

    def publish_weights(self, weights: Any, *, worker_ids: Any = None, model_id: str = POLICY) -> int:
        """Publish weights past any updater.

        Args:
            weights: as in `update_policy_weights_`.
            worker_ids: as there.
            model_id: which model.

        Returns:
            The version; within a push of an updater that which the push will be.
        """
        self._require_ready()
        self._outlet.require_models(model_id)
        return self._outlet.publish({model_id: weights}, worker_ids)

    def receive_weights(self, policy_or_weights: Any = None, *, weights: Any = None, policy: Any = None) -> None:
        """Bring weights into this collector.

        With registered receivers: the newest of each; if there is nothing newer nothing happens, and nobody waits.
        Without: those that are passed, past any updater; or as `update_policy_weights_()`, and nothing happens if there
        is no source.

        Args:
            policy_or_weights: a module, a TensorDict or a dict.
            weights: a TensorDict or dict.
            policy: a module.

        Raises:
            ValueError: two sources, or one beside registered receivers.
            RuntimeError: a sender cannot be reached.
        """
        self.collection.gate.require_open()
        given = weights_of(None, {"policy_or_weights": policy_or_weights, "weights": weights, "policy": policy})[POLICY]
        if self._outlet.receivers:
            if given is not None:
                raise ValueError("weights are given, but this collector takes its weights from registered receivers")
            self._outlet.receive()
        elif given is not None:
            self.publish_weights(given)
        elif self._outlet.updater is not None or self._outlet.has_source():
            self.update_policy_weights_()

    def register_scheme_receiver(
        self, weight_recv_schemes: Mapping[str, WeightSyncScheme], *, synchronize_weights: bool = True
    ) -> None:
        """Take weights from these schemes from now on: the newest of each at the start of every batch.

        Args:
            weight_recv_schemes: by model; one that was registered for the same model is shut down.
            synchronize_weights: take the newest now, too, if there is one.

        Raises:
            TypeError: not a dict of schemes.
            RuntimeError: a scheme is a sender in this process, or its sender cannot be reached.
        """
        self.collection.gate.require_open()
        schemes = require_schemes("weight_recv_schemes", weight_recv_schemes)
        self._outlet.receive_from(schemes, self, self._worker_idx)
        for scheme in schemes.values():
            self._at_end.callback(scheme.shutdown)
        if synchronize_weights:
            self._outlet.receive()

    @property
    def weight_updater(self) -> WeightUpdaterBase | None:
        """Delivers weights in its own way; an instance, a class or a callable can be assigned, `None` removes it."""
        updater: WeightUpdaterBase | None = self._outlet.updater
        return updater

    @weight_updater.setter
    def weight_updater(self, updater: Any) -> None:
        self.collection.gate.require_open()
        made = updater
        if isinstance(updater, type) and issubclass(updater, WeightUpdaterBase):
            made = updater.from_policy(self._outlet.policy) or updater()
        elif not isinstance(updater, WeightUpdaterBase) and callable(updater):
            made = updater()
        if isinstance(made, WeightUpdaterBase):
            made.register_collector(self)
        elif made is not None:
            wanted = "an instance of a WeightUpdaterBase, a class of these, or a callable that makes one"
            raise TypeError(f"weight_updater is of type {type(made).__name__}; give {wanted}")
        self._outlet.updater = made

    def init_updater(self, *args: Any, **kwargs: Any) -> None:
        """Call `init` of the weight updater; without one do nothing."""
        self.collection.gate.require_open()
        if self._outlet.updater is not None:
            self._outlet.updater.init(*args, **kwargs)

    def increment_version(self) -> int:
        """Publish the newest weights again under the next version, and return it."""
        return self._outlet.publish({})

    @property
    def policy_version(self) -> int:
        """The newest version that was published; 0 at construction."""
        return self.collection.version

    def get_policy_version(self) -> int:
        """The same as `policy_version`."""
        return self.collection.version

    def _begin_weights(self, options: AnyOptions) -> None:
        """Set up the updater, schemes that send and that receive, and what workers begin with.

        Raises:
            TypeError: something that is neither.
            ValueError: automatic updates have nothing to publish.
        """
        outlet = self._outlet = OUTLETS[self] = WeightOutlet(self.collection, options.policy)
        self.weight_updater = options.weight_updater
        for model_id, scheme in require_schemes("weight_sync_schemes", options.weight_sync_schemes).items():
            scheme.init_on_sender(model_id=model_id, context=self)
        if options.automatic != Automatic() and not outlet.has_source():
            raise ValueError(
                "automatic updates of weights have no source: give a policy, an updater, or a scheme's weights"
            )
        outlet.begin()
        if options.weight_recv_schemes is not None:
            self.register_scheme_receiver(options.weight_recv_schemes)

    def _require_ready(self) -> None:
        self._background.raise_kept()
        self.collection.gate.require_open()
