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

Beside the numbers it keeps steps, as a collector keeps them, and frames, if they are asked for:
    Step ──▶ rows of fragments, under the numbers of their episodes ──▶ batches ──▶ `joined`: those of all workers
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
from swath.errors import Superseded, WorkerLate, noted, warn_of_no_effect
from swath.evaluation import env_parts
from swath.evaluation.acting import bound, module_of, predicts, private_copy
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
from swath.rollout.hosts.sources import build
from swath.rollout.hosts.torchrl import EnvOptions
from swath.rollout.hosts.vector import AsVectorEnv, VectorHost
from swath.rollout.loop import Step
from swath.rollout.policies.binding import build_policy
from swath.rollout.policies.calling import device_of, maybe_compile
from swath.rollout.seeding import PrivateStreams
from swath.rollout.spaces import Array
from swath.seeds import derive, fresh_root
from swath.weights.snapshot import POLICY, Snapshot, require_initialized
from swath.workers.fleet_state import FIRST_LIFE
from swath.workers.tickets import Name

PORTION = 128  # how many steps are written into one piece of memory


class Recording:
    """Keeps every step of every episode that is played here; trajectory ids are the numbers of episodes.

    Args:
        version: of the weights that act.
    """

    def __init__(self, version: int) -> None:
        self._version, self._made = version, 0
        self._last: Step | None = None
        self._batches: list[TensorDictBase] = []
        self._layout: Layout | None = None
        self._buffer: Any = None
        self._rows: Any = None

    def __call__(self, step: Step, slot: int, runner: Runner) -> None:  # noqa: ARG002  all slots are written at once
        """Keep the step, if it was not kept for an earlier slot."""
        if step is self._last:
            return
        self._last, spec = step, runner.host.spec
        if self._layout is None and runner.policy is not None:
            if is_open := isinstance(spec, TensorDictSpec):
                self._buffer = TensorDictBuffer(spec, step.outputs[0], PORTION)
            else:
                self._buffer = Buffer(step.observation, step.outputs, PORTION)
            self._layout = Layout(
                spec.batch_shape, spec.observation_keys, runner.policy.keys, masked=True, open=is_open
            )
            self._truncates = spec.can_truncate
        if self._rows is None:
            self._rows, self._made = self._buffer.open(), 0
            self._ids = np.full((spec.num_envs, PORTION), NO_TRAJECTORY, dtype=np.int64)
        playing = [None if env in step.void else episode for env, episode in enumerate(runner.playing)]
        idle = [env for env, episode in enumerate(playing) if episode is None]
        self._buffer.write(self._rows, self._made, replace(step, void=idle))
        self._ids[:, self._made] = [NO_TRAJECTORY if episode is None else episode for episode in playing]
        self._made += 1
        if self._made == PORTION:
            self._seal()

    def taken(self) -> list[TensorDictBase]:
        """Batches with all steps since the last call, in the order of time."""
        if self._rows is not None:
            self._seal()
        batches, self._batches = self._batches, []
        return batches

    def _seal(self) -> None:
        assert self._layout is not None
        rows, self._rows = self._rows, None
        self._buffer.seal(rows)
        if self._made < PORTION:
            rows.blank_from(self._made)
        batch = Fragment(rows, self._ids, None, self._version).to_tensordict(self._layout)
        if not self._truncates:  # the env has no flag for what the evaluation cuts
            done = batch.get((keys.NEXT, keys.DONE))
            batch.set((keys.NEXT, keys.TRUNCATED), torch.from_numpy(rows.truncated).reshape(done.shape).to(done.device))
            batch.set(keys.TRUNCATED, torch.zeros_like(done))
        self._batches.append(batch[batch[keys.MASK]].exclude(keys.MASK))


def joined(batches: Iterable[TensorDictBase], layout: TrajFormat) -> TensorDictBase:
    """The episodes in these batches, in order: padded `[N, T_max]` with a mask, or `"cat"` `[ΣT]`.

    Args:
        batches: steps of episodes, those of each in the order of time.
        layout: `"padded"` or `"cat"`.
    """
    steps: TensorDictBase = torch.cat([*batches])
    steps = steps[steps[keys.TRAJ_IDS].argsort(stable=True)]
    steps.names = [keys.TIME]
    return split_trajectories(steps) if layout == "padded" else steps


class Film:
    """Renders after each step of episodes 0 … k-1.

    Args:
        episodes: k, how many episodes to film.
        max_bytes: frames held at most; beyond it filming stops and the evaluation goes on.

    Attributes:
        takes: frames `[H, W, 3]` uint8 by episode, one after each step.
        truncated: whether filming stopped for want of memory.
        fps: frames per second at which the env wants to be seen; 0 if it does not say.
    """

    def __init__(self, episodes: int = 0, max_bytes: int = 0) -> None:
        self.takes: dict[int, list[Array]] = {}
        self._episodes, self._free = episodes, max_bytes
        self.truncated, self.fps = False, 0.0

    def __call__(self, step: Step, slot: int, runner: Runner) -> None:  # noqa: ARG002
        """Film this slot, if its episode is among the first.

        Raises:
            ValueError: the env does not render frames.
        """
        episode = runner.playing[slot]
        if episode is None or episode >= self._episodes or self.truncated:
            return
        drawn = runner.host.render(slot)
        if drawn is None:
            raise ValueError(f"{runner.host.env} gives no frames to film; build it with render_mode='rgb_array'")
        frame = as_rgb(drawn).copy()
        self._free -= frame.nbytes
        if self._free < 0:
            self.truncated = True
        else:
            self.fps = frame_rate(runner.host.env) or 0.0
            self.takes.setdefault(episode, []).append(frame)


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
        look: nothing is played but what another driver has asked for; see `EvalWorker.look`.
        changes: options that are other than those of the worker, by name.
    """

    step: int = 0
    policy_version: int = 0
    seed: int | None = 0
    record: bool = False
    per_slot: bool = False
    until_any_done: bool = False
    look: bool = False
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
        film: of its first episodes.
        steps: batches with all steps of the part's episodes.
        misfit: why the weights that were sent last could not be put in; nothing was played then.
        request: the conditions, for a driver that has not asked for it; `None` if nothing was found.
    """

    complete: int
    over: bool = False
    seconds: float = 0.0
    seeding: Seeding = "none"
    version: int = 0
    rows: Mapping[int, EpisodeRow] = field(default_factory=dict)
    records: bool = False
    film: Film = field(default_factory=Film)
    steps: Sequence[TensorDictBase] = ()
    misfit: Exception | None = None
    request: EvalRequest | None = None


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

    def __init__(
        self, options: EvaluatorOptions, root: int = 0, name: Name = FIRST_LIFE, *, borrows: bool = False
    ) -> None:
        self._options, self._root, self._name, self._borrows = options, root, name, borrows
        # Where the process is not the worker's own others draw from its generators, and evaluations do so too.
        self._built, self._alone = not options.lent, borrows or options.place != "thread"
        self.turn, self.closed, self._open = Lock(), False, ExitStack()
        self._sent: dict[str, Snapshot] = {}
        self._version = 0
        self._evaluation = self._complete = ("", 0)  # the present one, and the one that was completed last
        self._unread: Report | None = None  # of the latter, if it is a rollout
        self._newest: dict[str, int] = {}  # by asker
        self._runner: Runner | None = None
        self._misfit: Exception | None = None
        self._failed = False
        with self._noted():
            self.host = self._host()
            with close_on_failure([self.host] if self._built else []), self._open as failing:
                self._policy = self._own_policy()
                self.device = options.policy_device or device_of(self._policy)
                self._acts = maybe_compile(
                    self._policy, options.settings.compile_policy, options.settings.cudagraph_policy
                )
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
        """Plays one evaluation with this host and policy; see `Runner`.

        Raises:
            ValueError: the policy has lazy layers that are not initialised.
        """
        if (module := module_of(self._policy)) is not None:
            require_initialized(module)
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
            self.mark_read(asker)
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
                report = self._play(range(self.host.spec.num_envs) if request.per_slot else episodes, request)
            except Exception:
                self._failed, self._runner = True, None
                raise
        self._resume = partial(self.play, evaluation, episodes, request)
        if report.over and request.per_slot and evaluation != self._complete:
            self._complete, self._unread = evaluation, replace(report, request=request)
        return report

    def look(self) -> Report:
        """Return the newest unread rollout, of any driver; play one that is not complete for a slice of time.

        Raises:
            Exception: what building or stepping an env, or the policy raised.
        """
        if self._unread is None and self._runner is not None and self._runner.unfinished:
            self._resume()
            if self._unread is None:
                return Report(0)
        found, self._unread = self._unread, None
        return Report(0, over=True) if found is None else found

    def mark_read(self, asker: str) -> None:
        """Forget the rollout that is unread if this driver has asked for it: it has read it, or asked for another."""
        if self._complete[0] == asker:
            self._unread = None

    def dump(self, step: int, write: bool) -> list[str]:
        """Have the recorders of this worker's envs write what they have recorded; what went wrong, in words.

        Args:
            step: the training step it is written under.
            write: whether those of the very first slot write it.
        """
        with self.turn:
            first = first_env(self.host.env)
            failures = env_parts.dump_recorders(first, step) if write and self._name.worker == 0 else []
            env_parts.empty_recorders(self.host.env)
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
        env_options = EnvOptions(device=device, separate=True)
        if source is None:
            host: Host = VectorHost(AsVectorEnv(options.env), keep_float64=options.keep_float64)
        else:
            host = build(source, env_options)
        with close_on_failure([host] if self._built else []):
            if options.num_envs not in (None, n := host.spec.num_envs):
                raise ValueError(f"num_envs={options.num_envs} for {options.env}, which has {n} already; leave it out")
            if device is not None and host.spec.device is not None and device.type != host.spec.device.type:
                raise ValueError(f"env_device={str(device)!r}: these envs run on the CPU; leave it out or give 'cpu'")
        self._open.enter_context(env_parts.frozen(host.env))
        return host

    def _own_policy(self) -> Any:
        factory, policy, device = self._options.policy_factory, self._options.policy, self._options.policy_device
        if factory is not None:
            # From generators that are seeded equally in every worker and life.
            with PrivateStreams(derive(self._root, "policy"), device).activate():
                policy = build_policy(factory, first_env(self.host.env))
        borrowed = self._borrows and predicts(policy)
        if not borrowed and (factory is None or not self._alone):  # others may hold what a factory gave
            policy = private_copy(policy, or_itself=factory is not None)
        if (module := module_of(policy)) is not None:
            for part in module.modules() if borrowed else ():
                self._open.callback(setattr, part, "training", part.training)
            module.eval()
        if device is not None and isinstance(policy, torch.nn.Module):
            policy.to(device)
        elif device is not None and predicts(policy):
            warn_of_no_effect("device", f"{type(policy).__name__}.predict says itself where it runs")
        return policy

    def _renew(self) -> None:
        """After a failure: other envs, which get what those before them had been sent. Instances are reset only."""
        if self._built:
            self._open.close()
            close_quietly(self.host)
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
            ids = [POLICY, *(f"env.{each}" for each in env_parts.paths_of(first_env(self.host.env)))]
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
            changes["record_video"] = int(env_parts.renders(first_env(env)))
        options = mine if changes == {"seed": mine.seed} else replace(mine, **changes)  # which checks it all again
        self._film = Film(options.record_video, options.max_video_bytes // options.num_workers)
        self._recording = Recording(request.policy_version)
        asked = (self._film, options.record_video), (self._recording, request.record)
        self._runner = self.runner(options, [watcher for watcher, wanted in asked if wanted])
        self._report_every = options.frames_per_batch or options.max_steps or _REPORT_EVERY
        self._drawing: Callable[[], AbstractContextManager[None]] = nullcontext
        if self._alone:
            root = fresh_root() if options.seed is None else options.seed
            self._drawing = PrivateStreams(derive(root, "global", self._name.worker), self.device).activate_fast
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
        return Report(
            len(runner.rows),
            over=True,
            seconds=self._seconds,
            seeding=runner.seeding,
            version=self._version,
            rows={episode: row for episode, row in runner.rows.items() if episode in episodes},
            records=bool(env_parts.recorders(self.host.env)),
            film=self._film,
            steps=self._recording.taken(),
        )
