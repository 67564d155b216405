"""What a collection asks of whatever makes its fragments: one worker, or a whole collector.

    describe()       ─▶ Description
    collect(ask)     ─▶ fragment ─▶ Parcel(Head, arrays) | Broken
                              └────▶ written ─▶ Parcel(Head, None)
    other methods    between two fragments
    close()

Runs in the worker, in one thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from swath.collectors.delivery import ReplayWriter
from swath.collectors.messages import Broken, Description, FragmentRequest, Tally
from swath.collectors.options import Hooks
from swath.collectors.paths import call_at, follow, paired
from swath.collectors.worker_request import Seeding, WorkerRequest
from swath.errors import Closed, FleetFailed
from swath.group.group import Member
from swath.rollout.fragment import Layout
from swath.seeds import derive
from swath.weights.channel import Update
from swath.weights.manifest import Manifest, take
from swath.weights.snapshot import POLICY
from swath.workers.packing import Parcel

PUBLIC = (
    *("next", "update_policy_weights_", "receive_weights", "register_scheme_receiver", "cascade_execute", "map_fn"),
    *("get_distant_attr", "set_seed", "state_dict", "load_state_dict", "stats", "shutdown"),
)
"""What others may call on a worker by its handle."""

BEGINNING_ANEW = ("reset", "seed_with", "set_seed", "restore", "load_state_dict", "move_to")
"""Control calls after which episodes begin anew: what waits to be written is dropped then."""


class Responder(Member):
    """Answers a collection. What goes wrong over here is an answer, too.

    Weights may also be set past the collection, by the worker's handle. They act from the next fragment on, and stamp
    it with a negative version: no channel has given them a number.

    Args:
        request: what it is made of.
    """

    def __init__(self, request: WorkerRequest) -> None:
        self._built_by, self._here, self.hooks = request.built_by, request.here, request.hooks
        self._ends_with_env = request.options.on_env_error == "restart" and not request.here
        self._own_versions = self._writes_lost = 0
        self._writer: ReplayWriter | None = None

    @abstractmethod
    def describe(self) -> Description:
        """What its fragments and weights are like."""

    @abstractmethod
    def close(self) -> None:
        """Close the envs."""

    @abstractmethod
    def get_model(self, model_id: str) -> Any:
        """The model of an id: the policy, or what a path leads to.

        Raises:
            AttributeError: a path that leads nowhere.
        """

    @abstractmethod
    def seed_with(self, seeding: Seeding) -> None:
        """Seed everything and begin fresh episodes."""

    @abstractmethod
    def _make(self, ask: FragmentRequest) -> Parcel:
        """Make one fragment."""

    @abstractmethod
    def counted(self) -> Tally:
        """Counts of this life, but for what it has written."""

    def answer(self, update: Update | None, method: str, *args: Any) -> Any:
        """Take newer weights, and call a method; what waits to be written is dropped where episodes begin anew."""
        if self._writer is not None and method in BEGINNING_ANEW:
            self._writer.drop()
        return super().answer(update, method, *args)

    def collect(self, ask: FragmentRequest) -> Parcel | Broken:
        """Make one fragment, and write it if that is to be done from here."""
        before, parcel = self.counted().env_errors, None
        try:
            parcel = self._make(ask)
            if self._writer is not None:
                self._writer.write(parcel.head, parcel.body)
                parcel = Parcel(parcel.head, None)
        except Exception as error:  # noqa: BLE001  it is an answer, and is raised by who asked
            self._writes_lost += parcel is not None
            tally = self._tally()
            by_env = self._ends_with_env and tally.env_errors > before
            return Broken(error, tally, by_env or isinstance(error, FleetFailed | Closed))
        parcel.head.tally = self._tally()
        return parcel

    def _begin_writing(self, request: WorkerRequest, layout: Layout, hooks: Hooks) -> None:
        """Write fragments from here, if that is asked for."""
        if request.writing is not None:
            device, where = request.options.devices.storing, f"worker {request.worker} (life {request.life})"
            self._writer = ReplayWriter(request.writing, layout, hooks, device, where)

    def _tally(self) -> Tally:
        tally = self.counted()
        if self._writer is not None:
            counters = self._writer.counters
            tally.fragments_lost += self._writes_lost
            tally.frames_discarded += counters.frames_discarded
            tally.frames_written = counters.frames
        return tally

    def set_hooks(self, hooks: Hooks) -> None:
        """Set the functions that are called around fragments."""
        self.hooks = hooks
        if self._writer is not None:
            self._writer.delivery.hooks = hooks

    def shutdown(self) -> None:
        """Close the envs."""
        self.close()

    @property
    def _root(self) -> Any:
        """Where paths begin."""
        return self

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow a path from here and call what is found, or return it."""
        return call_at(self._root, attr_path, args, kwargs)

    def get_distant_attr(self, path: str) -> Any:
        """What a path from here leads to."""
        return follow(self._root, path)

    def map_fn(
        self,
        method_name: str,
        list_of_args: Sequence[Sequence[Any]] | None = None,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method once per entry; see the collector's `map_fn`."""
        rows = paired(list_of_args, list_of_kwargs, 1)
        return [call_at(self._root, method_name, args, kwargs) for args, kwargs in rows]

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed this worker alone; see the collector's `set_seed`."""
        self.seed_with(Seeding(seed, static_seed))
        return seed if static_seed else derive(seed, "next")

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
            weights: the same.
            policy: the same.
            policy_weights: the same.
            model_id: which model; `"policy"` by default.
            weights_dict: weights by model.

        Raises:
            ValueError: none or several are given, or `model_id` beside `weights_dict`.
            KeyError, ValueError, TypeError: they do not fit.
        """
        forms = {"policy_or_weights": policy_or_weights, "policy_weights": policy_weights, "weights": weights}
        by_model = weights_of(model_id, {**forms, "policy": policy, "weights_dict": weights_dict})
        if any(source is None for source in by_model.values()):
            raise ValueError("no weights are given to a worker, which has nowhere to fetch them; pass some")
        taken = {model_id: take(source, self.manifest_of(model_id)) for model_id, source in by_model.items()}
        self.take({model_id: one for model_id, one in taken.items() if one is not None}, -self._own_versions - 1)
        self._own_versions += 1

    def receive_weights(self, policy_or_weights: Any = None, **forms: Any) -> None:
        """Set weights; without any nothing happens: the collector's come with its requests.

        Raises:
            ValueError: several are given.
        """
        if policy_or_weights is not None or any(one is not None for one in forms.values()):
            self.update_policy_weights_(policy_or_weights, **forms)

    def register_scheme_receiver(
        self,
        weight_recv_schemes: Mapping[str, Any],
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
            if scheme.sends and (scheme.read_from is None or scheme.read_from[0] != self._built_by):
                raise RuntimeError(
                    f"the scheme for {model_id!r} is none of the collector that built this worker; pass weights to "
                    "update_policy_weights_() of its handle, or of that collector"
                )


def weights_of(model_id: str | None, forms: Mapping[str, Any]) -> Mapping[str, Any]:
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
