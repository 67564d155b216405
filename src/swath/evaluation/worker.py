"""A worker of an evaluation: envs and a private policy, which play the requested episodes.

    id | callable | instance | list ──▶ S slots of one host, without updates of running statistics ─┐
    policy | factory ──▶ private copy, in eval mode ────────────────────────────────────────────────┴▶ EvalWorker

    play(evaluation, episodes, request) ─▶ a slice of time ─▶ Report; unless it is over, the driver repeats the call

Between two slices the worker gets new requests: another evaluation, which replaces the running one, or the end. So
a driver need not interrupt a worker to cancel or close. The numbers do not depend on where slices begin and end. An
exception of user code is the answer to the call; the next evaluation gets new envs.

Models take weights by id: `"policy"`, and parts of the env on every copy of it, for example `"env.transform[0]"` and,
through gymnasium's wrappers, `"env.obs_rms"`.

Several drivers may call one worker. It plays the evaluation that began last; other drivers get `Superseded`.

On request the worker also keeps frames and, as a collector does, steps:
    Step ──▶ rows of fragments, with episode numbers ──▶ batches ──▶ `join_trajectories`, over all workers
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from tensordict import TensorDictBase

from swath import keys
from swath.errors import Superseded, WorkerLate, note_source, warn_of_no_effect
from swath.evaluation import env_parts
from swath.evaluation.acting import bind_policy, copy_policy, module_of
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import EpisodeRow
from swath.evaluation.runner import Runner, Watcher
from swath.group.group import Member
from swath.options import TrajFormat
from swath.report.video import as_rgb
from swath.rollout.buffer import Buffer, Fragment, Layout, TensorDictBuffer
from swath.rollout.episodes.reshape import split_trajectories
from swath.rollout.episodes.statistics import NO_TRAJECTORY
from swath.rollout.hosts.base import (
    Host,
    Seeding,
    TensorDictSpec,
    close_on_failure,
    close_quietly,
    first_env,
    frame_rate,
)
from swath.rollout.hosts.plan import PlanHost
from swath.rollout.hosts.sources import build
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.hosts.torchrl import EnvOptions
from swath.rollout.hosts.verification import plan_of_env
from swath.rollout.loop import Step
from swath.rollout.planned import planned_buffer
from swath.rollout.plans import NoPlan
from swath.rollout.policies.binding import batch_order, build_policy
from swath.rollout.policies.calling import device_of, maybe_compile
from swath.rollout.seeding import PrivateStreams
from swath.rollout.spaces import Array
from swath.seeds import derive, fresh_root
from swath.weights.snapshot import POLICY, Snapshot, require_initialized
from swath.workers.fleet_state import FIRST_LIFE
from swath.workers.tickets import Name

BLOCK_STEPS = 128  # steps in one piece of memory


class Recording:
    """Keeps every step of every episode of a worker; trajectory ids are the numbers of episodes.

    Args:
        version: version of the weights that act.
    """

    def __init__(self, version: int) -> None:
        self._version, self._filled = version, 0
        self._last: Step | None = None
        self._batches: list[TensorDictBase] = []
        self._layout: Layout | None = None
        self._buffer: Any = None
        self._rows: Any = None

    def __call__(self, step: Step, slot: int, runner: Runner) -> None:  # noqa: ARG002  all slots are written at once
        """Keep the step, unless it was kept for an earlier slot.

        Raises:
            BadAnswer: an episode ended without its true last observation.
        """
        if step is self._last:
            return
        self._last, spec = step, runner.host.spec
        if self._layout is None and runner.policy is not None:
            if is_open := isinstance(spec, TensorDictSpec):
                self._buffer = TensorDictBuffer(spec, step.outputs[0], BLOCK_STEPS, batch_order(spec.host))
            elif isinstance(runner.host, PlanHost):
                example = runner.host, runner.policy.keys, step.observation, step.outputs
                self._buffer = planned_buffer(*example, BLOCK_STEPS, batch_order(runner.host.plain))
            else:
                self._buffer = Buffer(step.observation, step.outputs, BLOCK_STEPS)
            observed, outputs = spec.observation_keys, runner.policy.keys
            self._layout = Layout(spec.batch_shape, observed, outputs, masked=True, open=is_open)
            self._truncates = spec.can_truncate
        if self._rows is None:
            self._rows, self._filled = self._buffer.open(), 0
            self._ids = np.full((spec.num_envs, BLOCK_STEPS), NO_TRAJECTORY, dtype=np.int64)
        playing = [None if env in step.void else episode for env, episode in enumerate(runner.playing)]
        idle = [env for env, episode in enumerate(playing) if episode is None]
        self._buffer.write(self._rows, self._filled, replace(step, void=idle))
        self._ids[:, self._filled] = [NO_TRAJECTORY if episode is None else episode for episode in playing]
        self._filled += 1
        if self._filled == BLOCK_STEPS:
            self._seal()

    def pop_batches(self) -> list[TensorDictBase]:
        """Return batches with all steps since the last call, in the order of time."""
        if self._rows is not None:
            self._seal()
        batches, self._batches = self._batches, []
        return batches

    def _seal(self) -> None:
        assert self._layout is not None
        rows, self._rows = self._rows, None
        self._buffer.seal(rows)
        if self._filled < BLOCK_STEPS:
            rows.blank_from(self._filled)
        batch = Fragment(rows, self._ids, None, self._version).to_tensordict(self._layout)
        if not self._truncates:  # the env has no flag for truncations by the evaluation
            done = batch.get((keys.NEXT, keys.DONE))
            batch.set((keys.NEXT, keys.TRUNCATED), torch.from_numpy(rows.truncated).reshape(done.shape).to(done.device))
            batch.set(keys.TRUNCATED, torch.zeros_like(done))
        self._batches.append(batch[batch[keys.MASK]].exclude(keys.MASK))


def join_trajectories(batches: Iterable[TensorDictBase], layout: TrajFormat) -> TensorDictBase:
    """Return the episodes of the batches, in order: padded `[N, T_max]` with a mask, or `"cat"` `[ΣT]`.

    Args:
        batches: steps of episodes; the steps of each episode are in the order of time.
        layout: `"padded"` or `"cat"`.
    """
    steps: TensorDictBase = torch.cat([*batches])
    steps = steps[steps[keys.TRAJ_IDS].argsort(stable=True)]
    steps.names = [keys.TIME]
    return split_trajectories(steps) if layout == "padded" else steps


class Film:
    """Records the frame after each step of episodes 0 … k-1.

    Args:
        num_episodes: k, how many episodes to film.
        max_bytes: most bytes of frames; beyond them filming stops and the evaluation goes on.

    Attributes:
        frames: `[H, W, 3]` uint8 by episode, one after each step.
        truncated: whether filming stopped for want of memory.
        fps: frame rate of the env; 0 if it has none.
    """

    def __init__(self, num_episodes: int = 0, max_bytes: int = 0) -> None:
        self.frames: dict[int, list[Array]] = {}
        self._num_episodes, self._free_bytes = num_episodes, max_bytes
        self.truncated, self.fps = False, 0.0

    def __call__(self, step: Step, slot: int, runner: Runner) -> None:  # noqa: ARG002
        """Film this slot, if its episode is among the first.

        Raises:
            ValueError: the env renders no frames.
        """
        episode = runner.playing[slot]
        if episode is None or episode >= self._num_episodes or self.truncated:
            return
        image = runner.host.render(slot)
        if image is None:
            raise ValueError(f"{runner.host.env} gives no frames to film; build it with render_mode='rgb_array'")
        frame = as_rgb(image).copy()
        self._free_bytes -= frame.nbytes
        if self._free_bytes < 0:
            self.truncated = True
        else:
            self.fps = frame_rate(runner.host.env) or 0.0
            self.frames.setdefault(episode, []).append(frame)


_REPORT_EVERY = 1000
SLICE_S = 0.05  # how long a worker plays before it answers and can get other requests

EvaluationId: TypeAlias = tuple[str, int]  # id of a driver, and number of its evaluation, from 1 on


@dataclass(frozen=True)
class EvalRequest:
    """One evaluation, as it travels to the workers.

    Attributes:
        step: the training step.
        seed: root of the seeds of its episodes and of its noise; `None` seeds nothing.
        record: whether to keep all steps.
        per_slot: play one episode of each slot, filmed if the env renders, under the seed of the worker's options.
        until_any_done: end a round with the first episode that ends, and truncate the others there.
        changes: options that differ from the worker's options, by name.
    """

    step: int = 0
    seed: int | None = 0
    record: bool = False
    per_slot: bool = False
    until_any_done: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """Progress of a worker in a round.

    Attributes:
        complete: number of complete episodes of the evaluation.
        is_over: whether the worker has played its part; only then the other fields are set.
        seconds: spent on the round.
        seeding: how far seeds reach.
        version: version of the weights that acted.
        rows: complete episodes of the round, by number.
        records: whether transforms of the envs have recorded something to write.
        film: film of its first episodes.
        steps: batches with all steps of the part's episodes.
        misfit: why the newest weights could not be applied; nothing was played then.
        request: the conditions, for a driver that has not requested the evaluation; `None` if there was no result.
    """

    complete: int
    is_over: bool = False
    seconds: float = 0.0
    seeding: Seeding = "none"
    version: int = 0
    rows: Mapping[int, EpisodeRow] = field(default_factory=dict)
    records: bool = False
    film: Film = field(default_factory=Film)
    steps: Sequence[TensorDictBase] = ()
    misfit: Exception | None = None
    request: EvalRequest | None = None


@dataclass(eq=False)
class EvaluationRun:
    """One evaluation that a worker plays, slice by slice.

    Attributes:
        runner: plays the episodes.
        request: the conditions.
        film, recording: watch the runner, if the request wants them.
        report_every: most env steps of a slice.
        draws: context in which envs and policy draw random numbers.
        episodes: the present round.
        steps: plays it.
        seconds: spent on it.
    """

    runner: Runner
    request: EvalRequest
    film: Film
    recording: Recording
    report_every: int
    draws: Callable[[], AbstractContextManager[None]]
    episodes: range = range(0)
    steps: Iterator[None] = field(default_factory=lambda: iter(()))
    seconds: float = 0.0

    def advance(self, episodes: range) -> None:
        """Play a round for a slice of time, or to its end."""
        runner, began = self.runner, monotonic()
        if episodes != self.episodes:
            self.episodes, self.seconds, self.steps = episodes, 0.0, runner.play(episodes)
        stop = runner.steps + self.report_every
        with self.draws():
            for _ in self.steps:
                if self.request.until_any_done and runner.rows:
                    runner.truncate_all()
                elif (runner.steps >= stop or monotonic() > began + SLICE_S) and runner.unfinished:
                    break
        self.seconds += monotonic() - began


class EvalWorker(Member):
    """Envs and a private policy. One thread at a time uses it.

    Args:
        options: envs, policy and conditions.
        seed: root of the seed under which a factory is called.
        name: worker and life.
        borrows: whether instances belong to the caller: envs are not closed, an object with `predict` acts itself and
            gets its modes back at the end, and the caller cares for random states.
        shared: whether several drivers send weights; the worker then numbers the sets, since no driver knows the
            sets of the others.

    Attributes:
        host: the envs.
        device: where inputs of the policy go; `None` for the device of the envs.
        env_lock: held while a thread uses the envs.
        closed: whether the envs are closed.

    Raises:
        TypeError: an env of an unknown kind, or a policy that cannot be copied.
        ValueError: envs with different spaces, on another device, or of another number than the options say.
        Exception: the construction of env or policy raised it.
    """

    def __init__(
        self,
        options: EvaluatorOptions,
        seed: int = 0,
        name: Name = FIRST_LIFE,
        *,
        borrows: bool = False,
        shared: bool = False,
    ) -> None:
        self._options, self._seed, self._name, self._borrows, self._shared = options, seed, name, borrows, shared
        self._owns_envs = not options.has_instances
        # In a thread, others draw from the process's generators, too.
        self._owns_generators = borrows or options.place != "thread"
        self.env_lock, self.closed, self._cleanup = Lock(), False, ExitStack()
        self._env_weights: dict[str, Snapshot] = {}
        self._version = 0
        self._evaluation = self._finished = ("", 0)  # the running one, and the last complete one
        self._unread: Report | None = None  # the report of the last complete rollout
        self._newest: dict[str, int] = {}  # evaluation by driver
        self._run: EvaluationRun | None = None
        self._misfit: Exception | None = None
        self._failed = False
        self._plan: PlanHost | None = None
        with note_source(self._source()):
            self.host = self._build_host()
            with close_on_failure([self.host] if self._owns_envs else []), self._cleanup as on_failure:
                self._policy = self._build_policy()
                self.device = options.policy_device or device_of(self._policy)
                settings = options.settings
                self._compiled = maybe_compile(self._policy, settings.compile_policy, settings.cudagraph_policy)
                self._cleanup = on_failure.pop_all()

    def restart_as(self, name: Name) -> Self:
        """Return this worker as another life, which runs in another thread.

        Raises:
            WorkerLate: an earlier life is still in a call of its envs.
        """
        if self.env_lock.locked():
            raise WorkerLate(f"{self._options.env} is still in a call that has not returned; use another env")
        self._name, self._run = name, None
        return self

    def runner(self, options: EvaluatorOptions, watchers: Sequence[Watcher], *, monitors: bool = False) -> Runner:
        """Return a runner of one evaluation with this host and policy; see `Runner`.

        Raises:
            ValueError: lazy layers of the policy are not initialised.
        """
        if (module := module_of(self._policy)) is not None:
            require_initialized(module)
        owned, plan = self._owns_generators, partial(self._plan_envs, options, watchers)
        bind = partial(
            bind_policy, self._compiled, self.host, options, self.device, owns_generators=owned, plan_envs=plan
        )
        return Runner(self.host, bind, options, self._name.worker, watchers, monitors=monitors)

    def play(self, evaluation: EvaluationId, episodes: range, request: EvalRequest) -> Report:
        """Play a round for a slice of time, or to its end; a later evaluation replaces an earlier one.

        Args:
            evaluation: its rounds have the same conditions.
            episodes: the round; each slot plays its share.
            request: the conditions.

        Raises:
            Superseded: another evaluation has begun since.
            Exception: building or stepping an env, or the policy raised it.
        """
        driver, number = evaluation
        if number > self._newest.get(driver, 0):
            self._newest[driver], self._evaluation, self._run = number, evaluation, None
            self.mark_read(driver)
        if evaluation != self._evaluation:
            raise Superseded("the rollout was given up for a later submit of another handle; submit it again")
        if (misfit := self._misfit) is not None:
            self._misfit = None
            return Report(0, is_over=True, misfit=misfit)
        with self.env_lock:
            try:
                if self._failed:
                    self._rebuild_envs()
                run = self._run = self._run or self._begin_run(request)
                run.advance(range(self.host.spec.num_envs) if request.per_slot else episodes)
            except Exception as error:
                error.add_note(f"raised by {self._source()}")
                self._failed, self._run = True, None
                raise
        report = self._report(run, episodes)
        if report.is_over and request.per_slot and evaluation != self._finished:
            self._finished, self._unread = evaluation, report
        return report

    def fetch_unread(self) -> Report:
        """Return the newest unread rollout, of any driver; play an unfinished one for a slice of time.

        Raises:
            Exception: building or stepping an env, or the policy raised it.
        """
        if self._unread is None and (run := self._run) is not None and run.runner.unfinished:
            self.play(self._evaluation, run.episodes, run.request)
            if self._unread is None:
                return Report(0)
        unread, self._unread = self._unread, None
        return unread or Report(0, is_over=True)

    def mark_read(self, driver: str) -> None:
        """Forget the unread rollout if this driver has requested it and has read it, or requests another one."""
        if self._finished[0] == driver:
            self._unread = None

    def dump(self, step: int, write: bool) -> list[str]:
        """Write the recordings of this worker's envs; return descriptions of failures.

        Args:
            step: the training step of the files.
            write: whether the recorders of the very first slot write.
        """
        with self.env_lock:
            first = first_env(self.host.env)
            failures = env_parts.dump_recorders(first, step) if write and self._name.worker == 0 else []
            env_parts.empty_recorders(self.host.env)
            return failures

    def apply_weights(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Apply newer weights to all models and copies, or to none; `play` then reports why."""
        self._run = self._misfit = None
        self._version = max(self._version + bool(models), version) if self._shared else version
        try:
            self._apply(models)
        except (KeyError, TypeError, ValueError) as error:
            self._misfit = error
        else:
            self._env_weights |= copy.deepcopy({name: value for name, value in models.items() if name != POLICY})

    def weights(self, model_ids: Sequence[str]) -> dict[str, Any]:
        """Return the states of models; a model with several copies has the state of the first copy."""
        return {model_id: env_parts.state_of(self._models(model_id)[0]) for model_id in model_ids}

    def close(self) -> None:
        """Close the envs, instances too, unless the caller lends them. A second call does nothing."""
        with self.env_lock:
            self.closed, self._run = True, None
            self._cleanup.close()
            if self._owns_envs or not self._borrows:
                self.host.close()

    def _plan_envs(self, options: EvaluatorOptions, watchers: Sequence[Watcher]) -> PlanHost:
        """Return the plan of the envs, made again if they have changed.

        Raises:
            NoPlan: they have none, or a watcher wants TensorDicts, or the flags of the env where a limit is reached.
        """
        records = any(isinstance(watcher, Recording) for watcher in watchers)
        if records and options.max_steps is not None:
            raise NoPlan("the evaluation keeps trajectories, whose length max_steps limits")
        if not all(isinstance(watcher, Film | Recording) for watcher in watchers):
            raise NoPlan("the evaluation has a callback")
        assert isinstance(self.host, TensorDictHost)
        if self._plan is None or not self._plan.is_valid():
            self._plan = plan_of_env(self.host, owns_generators=self._owns_generators)
        return self._plan

    def _source(self) -> str:
        worker, life = self._name
        return f"code in worker {worker} (life {life}) of an evaluation, backend {self._options.place!r}"

    def _build_host(self) -> Host:
        options, device = self._options, self._options.settings.env_device
        host = build(options.source(), EnvOptions(device=device, separate=True))
        with close_on_failure([host] if self._owns_envs else []):
            if options.num_envs not in (None, n := host.spec.num_envs):
                raise ValueError(f"num_envs={options.num_envs} for {options.env}, which has {n} already; leave it out")
            if device is not None and host.spec.device is not None and device.type != host.spec.device.type:
                raise ValueError(f"env_device={str(device)!r}: these envs run on the CPU; leave it out or give 'cpu'")
        self._cleanup.enter_context(env_parts.without_updates(host.env))
        return host

    def _build_policy(self) -> Any:
        factory, policy, device = self._options.policy_factory, self._options.policy, self._options.policy_device
        if factory is not None:
            # The generators have the same seed in every worker and life.
            with PrivateStreams(derive(self._seed, "policy"), device).activate():
                policy = build_policy(factory, first_env(self.host.env))
        borrowed = self._borrows and hasattr(policy, "predict")
        if not borrowed and (factory is None or not self._owns_generators):  # a factory may return a shared policy
            policy = copy_policy(policy, allow_original=factory is not None)
        if (module := module_of(policy)) is not None:
            for part in module.modules() if borrowed else ():
                self._cleanup.callback(setattr, part, "training", part.training)
            module.eval()
        if device is not None and isinstance(policy, torch.nn.Module):
            policy.to(device)
        elif device is not None and hasattr(policy, "predict"):
            warn_of_no_effect("device", f"{type(policy).__name__}.predict says itself where it runs")
        return policy

    def _rebuild_envs(self) -> None:
        """Replace the envs after a failure, with the weights that were applied to them; instances are only reset."""
        if self._owns_envs:
            self._cleanup.close()
            close_quietly(self.host)
            self.host, self._plan = self._build_host(), None
            self._apply(self._env_weights)
        self._failed = False

    def _models(self, model_id: str) -> list[Any]:
        """Return a model, or its copies in all envs if it is part of the env.

        Raises:
            KeyError: no model has this id.
        """
        if model_id == POLICY:
            return [module_of(self._policy) or self._policy]
        root, _, path = model_id.partition(".")
        parts = env_parts.parts_at(self.host.env, path) if root == "env" else []
        if not parts:
            ids = [POLICY, *(f"env.{path}" for path in env_parts.paths_of(first_env(self.host.env)))]
            raise KeyError(f"there is no model {model_id!r} that takes weights; there are {ids}")
        return parts

    def _apply(self, snapshots: Mapping[str, Snapshot]) -> None:
        parts = [(name, part, snapshot) for name, snapshot in snapshots.items() for part in self._models(name)]
        for copy_in in [env_parts.prepare_weights(*part) for part in parts]:
            copy_in()

    def _begin_run(self, request: EvalRequest) -> EvaluationRun:
        """Return the run of an evaluation; rollouts (`per_slot`) take the seed of the worker's options."""
        env, defaults, changes = self.host.env, self._options, {"seed": request.seed, **request.changes}
        env_parts.empty_recorders(env)
        if request.per_slot:
            changes["seed"] = fresh_root() if defaults.seed is None else defaults.seed
            changes["record_video"] = int(env_parts.renders(first_env(env)))
        # `replace` checks all options again, which takes time.
        options = defaults if changes == {"seed": defaults.seed} else replace(defaults, **changes)
        film = Film(options.record_video, options.max_video_bytes // options.num_workers)
        recording = Recording(self._version)
        watchers: list[Watcher] = [film] if options.record_video else []
        watchers += [recording] if request.record else []
        draws: Callable[[], AbstractContextManager[None]] = nullcontext
        if self._owns_generators:
            seed = fresh_root() if options.seed is None else options.seed
            draws = PrivateStreams(derive(seed, "global", self._name.worker), self.device).activate_fast
        report_every = options.frames_per_batch or options.max_steps or _REPORT_EVERY
        return EvaluationRun(self.runner(options, watchers), request, film, recording, report_every, draws)

    def _report(self, run: EvaluationRun, episodes: range) -> Report:
        """Return the progress of a run, or its whole result if its round is over."""
        runner, per_slot = run.runner, run.request.per_slot
        if runner.unfinished:
            return Report(len(runner.rows))
        return Report(
            len(runner.rows),
            is_over=True,
            seconds=run.seconds,
            seeding=runner.seeding,
            version=self._version,
            rows={number: row for number, row in runner.rows.items() if per_slot or number in episodes},
            records=bool(env_parts.recorders(self.host.env)),
            film=run.film,
            steps=run.recording.pop_batches(),
            request=run.request if per_slot else None,
        )
