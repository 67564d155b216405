"""What lives in a place and answers a collection: a `RemoteWorker`, or a whole collector (`ray_collector.py`).

    describe()       ─▶ Description
    collect(ask)     ─▶ hook ─▶ fragment ─▶ hook ─▶ Parcel(Head, arrays) | Broken
                                               └──▶ written to a replay buffer ─▶ Parcel(Head, None)
    other methods    between two fragments
    close()

Runs in the worker, in one thread. Attribute paths, `"policy.layers[0].weight"`, are parsed, never evaluated.
"""

from __future__ import annotations

import ast
import re
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from swath.collectors.delivery import ReplayWriter
from swath.collectors.messages import (
    Broken,
    Description,
    FragmentRequest,
    Head,
    Seeding,
    Tally,
    WorkerRequest,
    signature_of,
    unfrozen,
)
from swath.collectors.options import Hooks
from swath.collectors.worker import Worker
from swath.errors import Closed, FleetFailed, noted
from swath.group.group import Member
from swath.rollout.buffer import Fragment, Layout, TensorDictRows
from swath.rollout.episodes.statistics import worker_and_life
from swath.rollout.hosts.base import first_env
from swath.rollout.hosts.torchrl import CREATOR, reduce_env_creator
from swath.seeds import derive
from swath.weights.channel import Update
from swath.weights.snapshot import POLICY, Manifest, Snapshot, fitting, plan, take
from swath.workers.packing import Parcel, register_reducer

# Python 3.11 counts the depth of `ast.parse` once for all threads: two at once can end in a SystemError.
_PARSING = threading.Lock()
_PART = r"\.?([A-Za-z_]\w*)|\[([^\]]+)\]"
_PATH = rf"(?!\.)(?:{_PART})+"


def follow(root: Any, path: str) -> Any:
    """What the path leads to from `root`.

    Raises:
        AttributeError: a part is missing; the message names it.
        ValueError: the text is no path.
    """
    if re.fullmatch(_PATH, path) is None:
        raise ValueError(f"{path!r} is no path: write names, dots and [literal], as in 'policy.layers[0].weight'")
    value = root
    parts = [(name, None) if name else (None, _literal(item, path)) for name, item in re.findall(_PART, path)]
    for name, item in parts:
        try:
            value = getattr(value, name) if name else value[item]
        except (AttributeError, LookupError, TypeError) as error:
            items = f", whose items are [0] to [{len(value) - 1}]" if isinstance(value, list | tuple) else ""
            what, kind = item if name is None else repr(name), type(value).__name__
            missing = f"{what} of the path {path!r} is missing on {kind}{items}"
            raise AttributeError(missing) from error
    return value


def call_at(root: Any, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call what the path leads to; what cannot be called is returned.

    Raises:
        AttributeError: a part is missing.
        ValueError: arguments for something that cannot be called.
    """
    found = follow(root, path)
    if callable(found):
        return found(*args, **kwargs)
    if args or kwargs:
        raise ValueError(f"{path!r} is of type {type(found).__name__}, which takes no arguments")
    return found


def paired(
    list_of_args: Sequence[Sequence[Any]] | None, list_of_kwargs: Sequence[Mapping[str, Any]] | None, n: int
) -> list[tuple[Sequence[Any], Mapping[str, Any]]]:
    """The arguments of each call; of `n` calls without arguments if there are no lists.

    Raises:
        ValueError: the lists are not of the same length.
    """
    given = [len(one) for one in (list_of_args, list_of_kwargs) if one is not None] or [n]
    if given[0] != given[-1]:
        raise ValueError(f"list_of_args has {given[0]} entries, list_of_kwargs {given[-1]}; give both the same length")
    return list(zip(list_of_args or [()] * given[0], list_of_kwargs or [{}] * given[0], strict=True))


def _literal(text: str, path: str) -> Any:
    try:
        with _PARSING:
            return ast.literal_eval(text)
    except (ValueError, SyntaxError) as error:
        raise ValueError(f"[{text}] in the path {path!r} is no literal") from error


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


WEIGHTS, TRAJ_POOL, LIFE = "policy_state_dict", "traj_pool", "life"
PARTS = ("env_state_dict", "frames", "iter", TRAJ_POOL, "policy_version", "seed", LIFE)
"""What a worker saves, beside weights."""

register_reducer(*CREATOR, reduce_env_creator)


class RemoteWorker(Worker, Responder):
    """One worker of a fleet, or the one in this process.

    Args:
        request: what it is made of.

    Attributes:
        hooks: called around fragments: before each, and with each as a batch `[*B, T]`.
    """

    def __init__(self, request: WorkerRequest) -> None:
        Responder.__init__(self, request)
        self._ask, self._number, self._interrupted = FragmentRequest(), 0, request.stopped
        self._bell: Any = None
        Worker.__init__(self, request)
        self._begin_writing(request, self.layout, self.hooks)

    def describe(self) -> Description:
        """What it is like; where nobody compares it with others, without its entries."""
        host, layout = self.host, self.layout
        return Description(
            host.spec.num_envs,
            self.n_steps,
            layout,
            Manifest.of(self.policy),
            {} if self._here else signature_of(self.zero_batch(), len(layout.batch_shape) + 1),
            getattr(first_env(host.env), "device", None),
            self.device,
        )

    def next(self) -> Any:
        """A batch for whoever holds this worker's handle; the collection does not see it."""
        return self._asked(FragmentRequest()).to_tensordict(self.layout)

    def stats(self) -> dict[str, Any]:
        """What it has done."""
        return {"life": self.life, "policy_version": self.version, **asdict(self.tally)}

    def stopped(self) -> bool:
        """Whether the fragment ends with this step: the collection, or the user's own interruptor, says so."""
        if self._bell is not None and self._bell[self._ask.entry] >= self._ask.number:
            return True
        return self._interrupted is not None and self._interrupted()

    @property
    def env(self) -> Any:
        """The live env, vector env, or list of envs."""
        return self.host.env

    def get_model(self, model_id: str) -> Any:
        """The model of an id: the policy, or what a path leads to."""
        return self.policy if model_id == POLICY else follow(self, model_id)

    def getattr_env(self, name: str) -> Any:
        """An attribute of the first env."""
        return follow(first_env(self.host.env), name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the policy."""
        return follow(self.policy, name)

    def touch(self) -> int:
        """The version of its weights."""
        return self.version

    def take(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""
        modules = {one: self.module if one == POLICY else self.get_model(one) for one in models}
        changes = [fitting(models[one], module) for one, module in modules.items() if module is not None]
        for change in changes:
            change()
        self.version = version

    def state_dict(self) -> OrderedDict[str, Any]:
        """Weights, transforms, counters, version, seed and life."""
        saved, stateful = OrderedDict[str, Any](), getattr(self.host, "stateful", None)
        if self.module is not None:
            saved[WEIGHTS] = OrderedDict(
                (name, value.detach().clone() if isinstance(value, torch.Tensor) else value)
                for name, value in self.module.state_dict().items()
            )
        saved["env_state_dict"] = OrderedDict() if stateful is None else stateful.state_dict()
        saved["frames"], saved["iter"] = self.tally.frames, self._number - 1
        saved[TRAJ_POOL] = {"traj_id": torch.tensor(self.next_id, dtype=torch.int64)}
        saved["policy_version"] = self.version
        saved["seed"] = None if self.seeding is None else self.seeding.root
        saved[LIFE] = self.life
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Go on from what was saved, in a new life, so that ids exceed all before.

        Raises:
            TypeError: no state dict.
            KeyError: parts are missing, unless `strict` is false.
            ValueError: weights, for a policy that has none; also only if `strict`. In all cases nothing has changed.
        """
        require_parts(state_dict, has_weights=self.module is not None, strict=strict)
        stateful, weights, changes = getattr(self.host, "stateful", None), state_dict.get(WEIGHTS), []
        if self.module is not None and weights is not None:
            modules = [self.policy] if self.acts is self.policy else [self.policy, self.acts]
            changes = [plan(module, weights) for module in modules]
        life = max(self.life, last_life_of(state_dict)) + 1
        version = int(state_dict.get("policy_version", self.version))
        for change in changes:
            change()
        self.version, seeding = version, self.seeding
        if stateful is not None and state_dict.get("env_state_dict"):
            stateful.load_state_dict(state_dict["env_state_dict"])
        if "seed" in state_dict:
            seed = state_dict["seed"]
            seeding = None if seed is None else replace(seeding or Seeding(seed), root=seed, static=False)
        self.begin_life(life, seeding)

    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None) -> None:
        """As `load_state_dict` without weights, which come by the channel; with these seeds, from this seed."""
        if seeding is not None:
            self.seeding = seeding
        self.load_state_dict(saved, strict=False)

    def _make(self, ask: FragmentRequest) -> Parcel:
        """The fragment's arrays, or its batch where entries may be anything or a hook sees them.

        The hook sees what is written where it is written from here: the last to see it.
        """
        if self.hooks.before is not None:
            with noted(f"pre_collect_hook in {self.who}"):
                self.hooks.before()
        if ask.frames and (n_steps := -(-ask.frames // self.host.spec.num_envs)) != self.n_steps:
            self.make_steps(n_steps)
        since, fragment = self.next_id, self._asked(ask)
        frames, made, episodes = fragment.frames, fragment.steps, self._ids.ended_episodes.tobytes()
        body, hook = fragment, self.hooks.after if self._writer is None else None
        if hook is not None or isinstance(fragment.rows, TensorDictRows):
            body = fragment.to_tensordict(self.layout)
        if hook is not None:
            try:
                with noted(f"post_collect_hook in {self.who}"):
                    hook(body)
            except BaseException:
                self.lose(frames)
                raise
        self.tally.frames += frames
        made = self.n_steps if made is None else made
        return Parcel(Head(self.life, self.version, frames, made, episodes, self.next_id, self._number, since), body)

    def _asked(self, ask: FragmentRequest) -> Fragment:
        self._ask, self._bell = ask, None if ask.bell is None else ask.bell.open()
        self._number += 1
        fragment = self.make_fragment(randomly=ask.randomly)
        if self.options.set_truncated:
            fragment.rows.truncate_last()
        return fragment

    def counted(self) -> Tally:
        """Counts of this life, but for what it has written."""
        return replace(self.tally)


def build_remote(request: WorkerRequest) -> Responder:
    """The worker; the function that jobs name. What travelled frozen thaws here.

    Raises:
        ValueError: it is not like its earlier lives.
    """
    source = replace(request.source, env=unfrozen(request.source.env))
    make: Callable[[WorkerRequest], Responder] = request.make or RemoteWorker
    built = make(replace(request, source=source, policy=unfrozen(request.policy)))
    difference = "" if request.model is None else request.model.difference(built.describe())
    if difference:
        built.close()
        raise ValueError(f"worker {request.worker} was built anew and is not what it was: {difference}")
    return built


def last_life_of(saved: Mapping[str, Any]) -> int:
    """The life that was saved, or a later one in which an id was given."""
    pool = saved.get(TRAJ_POOL)
    return max(int(saved.get(LIFE, 0)), 0 if pool is None else worker_and_life(int(pool["traj_id"]))[1])


def require_parts(saved: Any, *, has_weights: bool, strict: bool) -> None:
    """What a worker saves must be there, if `strict`, and nothing that does not fit it.

    Raises:
        TypeError: no state dict.
        KeyError: parts are missing.
        ValueError: weights, for a policy that has none.
    """
    if not isinstance(saved, Mapping):
        raise TypeError(f"the state dict is of type {type(saved).__name__}; give what state_dict() of a collector gave")
    missing = [part for part in (*PARTS, *[WEIGHTS] * has_weights) if strict and part not in saved]
    if missing:
        raise KeyError(f"the state dict lacks {missing}; pass strict=False to restore what is there")
    if strict and not has_weights and WEIGHTS in saved:
        raise ValueError("the state dict has weights, but this policy has none; pass strict=False to leave them out")
