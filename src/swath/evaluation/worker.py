"""What lives in a worker of an evaluation: envs and a private policy, which play the episodes that are asked for.

    id | callable | instance | list ──▶ S slots of one host, its running statistics frozen ─┐
    policy | factory ──▶ private copy, in eval mode ─────────────────────────────────────────┴▶ EvalWorker

    play(evaluation, episodes, request) ─▶ a slice of time ─▶ Report; if it is not over the same is asked again

Between two slices the worker gets what is new: another evaluation, which takes the place of the present one, or the
end. So whoever cancels or closes need not reach into a running evaluation. Where slices begin and end changes no
number. An exception of user code is the answer to the call; the next one is played in envs that were built anew.

Models take weights by id: `"policy"`, and parts of the env on every copy of it, such as `"env.transform[0]"` and,
through gymnasium's wrappers, `"env.obs_rms"`.

Several drivers may ask one worker. The evaluation that began last is played; others that go on asking get `Superseded`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import getclosurevars
from threading import Lock
from time import monotonic
from types import FunctionType
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import torch
from tensordict import TensorDictBase

from swath.errors import Superseded, WorkerLate, noted, warn_of_no_effect
from swath.evaluation import env_parts
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import EpisodeRow
from swath.evaluation.runner import Film, Performer, Recording, Runner, Watcher
from swath.group.group import Member
from swath.keys import Key
from swath.rollout.hosts.base import (
    ArraySpec,
    Host,
    Seeding,
    TensorDictSpec,
    close_broken,
    closed_on_failure,
    first_of,
    fps_of,
)
from swath.rollout.hosts.sources import build
from swath.rollout.hosts.torchrl import Fitting
from swath.rollout.hosts.vector import AsVectorEnv, VectorHost
from swath.rollout.policies.answers import require_fitting
from swath.rollout.policies.binding import bind, from_factory
from swath.rollout.policies.calling import Binding, ExplorationType, as_exploration, compiled, device_of, the_policy
from swath.rollout.seeding import PrivateStreams, preserved
from swath.rollout.spaces import Array, Leaves, structured
from swath.seeds import derive, fresh_root
from swath.weights.snapshot import POLICY, Snapshot
from swath.workers.fleet_state import FIRST
from swath.workers.tickets import Name

_WAY_OUT = "evaluation runs a private copy: give it `__deepcopy__`, or an Evaluator a policy_factory"


def private_copy(policy: Any, *, or_itself: bool = False) -> Any:
    """A copy of any policy, that can act while the original is trained.

    Args:
        policy: the policy.
        or_itself: give the policy itself where it cannot be copied.

    Raises:
        TypeError: the policy cannot be copied.
    """
    try:
        return copy.deepcopy(policy)
    except Exception as error:
        if or_itself:
            return policy
        raise TypeError(f"{type(policy).__name__} cannot be copied ({error}); {_WAY_OUT}") from error


def require_own(policy: Any) -> None:
    """Check that a copy of this policy is one: a function is copied without the modules that it refers to.

    Raises:
        TypeError: it refers to one, which would act itself, with weights that training changes meanwhile.
    """
    referred = getclosurevars(policy) if isinstance(policy, FunctionType) else None
    for name, value in {**referred.globals, **referred.nonlocals}.items() if referred else ():
        if isinstance(value, torch.nn.Module):
            raise TypeError(f"{the_policy(policy)} refers to the module {name}, not copied with it; {_WAY_OUT}")


def module_of(policy: Any) -> torch.nn.Module | None:
    """The module that has the weights and a mode: the policy itself, or that of a model of Stable-Baselines3."""
    module = policy if isinstance(policy, torch.nn.Module) else getattr(policy, "policy", None)
    return module if isinstance(module, torch.nn.Module) else None


@runtime_checkable
class Predicts(Protocol):
    """What picks actions by `predict`."""

    def predict(self, observation: Any, state: Any, episode_start: Any, deterministic: bool) -> tuple[Any, Any]:
        """Actions `[B, …]` and the next state."""


def bound(
    policy: Any,
    spec: ArraySpec | TensorDictSpec,
    options: EvaluatorOptions,
    device: torch.device | None,
    observation: Leaves,
    playing: Sequence[int | None],
    *,
    alone: bool,
) -> Performer:
    """The policy as it acts in one evaluation, given the first observation. Random states stay as they are.

        deterministic, unseeded, or beside other threads  ──▶ one call for all B rows
        sampled from a seed                               ──▶ one call per row, with the noise of its own episode

    Args:
        policy: what acts.
        spec: of the envs.
        options: how it picks actions, and the root of all seeds.
        device: where its inputs go; `None` for where the envs are.
        observation: the first one.
        playing: the episode that each slot plays, as it is when the policy is called.
        alone: whether nobody else draws from the process's generators meanwhile; if not, noise is drawn from them.

    Raises:
        TypeError: `predict` for envs that give TensorDicts.
        Exception: what binding a policy raises.
    """
    exploration, root = as_exploration(options.exploration_type), options.seed
    sampled = exploration is ExplorationType.RANDOM

    def bound_to(spec: ArraySpec | TensorDictSpec, observation: Leaves) -> Performer:
        if not isinstance(policy, Predicts):
            return bind(policy, spec, observation, Binding(device, exploration))
        if isinstance(spec, ArraySpec):
            return Predictor(policy, spec, deterministic=not sampled)
        raise TypeError(f"{type(policy).__name__}.predict takes arrays, this env gives TensorDicts; pass a policy")

    # Rows of a batch of TorchRL's have no seeds of their own, and may differ in their shapes.
    is_batch = isinstance(spec, TensorDictSpec) and spec.seeding != "episode"
    with preserved(device) if alone else nullcontext():
        if not (alone and sampled) or root is None or is_batch:
            return bound_to(spec, observation)
        single = replace(spec, num_envs=1, batch_shape=(1,) if spec.batch_shape else ())
        rows = [bound_to(single, row_of(observation, slot)) for slot in range(spec.num_envs)]
        return RowByRow(rows, playing, root, device)


class Predictor:
    """A `predict` object bound to a host.

    Args:
        model: called with keywords `state`, `episode_start`, `deterministic`; used as it is.
        spec: the host's envs.
        deterministic: asked of `predict`.

    Attributes:
        state: what the last `predict` returned beside the actions.
        starts: bool `[B]`: episodes that begin with the next call.
        keys: of what it answers.
    """

    def __init__(self, model: Predicts, spec: ArraySpec, *, deterministic: bool) -> None:
        self._model, self._spec, self._deterministic = model, spec, deterministic
        self.keys: tuple[Key, ...] = (spec.action[0].key,)
        self.state: Any = None
        self.starts: Array = np.ones(spec.num_envs, dtype=np.bool_)

    def __call__(self, observation: Leaves) -> Leaves:
        """Actions for this observation.

        Raises:
            TypeError: `predict` returned something else than actions and a state.
            ValueError: actions of another shape.
        """
        seen = structured(self._spec.observation_space, iter(observation))
        answer = self._model.predict(
            seen, state=self.state, episode_start=self.starts, deterministic=self._deterministic
        )
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"predict returned {answer!r}; it must return (actions, state)")
        actions, self.state = np.asarray(answer[0]), answer[1]
        self.starts = np.zeros_like(self.starts)
        require_fitting(self.keys, [actions], self._spec)
        return [actions]

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""
        self.starts[list(envs)] = True

    def rewind(self) -> None:
        """Nothing is made again in an evaluation: the first failure ends it."""


class RowByRow:
    """A policy called once per slot, with the noise of the slot's episode; rows of slots without one mean nothing.

    Args:
        rows: the policy, bound once per slot to a single env.
        playing: the episode that each slot plays.
        root: of the seeds of the noise.
        device: where the policy runs.
    """

    def __init__(
        self, rows: Sequence[Performer], playing: Sequence[int | None], root: int, device: torch.device | None
    ) -> None:
        self._rows, self._playing, self._root, self._device = rows, playing, root, device
        self.keys = rows[0].keys
        self._noises: dict[int, tuple[int, PrivateStreams]] = {}
        self._last: dict[int, Leaves] = {}

    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs `[B, …]` for this observation."""
        for slot, episode in enumerate(self._playing):
            if episode is not None:
                with self._noises[slot][1].in_force():
                    self._last[slot] = self._rows[slot](row_of(observation, slot))
        some = next(iter(self._last.values()))
        answers = [self._last.get(slot, some) for slot in range(len(self._rows))]
        return [_stacked(leaves) for leaves in zip(*answers, strict=True)]

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these slots, or go on after an end within them: their noise goes on then."""
        for slot in envs:
            self._rows[slot].begin([0])
            episode = self._playing[slot]
            if episode is not None and (slot not in self._noises or self._noises[slot][0] != episode):
                seed = derive(self._root, "noise", 0, episode)
                self._noises[slot] = episode, PrivateStreams(seed, self._device)

    def rewind(self) -> None:
        """Nothing is made again in an evaluation: the first failure ends it."""


def row_of(leaves: Leaves, slot: int) -> Leaves:
    """The leaves of one slot; a TensorDict without batch dimension is its own, with entries that may be added to."""
    return [leaf[slot : slot + 1] if leaf.ndim else leaf.copy() for leaf in leaves]


def _stacked(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], np.ndarray):
        return np.concatenate(rows)
    return torch.cat([*rows]) if rows[0].ndim else rows[0]


_REPORT_EVERY = 1000
SLICE_S = 0.05  # how long a worker plays before it looks for news

EvaluationId: TypeAlias = tuple[str, int]  # who asks for an evaluation, and which of those asked for there, from 1 on


@dataclass(frozen=True)
class EvalRequest:
    """One evaluation, as it travels to those who play it.

    Attributes:
        step: the training step it belongs to.
        policy_version: version of the weights.
        seed: root of the seeds of its episodes and of its noise; `None` seeds nothing.
        record: whether all steps are kept.
        per_slot: one episode of each slot, filmed if the env renders, under the seed that the worker has.
        until_any_done: a round ends with the first episode that does; the others are cut there.
        changes: options that are other than those of the worker, by name.
    """

    step: int = 0
    policy_version: int = 0
    seed: int | None = 0
    record: bool = False
    per_slot: bool = False
    until_any_done: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """How far a worker is with a round.

    Attributes:
        complete: how many episodes of the evaluation it has played.
        over: whether it has played its part; what follows is there only then.
        seconds: spent on the round.
        seeding: how far seeds reach.
        version: how many sets of weights were sent here.
        rows: complete episodes of the round, by number.
        records: whether transforms of the envs have recorded something that is to be written.
        films: uint8 `[T, H, W, 3]` by episode.
        film_truncated: whether filming stopped for want of memory.
        fps: frames per second at which the env wants to be seen, if it says so.
        steps: batches with all steps of the part's episodes.
        misfit: why the weights that were sent last could not be put in; nothing was played then.
    """

    complete: int
    over: bool = False
    seconds: float = 0.0
    seeding: Seeding = "none"
    version: int = 0
    rows: Mapping[int, EpisodeRow] = field(default_factory=dict)
    records: bool = False
    films: Mapping[int, Array] = field(default_factory=dict)
    film_truncated: bool = False
    fps: float | None = None
    steps: Sequence[TensorDictBase] = ()
    misfit: Exception | None = None


class EvalWorker(Member):
    """Envs, and a policy that nobody else has; used by one thread at a time.

    Args:
        options: what it plays in and with, and under which conditions.
        root: of the seed under which a factory is called.
        name: which life of which worker.
        borrows: whether instances go back to whoever has handed them in: envs are not closed, and an object with
            `predict` acts itself, with its modes put back at the end; draws are the caller's business then.

    Attributes:
        host: the envs.
        device: where inputs of the policy go; `None` for where the envs are.
        turn: held while the envs are used.
        closed: whether the envs are closed.

    Raises:
        TypeError: no form of an env, or a policy that cannot be copied.
        ValueError: envs that differ in their spaces, cannot go to the device, or are more or less than asked for.
        Exception: what building env or policy raised.
    """

    def __init__(self, options: EvaluatorOptions, root: int = 0, name: Name = FIRST, *, borrows: bool = False) -> None:
        self._options, self._root, self._name, self._borrows = options, root, name, borrows
        # Where the process is not the worker's own others draw from its generators, and evaluations do so too.
        self._built, self._alone = not options.lent, borrows or options.place != "thread"
        self.turn, self.closed, self._open = Lock(), False, ExitStack()
        self._sent: dict[str, Snapshot] = {}
        self._version = 0
        self._evaluation: EvaluationId = "", 0
        self._newest: dict[str, int] = {}  # by asker
        self._runner: Runner | None = None
        self._misfit: Exception | None = None
        self._failed = False
        with self._noted():
            self.host = self._host()
            with closed_on_failure([self.host] if self._built else []), self._open as failing:
                self._policy = self._own_policy()
                self.device = options.policy_device or device_of(self._policy)
                self._acts = compiled(self._policy, options.settings.compile_policy, options.settings.cudagraph_policy)
                self._open = failing.pop_all()

    def enter(self, name: Name) -> Self:
        """The same worker in another life, in the thread of that.

        Raises:
            WorkerLate: an earlier life is still in a call of its envs.
        """
        if self.turn.locked():
            raise WorkerLate(f"{self._options.env} is still in a call that has not returned; use another env")
        self._name, self._runner = name, None
        return self

    def runner(self, options: EvaluatorOptions, watchers: Sequence[Watcher], *, monitors: bool = False) -> Runner:
        """Plays one evaluation with this host and policy; see `Runner`."""
        act = partial(bound, self._acts, self.host.spec, options, self.device, alone=self._alone)
        return Runner(self.host, act, options, self._name.worker, watchers, monitors=monitors)

    def play(self, evaluation: EvaluationId, episodes: range, request: EvalRequest) -> Report:
        """Play a round for a slice of time, or to its end; whatever else was being played is given up.

        Args:
            evaluation: which; its rounds are played under the same conditions.
            episodes: the round, of which each slot plays its quota.
            request: the conditions.

        Raises:
            Superseded: another evaluation has begun since.
            Exception: what building or stepping an env, or the policy raised.
        """
        asker, number = evaluation
        if number > self._newest.get(asker, 0):
            self._newest[asker], self._evaluation, self._runner = number, evaluation, None
        if evaluation != self._evaluation:
            raise Superseded("the rollout was given up for a later submit of another handle; submit it again")
        if (misfit := self._misfit) is not None:
            self._misfit = None
            return Report(0, over=True, misfit=misfit)
        with self._noted(), self.turn:
            try:
                if self._failed:
                    self._renew()
                if self._runner is None:
                    self._prepare(request)
                return self._play(range(self.host.spec.num_envs) if request.per_slot else episodes, request)
            except Exception:
                self._failed, self._runner = True, None
                raise

    def dump(self, step: int, write: bool) -> list[str]:
        """Have the recorders of this worker's envs let go of what they have seen; what went wrong, in words.

        Args:
            step: the training step it is written under.
            write: whether those of the very first slot write it.
        """
        env = self.host.env
        with self.turn:
            failures = env_parts.dump_recorders(first_of(env), step) if write and self._name.worker == 0 else []
            env_parts.empty_recorders(env)
        return failures

    def take(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Put newer weights in: into all models and copies, or into none; `play` then says why."""
        self._runner = self._misfit = None
        self._version = max(self._version + 1, version)  # others may have sent some
        try:
            self._apply(models)
        except (KeyError, TypeError, ValueError) as error:
            self._misfit = error
        else:
            self._sent |= copy.deepcopy({model_id: each for model_id, each in models.items() if model_id != POLICY})

    def weights(self, model_ids: Sequence[str]) -> dict[str, Any]:
        """The states of models, as their first copies have them."""
        return {model_id: env_parts.state_of(self._models(model_id)[0]) for model_id in model_ids}

    def close(self) -> None:
        """Close the envs, also those that were handed in, unless they are borrowed. Twice is fine."""
        with self.turn:
            self.closed, self._runner = True, None
            self._open.close()
            if self._built or not self._borrows:
                self.host.close()

    def _noted(self) -> AbstractContextManager[None]:
        worker, life = self._name
        return noted(f"code in worker {worker} (life {life}) of an evaluation, backend {self._options.place!r}")

    def _host(self) -> Host:
        options, device = self._options, self._options.settings.env_device
        source = options.source()
        fitting = Fitting(device=device, apart=True)
        host = VectorHost(AsVectorEnv(options.env)) if source is None else build(source, fitting)
        with closed_on_failure([host] if self._built else []):
            if options.num_envs not in (None, n := host.spec.num_envs):
                has = f"{options.env}, which has {n} already"
                raise ValueError(f"num_envs={options.num_envs} for {has}; leave it out, or pass a callable")
            if device is not None and host.spec.device is not None and device.type != host.spec.device.type:
                raise ValueError(f"env_device={str(device)!r}: these envs run on the CPU; leave it out or give 'cpu'")
        self._open.enter_context(env_parts.frozen(host.env))
        return host

    def _own_policy(self) -> Any:
        factory, policy, device = self._options.policy_factory, self._options.policy, self._options.policy_device
        if factory is not None:
            # From generators that are seeded equally in every worker and life.
            with PrivateStreams(derive(self._root, "policy"), device).swapped():
                policy = from_factory(factory, first_of(self.host.env))
        borrowed = self._borrows and isinstance(policy, Predicts)
        if not borrowed and (factory is None or not self._alone):  # others may hold what a factory gave
            policy = private_copy(policy, or_itself=factory is not None)
        if (module := module_of(policy)) is not None:
            for part in module.modules() if borrowed else ():
                self._open.callback(setattr, part, "training", part.training)
            module.eval()
        if device is not None and isinstance(policy, torch.nn.Module):
            policy.to(device)
        elif device is not None and isinstance(policy, Predicts):
            warn_of_no_effect("device", f"{type(policy).__name__}.predict says itself where it runs")
        return policy

    def _renew(self) -> None:
        """After a failure: other envs, which get what those before them had been sent. Instances are reset only."""
        if self._built:
            self._open.close()
            close_broken(self.host)
            self.host = self._host()
            self._apply(self._sent)
        self._failed = False

    def _models(self, model_id: str) -> list[Any]:
        """A model, once per env copy if it is part of the env.

        Raises:
            KeyError: there is none.
        """
        if model_id == POLICY:
            return [module_of(self._policy) or self._policy]
        root, _, path = model_id.partition(".")
        found = env_parts.parts_at(self.host.env, path) if root == "env" else []
        if not found:
            ids = [POLICY, *(f"env.{each}" for each in env_parts.paths_of(first_of(self.host.env)))]
            raise KeyError(f"there is no model {model_id!r} that takes weights; there are {ids}")
        return found

    def _apply(self, snapshots: Mapping[str, Snapshot]) -> None:
        found = [(name, part, snapshot) for name, snapshot in snapshots.items() for part in self._models(name)]
        for put in [env_parts.change(*each) for each in found]:
            put()

    def _prepare(self, request: EvalRequest) -> None:
        """For an evaluation; where rollouts are asked for, seeds are those given here."""
        env, mine, changes = self.host.env, self._options, {"seed": request.seed, **request.changes}
        env_parts.empty_recorders(env)
        if request.per_slot:
            changes["seed"] = fresh_root() if mine.seed is None else mine.seed
            changes["record_video"] = int(env_parts.renders(first_of(env)))
        options = mine if changes == {"seed": mine.seed} else replace(mine, **changes)  # which checks it all again
        self._film = Film(options.record_video, options.max_video_bytes // options.num_workers)
        self._recording = Recording(request.policy_version)
        asked = (self._film, options.record_video), (self._recording, request.record)
        self._runner = self.runner(options, [watcher for watcher, wanted in asked if wanted])
        self._report_every = options.frames_per_batch or options.max_steps or _REPORT_EVERY
        self._drawing: Callable[[], AbstractContextManager[None]] = nullcontext
        if self._alone:
            root = fresh_root() if options.seed is None else options.seed
            self._drawing = PrivateStreams(derive(root, "global", self._name.worker), self.device).in_force
        self._steps: Iterator[None] = iter(())
        self._round, self._seconds = range(0), 0.0

    def _play(self, episodes: range, request: EvalRequest) -> Report:
        runner, began = self._runner, monotonic()
        assert runner is not None
        if episodes != self._round:
            self._round, self._seconds, self._steps = episodes, 0.0, runner.play(episodes)
        most = runner.steps + self._report_every
        with self._drawing():
            for _ in self._steps:
                if request.until_any_done and runner.rows:
                    runner.cut()
                elif (runner.steps >= most or monotonic() > began + SLICE_S) and runner.unfinished:
                    break
        self._seconds += monotonic() - began
        if runner.unfinished:
            return Report(len(runner.rows))
        films = self._film.takes()
        return Report(
            len(runner.rows),
            over=True,
            seconds=self._seconds,
            seeding=runner.seeding,
            version=self._version,
            rows={episode: row for episode, row in runner.rows.items() if episode in episodes},
            records=bool(env_parts.recorders(self.host.env)),
            films=films,
            film_truncated=self._film.truncated,
            fps=fps_of(self.host.env) if films else None,
            steps=self._recording.taken(),
        )
