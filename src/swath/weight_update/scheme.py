"""What all weight sync schemes have in common: one model's weights, from a sender to its readers.

    sender ─┬─ with a collector: its channel ─▶ its workers
            └─ without one, or when it was pickled: a channel of its own ─▶ readers: pickled copies of the scheme

A scheme chooses names, and nothing of how weights travel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, ClassVar

from swath.weight_update.alone import Alone, readers
from swath.weight_update.facts import SchemeFacts
from swath.weight_update.local_channel import LocalChannel
from swath.weight_update.mail import EVERYONE, Address, OwnChannel, Post
from swath.weight_update.outlet import Outlet, outlet_of
from swath.weight_update.sides import Receiving, Sending, Source, weakly
from swath.weight_update.strategy import Form, WeightStrategy
from swath.weights.names import POLICY, by_worker
from swath.weights.snapshot import Snapshot
from swath.words import kind_of

NO_WEIGHTS = "no weights of {model_id!r} to send: pass weights, or initialise the scheme with a model or weights"


class WeightSyncScheme(SchemeFacts):
    """Serves one model with weights. Its methods may be called from any thread, of a receiver from one at a time.

    Args:
        strategy: `"tensordict"` or `"state_dict"`: the form in which receivers get weights; the snapshot is the same.

    Raises:
        ValueError: another strategy.
    """

    sends: ClassVar[bool] = True
    """Whether updates of the model publish anything."""

    sync: bool = False
    """Whether `send` waits for the workers."""

    _open_at_once: ClassVar[bool] = True
    """Whether the channel of its own is there before it is needed, for processes that are forked from this one."""

    def __init__(self, strategy: Form = "tensordict") -> None:
        self._strategy = WeightStrategy(strategy)
        self._sending: Sending | None = None
        self._receiving: Receiving | None = None
        self._address: Address | None = None

    @classmethod
    def from_backend(cls, name: str, **keywords: Any) -> WeightSyncScheme:
        """The scheme for a place where workers live.

        Args:
            name: `"none"` or `"direct"`, `"shared"` or `"thread"`, `"process"` or `"multiprocessing"`, `"ray"`.
            **keywords: of the scheme's class.

        Raises:
            ValueError: another name.
        """
        kinds: Mapping[str, type[WeightSyncScheme]] = import_module("swath.weight_update.kinds").BACKENDS
        if name not in kinds:
            raise ValueError(f"backend={name!r} must be one of {', '.join(map(repr, kinds))}")
        return kinds[name](**keywords)

    def init_on_sender(
        self,
        *,
        model_id: str | None = None,
        context: Any = None,
        model: Any = None,
        weights: Any = None,
        params_map: Mapping[int, Any] | None = None,
        devices: Sequence[Any] | None = None,
        device_map_fn: Callable[[int, Any], Any] | None = None,
        num_workers: int | None = None,
        remote_collectors: Sequence[Any] | None = None,
    ) -> None:
        """Make this side the source of weights. Again adds to what is known: a collector adopts a scheme in this way.

        Args:
            model_id: of the model; `"policy"` by default.
            context: a collector, on whose channel the weights go to its workers; a weak reference is kept.
            model: the module whose weights are sent when none are passed; a weak reference is kept.
            weights: what is sent then instead.
            params_map: weights by worker, which are sent then instead.
            devices: of the workers; snapshots travel by the CPU, so that only their number counts.
            device_map_fn: makes a worker's weights of its index and the weights for all.
            num_workers: how many workers `device_map_fn` is called for.
            remote_collectors: handles of Ray actors that get the weights directly.

        Raises:
            RuntimeError: this is a reader, or serves another collector.
            TypeError: `context` is no collector.
            ValueError: two sources, another model than before, or no number of workers for `device_map_fn`.
        """
        if self._receiving is not None or self._address is not None:
            raise RuntimeError("this scheme is a reader (pickled copies of a sender are), it cannot be a sender, too")
        outlet = None if context is None else _required(context)
        known = num_workers or len(devices or ()) or len(() if outlet is None else outlet.workers)
        if device_map_fn is not None and not known:
            raise ValueError("device_map_fn is called for each worker: say with num_workers= how many there are")
        source = Source(weakly(model), weights, params_map, device_map_fn, known)
        alone = Alone(self._own_channel, tuple(remote_collectors or ()))
        asked = Sending(model_id or self.model_id or POLICY, source, alone, weakly(context))
        sending = asked if self._sending is None else self._sending.joined(asked)
        if outlet is not None:
            outlet.attach(sending.model_id, self)
        elif self.sends and self._open_at_once:
            sending.alone.open(dict)
        self._sending = sending

    def init_on_receiver(
        self, *, model_id: str, context: Any = None, model: Any = None, worker_idx: int | None = None
    ) -> None:
        """Make this side a reader.

        Args:
            model_id: of the model; where none is given, the path from `context` to it.
            context: a collector, into which the weights go, or what holds the model; a weak reference is kept.
            model: the module that gets the weights; a weak reference is kept.
            worker_idx: of this reader, for weights that are not the same for all.

        Raises:
            RuntimeError: it is a sender in this process.
        """
        if self.initialized_on_sender:
            raise RuntimeError(
                "this scheme is a sender in this process; receive with a pickled copy of it, here or elsewhere"
            )
        self._receiving = Receiving(
            model_id, weakly(context), weakly(model), EVERYONE if worker_idx is None else worker_idx
        )

    def connect(self, *, worker_idx: int | None = None, weights: Any = None) -> None:
        """Bring a receiver to the newest weights there are; let a sender publish its weights. Nothing the second time.

        Args:
            worker_idx: of this reader.
            weights: what the sender publishes, if not its model or weights.

        Raises:
            RuntimeError: it is neither a sender nor a receiver.
            ValueError: an argument of the other side.
        """
        side = self._sending if self.initialized_on_sender else self._receiving
        if side is None:
            raise RuntimeError("connect() comes after init_on_sender() or init_on_receiver()")
        stranger = worker_idx if isinstance(side, Sending) else weights
        if stranger is not None:
            raise ValueError("worker_idx is for receivers, weights are for senders; leave the other one out")
        if side.synchronized:
            return
        if isinstance(side, Receiving):
            side.worker = side.worker if worker_idx is None else worker_idx
            self.receive()
        elif weights is not None or not side.source.empty:
            self.send(weights)
        side.synchronized = True

    def send(self, weights: Any = None, worker_ids: Any = None) -> None:
        """Publish weights; values are read before this returns.

        With `sync`, and a collector, wait until its workers run them, at most the collector's `fragment_timeout_s`.

        Args:
            weights: as in `update_policy_weights_`, also `{worker: weights}`; `None` for the scheme's model or weights,
                or those of the collector's policy.
            worker_ids: whom they are for; by default for all.

        Raises:
            RuntimeError: it is no sender, or there are no weights.
            Closed: its collector was shut down.
            WorkerLate: a worker does not run them in time; they are published all the same.
            TypeError, KeyError, ValueError: they do not fit; nothing is published.
        """
        sending = self._require_sender()
        if not self.sends:
            return
        own = by_worker(weights)
        if own is not None and worker_ids is not None:
            raise ValueError(f"worker_ids and weights by worker {sorted(own)} are both given; give one of them")
        given, outlet = sending.source.shared_out(weights), sending.outlet()
        if outlet is None:
            sending.alone.send(self._by_reader(given, worker_ids), sending.source.model())
            return
        outlet.publish({sending.model_id: given}, worker_ids)
        if self.sync:
            outlet.wait(worker_ids if own is None else list(own), None)

    def receive(self, timeout: float | None = None) -> Any:
        """Apply the newest weights that were not seen yet, and return them.

        Args:
            timeout: how long to wait for them, in seconds; `None` does not wait.

        Returns:
            A TensorDict or a `state_dict`, as the strategy says; `None` if there is nothing newer.

        Raises:
            RuntimeError: it is no receiver, or the sender cannot be reached.
            KeyError, ValueError: the weights do not fit; they are not tried again.
        """
        if self._receiving is None:
            raise RuntimeError("receive() comes after init_on_receiver()")
        if not self.sends:
            return None
        letter = self._receiving.newest(self._address_here(), timeout or 0.0)
        if letter is None:
            return None
        weights = self._strategy.copied(letter.snapshot)
        self.apply_weights(weights)
        return weights

    def apply_weights(self, weights: Any, inplace: bool = True) -> None:
        """Put received weights into the model, or into the collector and its workers. May be overridden.

        Raises:
            RuntimeError: it is no receiver, or there is no model.
            KeyError, ValueError: they do not fit.
        """
        receiving = self._receiving
        if receiving is None:
            raise RuntimeError("apply_weights() comes after init_on_receiver()")
        outlet = outlet_of(receiving.context())
        if outlet is not None and receiving.model() is None:
            outlet.publish({receiving.model_id: weights})
        else:
            self._strategy.apply_weights(receiving.target(), weights, inplace)

    def prepare_weights(
        self,
        weights: Any,
        model_id: str,  # noqa: ARG002  for those who override it
        strategy: WeightStrategy,  # noqa: ARG002
        context: Any = None,  # noqa: ARG002
    ) -> Any:
        """Map weights before the snapshot is taken. May be overridden; here they stay as they are."""
        return weights

    def create_transport(self, **keywords: Any) -> Any:
        """Not here.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("there are no transports to choose: all schemes put weights on one channel")

    @property
    def is_read(self) -> bool:
        """Whether others read its own channel, so that a collector must tell it what it publishes."""
        return self._sending is not None and self._sending.alone.is_read

    def source(self) -> Any:
        """The model or weights that a collector fetches where none are given; `None` if it has none."""
        return None if self._sending is None else self._sending.source.shared_out(None)

    def prepared(self, weights: Any) -> Any:
        """Weights as a collector is to publish them."""
        return self.prepare_weights(weights, self.model_id or POLICY, self._strategy, self.context)

    def published(self, post: Post) -> None:
        """A collector has published these; readers of its own channel get them, too."""
        if self._sending is not None:
            self._sending.alone.publish(post)

    def ended(self) -> None:
        """Its collector was shut down: its own channel ends, too, and `send` raises `Closed`."""
        if self._sending is not None:
            self._sending.alone.close()

    def sent_to(self, worker: int) -> Snapshot | None:
        """What was sent to a worker before a collector came; `None` if nothing was."""
        return None if self._sending is None else self._sending.alone.newest(worker)

    def shutdown(self) -> None:
        """Forget both sides; a sender's own channel ends. Twice is fine."""
        sending, receiving = self._sending, self._receiving
        self._sending = self._receiving = self._address = None
        if sending is not None and sending.here:
            sending.alone.close()
        if receiving is not None:
            receiving.close()

    def __getstate__(self) -> dict[str, Any]:
        """All but the sides. A copy of a sender is a reader of its own channel, which begins now if need be."""
        sending = self._sending
        if self.sends and sending is not None and sending.here:
            sending.alone.open(lambda: _newest(sending))
        return {**self.__dict__, "_sending": None, "_receiving": None, "_address": self._address_here()}

    @staticmethod
    def _own_channel() -> OwnChannel:
        return LocalChannel()

    def _address_here(self) -> Address | None:
        """Of the channel that copies of this scheme read."""
        return self._address if self._sending is None else self._sending.alone.address

    def _require_sender(self) -> Sending:
        if self._sending is None or not self._sending.here:
            raise RuntimeError("send() comes after init_on_sender()")
        return self._sending

    def _by_reader(self, given: Any, worker_ids: Any) -> dict[int, Any]:
        """Prepared weights by reader.

        Raises:
            RuntimeError: there are none.
            ValueError: there are none for a reader.
        """
        each = by_worker(given)
        if each is not None:
            meant = each if worker_ids is None else readers(worker_ids)
            if strangers := sorted(set(meant) - set(each)):
                raise ValueError(f"worker_ids={strangers}: there are weights for {sorted(each)} only")
            return {worker: self.prepared(each[worker]) for worker in meant}
        whole = self.prepared(given)
        if whole is None:
            raise RuntimeError(NO_WEIGHTS.format(model_id=self.model_id))
        return dict.fromkeys(readers(worker_ids), whole)


def _newest(sending: Sending) -> Post:
    outlet = sending.outlet()
    return {} if outlet is None else outlet.newest(sending.model_id)


def _required(context: Any) -> Outlet:
    outlet = outlet_of(context)
    if outlet is None:
        raise TypeError(f"context is {kind_of(context)}; it must be a collector: pass model= or weights= without one")
    return outlet
