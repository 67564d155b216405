"""Base of the classes that answer a collector in its workers: `Worker`, and `RemoteCollector` on Ray.

    describe()        ─▶ Description
    collect(request)  ─▶ hook ─▶ fragment ─▶ hook ─▶ Parcel(Head, arrays) | Error
                                                └──▶ written to a replay buffer ─▶ Parcel(Head, None)
    other methods     between two fragments
    close()

Runs in the worker, in one thread. Attribute paths, `"policy.layers[0].weight"`, are parsed, never evaluated.
"""

from __future__ import annotations

import ast
import re
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from swath.collectors.delivery import ReplayWriter
from swath.collectors.messages import FragmentRequest, Head, Seeding, Tally, WorkerRequest
from swath.collectors.options import Hooks
from swath.errors import Closed, FleetFailed
from swath.group.group import Member
from swath.rollout.buffer import Layout
from swath.rollout.episodes.statistics import worker_and_life
from swath.seeds import derive
from swath.weights.snapshot import Manifest
from swath.workers.outcome import Error
from swath.workers.packing import Parcel

# Python 3.11 counts the depth of `ast.parse` once for all threads: two at once can end in a SystemError.
_PARSE_LOCK = threading.Lock()

# The positional and the keyword arguments of several calls of a method.
ArgLists: TypeAlias = Sequence[Sequence[Any]] | None
KwargLists: TypeAlias = Sequence[Mapping[str, Any]] | None

_PART = r"\.?([A-Za-z_]\w*)|\[([^\]]+)\]"
_PATH = rf"(?!\.)(?:{_PART})+"


def follow(root: Any, path: str) -> Any:
    """Return the object at the end of a path from `root`.

    Raises:
        AttributeError: a part is missing; the message names it.
        ValueError: the text is not a path.
    """
    if re.fullmatch(_PATH, path) is None:
        raise ValueError(f"{path!r} is no path: write names, dots and [literal], as in 'policy.layers[0].weight'")
    value = root
    parts = [(name, None) if name else (None, _parse_literal(item, path)) for name, item in re.findall(_PART, path)]
    for name, item in parts:
        try:
            value = getattr(value, name) if name else value[item]
        except (AttributeError, LookupError, TypeError) as error:
            items = f", whose items are [0] to [{len(value) - 1}]" if isinstance(value, list | tuple) else ""
            part, kind = item if name is None else repr(name), type(value).__name__
            raise AttributeError(f"{part} of the path {path!r} is missing on {kind}{items}") from error
    return value


def call_at(root: Any, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call the object at the end of a path; return the object if it cannot be called.

    Raises:
        AttributeError: a part is missing.
        ValueError: arguments for something that cannot be called.
    """
    target = follow(root, path)
    if callable(target):
        return target(*args, **kwargs)
    if args or kwargs:
        raise ValueError(f"{path!r} is of type {type(target).__name__}, which takes no arguments")
    return target


def pair(list_of_args: ArgLists, list_of_kwargs: KwargLists, n: int) -> list[tuple[Sequence[Any], Mapping[str, Any]]]:
    """Return the arguments of each call; of `n` calls without arguments if there are no lists.

    Raises:
        ValueError: the lists are not of the same length.
    """
    lengths = [len(entries) for entries in (list_of_args, list_of_kwargs) if entries is not None] or [n]
    if lengths[0] != lengths[-1]:
        raise ValueError(
            f"list_of_args has {lengths[0]} entries, list_of_kwargs {lengths[-1]}; give both the same length"
        )
    return list(zip(list_of_args or [()] * lengths[0], list_of_kwargs or [{}] * lengths[0], strict=True))


def _parse_literal(text: str, path: str) -> Any:
    try:
        with _PARSE_LOCK:
            return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"[{text}] in the path {path!r} is no literal") from error


PUBLIC = (
    *("next", "update_policy_weights_", "receive_weights", "register_scheme_receiver", "cascade_execute", "map_fn"),
    *("get_distant_attr", "set_seed", "state_dict", "load_state_dict", "stats", "shutdown"),
)
"""Methods of a worker that users may call by its handle."""


class Responder(Member):
    """Answers the requests of a collection, in a worker.

    Args:
        request: the start-up data of the worker.
    """

    def __init__(self, request: WorkerRequest) -> None:
        self._built_by, self.hooks = request.built_by, request.hooks
        self._root: Any = self  # where paths begin
        self._ends_with_env = request.options.on_env_error == "restart" and not request.in_process
        self._writer: ReplayWriter | None = None

    @abstractmethod
    def close(self) -> None:
        """Close the envs."""

    @abstractmethod
    def get_model(self, model_id: str) -> Any:
        """Return the model of an id: the policy, or the object at the end of a path.

        Raises:
            AttributeError: a part of the path is missing.
        """

    @abstractmethod
    def seed_with(self, seeding: Seeding) -> None:
        """Seed everything and begin fresh episodes."""

    @abstractmethod
    def current_tally(self) -> Tally:
        """Return the counts of this life, without frames that it has written."""

    @abstractmethod
    def produce(self, request: FragmentRequest) -> tuple[Head, Any]:
        """Make one fragment, and return its head and its body."""

    def collect(self, request: FragmentRequest) -> Parcel | Error:
        """Make one fragment, and write it if this worker has a writer; return exceptions instead of raising them."""
        env_errors = self.current_tally().env_errors
        try:
            head, body = self.produce(request)
            return Parcel(head, body) if self._writer is None else self._writer.write(head, body)
        except Exception as error:  # noqa: BLE001  the collection raises it
            tally = self.current_tally()
            if self._writer is not None:
                self._writer.add_counts(tally)
            by_env = self._ends_with_env and tally.env_errors > env_errors
            return Error(error, by_env or isinstance(error, FleetFailed | Closed), tally)

    def _begin_writing(self, request: WorkerRequest, layout: Layout, hooks: Hooks) -> None:
        """Write fragments in the worker, if the request says so."""
        if request.writing is not None:
            device, note = request.options.devices.storing, f" in worker {request.worker} (life {request.life})"
            self._writer = ReplayWriter(request.writing, layout, hooks, device, note)

    def _drop_unwritten(self) -> None:
        """Drop steps that wait to be written, because episodes begin again."""
        if self._writer is not None:
            self._writer.drop()

    def set_hooks(self, hooks: Hooks) -> None:
        """Set the functions that are called around fragments."""
        self.hooks = hooks
        if self._writer is not None:
            self._writer.delivery.hooks = hooks

    def shutdown(self) -> None:
        """Close the envs."""
        self.close()

    def cascade_execute(self, attr_path: str, *args: Any, **kwargs: Any) -> Any:
        """Follow a path; call the object at its end, or return it."""
        return call_at(self._root, attr_path, args, kwargs)

    def get_distant_attr(self, path: str) -> Any:
        """Return the object at the end of a path."""
        return follow(self._root, path)

    def map_fn(self, method_name: str, list_of_args: ArgLists = None, list_of_kwargs: KwargLists = None) -> list[Any]:
        """Call a method once per entry; see the collector's `map_fn`."""
        calls = pair(list_of_args, list_of_kwargs, 1)
        return [call_at(self._root, method_name, args, kwargs) for args, kwargs in calls]

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed this worker alone; see the collector's `set_seed`."""
        self.seed_with(Seeding(seed, static_seed))
        return seed if static_seed else derive(seed, "next")

    def manifest_of(self, model_id: str) -> Manifest:
        """Return names, shapes and dtypes of the weights of a model.

        Raises:
            AttributeError: a part of the path is missing.
        """
        return Manifest.of(self.get_model(model_id))

    def update_policy_weights_(self, *_args: Any, **_keywords: Any) -> None:
        """Raise `RuntimeError`: weights come from the collector."""
        raise RuntimeError(
            "a worker takes weights from its collector alone: call update_policy_weights_(weights, worker_ids=…) there"
        )

    receive_weights = update_policy_weights_

    def register_scheme_receiver(
        self,
        weight_recv_schemes: Mapping[str, Any],
        *,
        synchronize_weights: bool = True,  # noqa: ARG002  the next request brings the newest in any case
    ) -> None:
        """Take the weights of the collector that built this worker. Its requests bring them also without this call.

        Args:
            weight_recv_schemes: schemes by model; copies of that collector's schemes.
            synchronize_weights: has no effect.

        Raises:
            RuntimeError: a copy of another collector's scheme.
        """
        for model_id, scheme in weight_recv_schemes.items():
            if scheme.sends and (scheme.read_from is None or scheme.read_from[0] != self._built_by):
                raise RuntimeError(
                    f"the scheme for {model_id!r} is not one of the collector that built this worker; pass weights to "
                    "update_policy_weights_() of that collector"
                )


WEIGHTS, TRAJ_POOL, LIFE = "policy_state_dict", "traj_pool", "life"
PARTS = ("env_state_dict", "frames", "iter", TRAJ_POOL, "policy_version", "seed", LIFE)
"""Parts that a worker saves, besides weights."""


def last_life_of(saved: Mapping[str, Any]) -> int:
    """Return the saved life, or the life of the saved trajectory id if that is later."""
    pool = saved.get(TRAJ_POOL)
    return max(int(saved.get(LIFE, 0)), 0 if pool is None else worker_and_life(int(pool["traj_id"]))[1])


def require_parts(saved: Any, needed: Sequence[str], *, strict: bool) -> None:
    """Check that a saved state has these parts; only its type unless `strict`.

    Raises:
        TypeError: no state dict.
        KeyError: parts are missing.
    """
    if not isinstance(saved, Mapping):
        raise TypeError(f"the state dict is of type {type(saved).__name__}; give what state_dict() of a collector gave")
    if strict and (missing := [part for part in needed if part not in saved]):
        raise KeyError(f"the state dict lacks {missing}; pass strict=False to restore the other parts")


def require_worker_state(saved: Any, *, has_weights: bool, strict: bool) -> None:
    """Check the saved state of a worker; only its type unless `strict`.

    Raises:
        TypeError: no state dict.
        KeyError: parts are missing.
        ValueError: weights, for a policy that has none.
    """
    require_parts(saved, (*PARTS, WEIGHTS) if has_weights else PARTS, strict=strict)
    if strict and not has_weights and WEIGHTS in saved:
        raise ValueError("the state dict has weights, but this policy has none; pass strict=False to leave them out")
