"""The worker: a host, a policy and the loop, which together make fragments.

draw ──▶ begin episodes where needed ──▶ T × steps() ──▶ Rows ──▶ ids ──▶ Fragment(version)

In the process of the user, the user's own policy acts within draws, and a snapshot of it in the background: training in
the user's thread never reaches the background thread unless it is published.
"""

from __future__ import annotations

import copy
import logging
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import nn

from swath.collectors.messages import Seeding, Tally, WorkerRequest
from swath.errors import warn_of_no_effect
from swath.keys import ACTION, REWARD, under_next
from swath.rollout.buffer import Fragment, Layout, Rows, TensorDictRows
from swath.rollout.episodes.statistics import NO_TRAJECTORY, TrajectoryIds
from swath.rollout.failures import Failures
from swath.rollout.hosts.base import EnvRaised, TensorDictSpec, close_on_failure, first_env
from swath.rollout.hosts.sources import build
from swath.rollout.hosts.torchrl import EnvOptions
from swath.rollout.loop import Actor, LoopState, Rules, Step, StepLimit, restart_all, steps
from swath.rollout.policies.binding import bind, build_policy, make_buffer, random_stand_in
from swath.rollout.policies.calling import (
    BindingOptions,
    BoundPolicy,
    ExplorationType,
    FiniteCheck,
    device_of,
    maybe_compile,
    require_finite,
)
from swath.rollout.random_policy import RandomPolicy
from swath.rollout.seeding import PrivateStreams, preserve_generators
from swath.rollout.spaces import Leaves
from swath.seeds import derive, fresh_root

MOST_FAILURES_IN_A_ROW = 3
_log = logging.getLogger("swath")


class Worker:
    """Makes fragments of T steps of B envs. Used by one thread at a time.

    Args:
        request: what it is made of.

    Attributes:
        host: the envs.
        policy: what acts within draws: as given, or a copy where its device is another.
        device: where its inputs go; `None` for the CPU.
        acts: what acts now.
        options: when episodes begin and end, and what to do when envs fail.
        layout: names and extras of its fragments.
        worker_idx: which worker it is.
        life: which of its lives.
        n_steps: T.
        version: of the policy's weights.
        tally: what it has done, and what went wrong.
        seeding: where its seeds come from; `None` if it was never seeded.
        beside_others: other threads draw from the process's generators meanwhile, so these are left alone.

    Raises:
        Exception: whatever is wrong with env or policy, after everything that was built is closed.
    """

    def __init__(self, request: WorkerRequest) -> None:
        options, source = request.options, request.source
        self.options, self.worker_idx, self.life = options, request.worker, request.life
        host = self.host = build(source, EnvOptions(options.max_frames, options.devices.env or options.devices.common))
        copies = host.env[1:] if isinstance(host.env, list) else []  # an instance of the user's stays open
        with close_on_failure(copies if source.is_instance else [host]):
            self._require_possible(request)
            self.version, self.beside_others, self.tally = 0, False, Tally()
            self._checked_steps = 0
            self._observation = self._first_reset(request.copies_env)
            policy = RandomPolicy() if request.policy is None else request.policy
            if callable(options.policy_factory):
                policy = build_policy(options.policy_factory, first_env(host.env))
            self.policy = self.acts = placed(policy, options.devices.policy)
            self.device = options.devices.policy or device_of(self.policy)
            with nullcontext() if request.draws is None else PrivateStreams(request.draws, self.device).activate():
                draws_first = request.draws_first and isinstance(host.spec, TensorDictSpec)
                self._own = self._bound(self.policy, self._observation, first=draws_first)
            if not self._own.explores and options.exploration is not ExplorationType.RANDOM:
                warn_of_no_effect(
                    f"exploration_type={options.exploration.name}",
                    "the policy does not take it; give it a parameter of that name, or use a TensorDict module",
                )
            self._act_with(self._own)
            self.layout = Layout(
                batch_shape=host.spec.batch_shape,
                observation=host.spec.observation_keys,
                outputs=self.bound.keys,
                track_ids=options.track_traj_ids,
                track_version=bool(options.track_policy_version),
                compact_obs=options.compact_obs,
                masked=host.spec.next_step_autoreset or request.masked,
                open=isinstance(host.spec, TensorDictSpec),
            )
            self.seeding: Seeding | None = None
            self._stage = LoopState(self._observation)
            self._stale = False
            self._rebuilds = request.here and options.on_env_error == "restart"
            self._broken: Exception | None = None
            self._streams: PrivateStreams | None = None
            self._ids = self._new_ids()
            limited_there = isinstance(host.spec, TensorDictSpec)  # by the envs themselves
            limit = StepLimit(host.spec, None if limited_there else options.max_frames)
            limit.restart(range(host.spec.num_envs))
            resets = options.on_env_error == "reset"
            failures = Failures(MOST_FAILURES_IN_A_ROW - 1, self._count) if resets else Failures()
            self._rules = Rules(limit, restart_all, failures)
            self.make_steps(-(-request.frames // host.spec.num_envs))
            if request.seed is not None:
                self.seed_with(request.seed)

    @property
    def next_id(self) -> int:
        """Above every trajectory id given."""
        return self._ids.next_id

    @property
    def who(self) -> str:
        """Which worker this is, in words."""
        return f"worker {self.worker_idx} (life {self.life}, policy version {self.version})"

    @property
    def module(self) -> nn.Module | None:
        """What holds the weights that act now; `None` if there are none."""
        return self.acts if isinstance(self.acts, nn.Module) and self.acts.state_dict() else None

    def act_in_background(self, background: bool) -> None:
        """From the next fragment on a copy of the policy acts, beside threads that draw too, or the policy again."""
        self.beside_others = background
        copied = background and isinstance(self.policy, nn.Module)
        self.acts = copy.deepcopy(self.policy) if copied else self.policy
        bound = self._bound(self.acts, self._stage.observation) if copied else self._own
        if bound is not self.bound:
            bound.take_over(self.bound)  # what was remembered
            self._act_with(bound)

    def make_fragment(self, *, randomly: bool = False) -> Fragment:
        """Collect one fragment.

        Raises:
            Exception: what an env or the policy raised, as its own type with a note; the envs then begin new episodes
                with the next fragment.
        """
        failures = 0
        while True:
            try:
                self._rebuild()
                return self._collect(randomly=randomly)
            except EnvRaised as raised:
                self.tally.env_errors += 1
                failures += 1
                self._broken = raised.cause if self._rebuilds else None
                if self._broken is None or failures == MOST_FAILURES_IN_A_ROW:
                    raise self._noted(raised) from raised.cause.__cause__

    def stopped(self) -> bool:
        """Whether the fragment ends with this step. To be overridden."""
        return False

    def reset(self, index: list[int] | None = None) -> None:
        """Begin fresh episodes with the next fragment, in all envs or in these."""
        if index is None:
            self._stale = True
        else:
            self._stage.ended_envs = sorted({*self._stage.ended_envs, *index})
            self._ids.begin(index)

    def seed_with(self, seeding: Seeding) -> None:
        """Seed every env and the generators of torch, numpy and `random` as this worker sees them; begin episodes.

        Raises:
            Exception: what an env raised, as its own type with a note.
        """
        n, host, root = self.host.spec.num_envs, self.host, seeding.root
        if host.spec.seeding == "none":
            warn_of_no_effect("seed", f"{type(host.env).__name__} takes seeds only where it is made")
        first = self.worker_idx * (seeding.stride or n)
        seeds = [root] * n if seeding.static else [derive(root, "env", first + env, self.life) for env in range(n)]
        self.seeding, self._stale, self._checked_steps = seeding, True, 0
        if not seeding.envs_only:
            self._streams = PrivateStreams(derive(root, "policy", self.worker_idx, self.life), self.device)
        try:
            with self._random_states():
                self._reset(seeds)
        except EnvRaised as raised:
            raise self._noted(raised) from raised.cause.__cause__

    def begin_life(self, life: int, seeding: Seeding | None) -> None:
        """Go on under another life number, so that ids exceed all before; fresh episodes begin.

        Args:
            life: the number.
            seeding: where seeds come from; without it the process's generators are used.
        """
        self.life, self.seeding, self._stale = life, seeding, True
        self._ids = self._new_ids()
        if seeding is None:
            self._streams = None
        else:
            self.seed_with(seeding)

    def move_to(self, index: int) -> None:
        """Be worker `index` with fresh episodes; in a new life if ids were given, so that none is given twice."""
        if index != self.worker_idx:
            self.worker_idx = index
            self.begin_life(self.life + (self._ids.n_ids > 0), self.seeding)

    def make_steps(self, n_steps: int) -> None:
        """Make fragments of so many steps from the next one on."""
        self.n_steps = n_steps
        self._buffer = make_buffer(self.bound, self._observation, n_steps)

    def zero_batch(self) -> Any:
        """A batch of zeros with the keys, shapes and dtypes of real ones."""
        rows = self._buffer.open()
        self._buffer.seal(rows)
        rows.blank_from(0)
        rows.valid = None
        ids = np.zeros(rows.terminated.shape, dtype=np.int64)
        counts = None if self.options.max_frames is None else ids.copy()
        return Fragment(rows, ids, counts, 0).to_tensordict(self.layout)

    def lose(self, frames: int) -> None:
        """A fragment with so many frames will not be used: it is counted, and fresh episodes begin."""
        self._stale = True
        self.tally.fragments_lost += 1
        self.tally.frames += frames
        self.tally.frames_discarded += frames

    def close(self) -> None:
        """Close the envs."""
        self.host.close()

    def _require_possible(self, request: WorkerRequest) -> None:
        """Check that the envs can do what is asked of them.

        Raises:
            RuntimeError: no entry says that an episode was truncated, and the last step of a fragment must be marked.
            ValueError: a device that they cannot go to; or they step only as a whole, and cannot follow the rules for
                single ones.
        """
        spec, options, device = self.host.spec, self.options, self.options.devices.env
        if device is not None and spec.device is not None and device.type != spec.device.type:
            raise ValueError(
                f"env_device={str(device)!r}: gymnasium's and PettingZoo's envs run on the CPU; leave it out"
            )
        if options.set_truncated and not spec.can_truncate:
            raise RuntimeError(
                "set_truncated=True, but no truncated key could be found in the environment; "
                "call env.add_truncated_keys() before handing it in"
            )
        if options.max_frames is not None and not spec.resettable:
            raise ValueError(
                f"max_frames_per_traj={options.max_frames} must reset single envs of a vector env that cannot; "
                "use one with autoreset mode DISABLED, or gymnasium's SyncVectorEnv"
            )
        if options.on_env_error == "reset" and not spec.steps_singly and request.source.is_instance:
            kind = type(request.source.env).__name__
            raise ValueError(f"on_env_error='reset' builds {kind} anew: pass a callable that returns it")

    def _first_reset(self, copies: bool) -> Leaves:
        """The reset with which the first episodes begin; copies of one instance get seeds of their own."""
        n, root = self.host.spec.num_envs, fresh_root()
        try:
            observation = self.host.reset_all([derive(root, "env", env) for env in range(n)] if copies else None)
        except EnvRaised as raised:
            raised.cause.add_note(f"raised by the first reset of env {raised.env}")
            raise raised.cause from raised.cause.__cause__
        if self.options.check_finite:
            require_finite("observation", self.host.spec.observation_keys, observation, self._moment)
        return observation

    def _bound(self, policy: Any, observation: Leaves, *, first: bool = False) -> BoundPolicy:
        """Bind a policy to the envs by one call on this observation, which draws as TorchRL's collector if `first`."""
        options = self.options
        called = maybe_compile(policy, options.compile_policy, options.cudagraph_policy)
        recurrent = options.auto_register_policy_transforms is not False
        binding = BindingOptions(self.device, options.exploration, options.trust_policy, recurrent, first)
        with nullcontext() if first else preserve_generators(self.device), torch.no_grad():
            return bind(called, self.host.spec, observation, binding)

    def _act_with(self, policy: BoundPolicy) -> None:
        self.bound = policy
        self._acting: Actor = policy
        self._randomly: Actor = random_stand_in(self.host.spec, policy)
        if self.options.check_finite:
            observed, moment = self.host.spec.observation_keys, self._moment
            self._acting = FiniteCheck(policy, observed, moment)
            self._randomly = FiniteCheck(self._randomly, observed, moment, checks_outputs=False)

    def _moment(self, env: int) -> str:
        """Name the step that an env makes now, counted from 0 where it was seeded, and its last seed."""
        return f"step {self._checked_steps} (seed {self.host.seed_of(env)})"

    def _require_finite(self, step: Step) -> None:
        """Raise `NonFinite` if a reward or observation of this step is not finite, and count the step."""
        output, observed = step.outputs[0], self.host.spec.observation_keys
        entries, n = step.next_observation, self.host.spec.num_envs
        if isinstance(output, TensorDictBase):
            entries = [output.get(under_next(key)).reshape(n, -1) for key in observed]
            output = output.get(ACTION, None)

        def moment(env: int) -> str:
            action = None if output is None else torch.as_tensor(output).reshape(n, -1)[env].tolist()
            return f"{self._moment(env)} after the action {action}"

        require_finite("next", (REWARD, *observed), [step.reward, *entries], moment)
        self._checked_steps += 1

    def _collect(self, *, randomly: bool) -> Fragment:
        rows, made = self._buffer.open(), 0
        try:
            with torch.no_grad(), self._random_states():
                if self._stale or self.options.reset_at_each_iter:
                    self._reset(None)
                write, stopped, check_finite = self._buffer.write, self.stopped, self.options.check_finite
                source = steps(self.host, self._randomly if randomly else self._acting, self._stage, self._rules)
                for step in islice(source, self.n_steps):
                    write(rows, made, step)
                    made += 1
                    if check_finite:
                        self._require_finite(step)
                    if stopped():
                        break
            return self._fragment(rows, made)
        except BaseException as error:
            self.lose(made * self.host.spec.num_envs if rows.valid is None else int(rows.valid[:, :made].sum()))
            if isinstance(error, Exception) and not isinstance(error, EnvRaised):
                error.add_note(f"raised while {self.who} collected")
            raise

    def _fragment(self, rows: Rows | TensorDictRows, made: int) -> Fragment:
        self._buffer.seal(rows)
        if made < self.n_steps:
            rows.blank_from(made)
        if rows.restarted:
            self._ids.begin(rows.restarted)
        # Rows that were never made have no ids, and the episodes go on behind them.
        valid = None if rows.valid is None else rows.valid[:, :made]
        ids, counts = self._ids.label(rows.reward[:, :made], rows.last[:, :made], valid)
        if made < self.n_steps:
            behind = ((0, 0), (0, self.n_steps - made))
            ids = np.pad(ids, behind, constant_values=NO_TRAJECTORY)
            counts = None if counts is None else np.pad(counts, behind)
        return Fragment(rows, ids, counts, self.version, made)

    def _reset(self, seeds: list[int] | None) -> None:
        self._begin_with(self._rules.failures.begin_all(self.host, seeds))

    def _begin_with(self, observation: Leaves) -> None:
        """Episodes have begun in all envs, with these observations."""
        self._stage.observation = observation
        self._stage.ended_envs = ()
        everyone = range(self.host.spec.num_envs)
        self.bound.begin(everyone)
        self._rules.limit.restart(everyone)
        self._ids.begin()
        self._stale = False

    def _rebuild(self) -> None:
        """Build the env source anew if it has failed, and go on in a new life."""
        if self._broken is None:
            return
        self.tally.restarts += 1
        _log.warning("%s: %r; its envs are built anew, in life %d", self.who, self._broken, self.life + 1)
        observation = self.host.rebuild()
        self._broken = None
        self.begin_life(self.life + 1, self.seeding)
        if self.seeding is None:
            self._begin_with(observation)

    def _new_ids(self) -> TrajectoryIds:
        counted = self.options.max_frames is not None
        return TrajectoryIds(self.host.spec.num_envs, worker=self.worker_idx, life=self.life, counts_steps=counted)

    def _random_states(self) -> AbstractContextManager[None]:
        return nullcontext() if self._streams is None or self.beside_others else self._streams.activate()

    def _count(self, env: int, error: Exception) -> None:  # noqa: ARG002  only counted, not raised
        self.tally.env_errors += 1

    def _noted(self, raised: EnvRaised) -> Exception:
        seed = self.host.seed_of(raised.env)
        raised.cause.add_note(f"raised by env {raised.env} (seed {seed}) of {self.who}")
        return raised.cause


def placed(policy: Any, device: torch.device | None) -> Any:
    """The policy itself, or a copy on `device` if its weights are elsewhere."""
    if device is None or not isinstance(policy, nn.Module):
        return policy
    tensors = [value for value in policy.state_dict().values() if isinstance(value, torch.Tensor)]
    if all(tensor.device.type == device.type and device.index in (None, tensor.device.index) for tensor in tensors):
        return policy
    return copy.deepcopy(policy).to(device)
