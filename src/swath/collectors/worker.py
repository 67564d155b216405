"""The worker: a host, a policy and the loop, which make fragments, and the answers to its collection.

draw ──▶ begin episodes where needed ──▶ T × steps() ──▶ Rows ──▶ ids ──▶ Fragment(version)

In the process of the user, the user's own policy acts within draws, and a snapshot of it in the background: training in
the user's thread never reaches the background thread unless it is published.
"""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from swath.collectors.messages import Description, FragmentRequest, Head, Seeding, Tally, WorkerRequest, signature_of
from swath.collectors.remote import LIFE, TRAJ_POOL, WEIGHTS, Responder, follow, last_life_of, require_worker_state
from swath.errors import note_source, warn_of_no_effect
from swath.rollout.buffer import Fragment, Layout, Rows, TensorDictRows
from swath.rollout.episodes.statistics import NO_TRAJECTORY, TrajectoryIds, trajectory_ids
from swath.rollout.failures import Failures
from swath.rollout.hosts.base import EnvRaised, Host, HostSpec, TensorDictSpec, close_on_failure, first_env
from swath.rollout.hosts.parallel import ProcessEnvs, ProcessHost
from swath.rollout.hosts.sources import build
from swath.rollout.hosts.torchrl import CREATOR, reduce_env_creator
from swath.rollout.infos import info_reader
from swath.rollout.loop import Actor, LoopState, Rules, Step, StepLimit, restart_all, steps
from swath.rollout.memory import convert, copy_leaf, pad_steps
from swath.rollout.overlap import Overlap
from swath.rollout.planned import Planned, Plans
from swath.rollout.policies.binding import bind, build_policy, make_buffer, random_stand_in
from swath.rollout.policies.calling import (
    BindingOptions,
    BoundPolicy,
    ExplorationType,
    FiniteCheck,
    device_of,
    maybe_compile,
    move_to_device,
    require_finite,
    require_finite_step,
)
from swath.rollout.random_policy import RandomPolicy
from swath.rollout.seeding import PrivateStreams, preserve_generators
from swath.rollout.spaces import Leaves
from swath.seeds import derive, fresh_root
from swath.weights.snapshot import POLICY, Manifest, Snapshot, plan_copy, plan_update
from swath.workers.packing import register_reducer

MOST_FAILURES_IN_A_ROW = 3
_log = logging.getLogger("swath")
register_reducer(*CREATOR, reduce_env_creator)


class Worker(Responder):
    """Makes fragments of T steps of B envs. Used by one thread at a time.

    Args:
        request: its start-up data.

    Attributes:
        host: the envs.
        policy: acts within draws; a copy of the user's where its device is another.
        device: where the policy's inputs go; `None` for the CPU.
        acting_policy: acts now: the policy, or a copy of it in the background.
        options: when episodes begin and end, and what to do when envs fail.
        layout: names and extras of its fragments.
        worker_idx: its index.
        life: which of its lives.
        n_steps: T.
        version: version of the policy's weights.
        tally: counts of this life.
        seeding: source of its seeds; `None` if it was never seeded.
        in_background: whether other threads draw from the process's generators; the worker then neither seeds nor
            replaces them.

    Raises:
        Exception: whatever is wrong with env or policy, after everything that was built is closed.
    """

    def __init__(self, request: WorkerRequest) -> None:
        super().__init__(request)
        self._request, self._number, self._interrupted = FragmentRequest(), 0, request.interrupted
        self._stop_numbers: Any = None
        self._in_process = request.in_process
        options, source = request.options, request.source
        self.options, self.worker_idx, self.life = options, request.worker, request.life
        host = self.host = build(source, options.env_options)
        copies = host.env[1:] if isinstance(host.env, list) else []  # an instance of the user's stays open
        with close_on_failure(copies if source.is_instance else [host]):
            self._require_supported(request)
            self.version, self.in_background, self.tally = 0, False, Tally()
            self._checked_steps = 0
            self._observation = self._first_reset(request.copies_env)
            policy = RandomPolicy() if request.policy is None else request.policy
            if callable(options.policy_factory):
                policy = build_policy(options.policy_factory, first_env(host.env))
            self.policy = self.acting_policy = move_to_device(policy, options.devices.policy)
            self.device = options.devices.policy or device_of(self.policy)
            seed = request.lazy_seed
            with nullcontext() if seed is None else PrivateStreams(seed, self.device).activate():
                draws_first = request.draws_first and isinstance(host.spec, TensorDictSpec)
                self._bound_policy = self._bind(self.policy, self._observation, host.spec, draws=draws_first)
            if not self._bound_policy.explores and options.exploration is not ExplorationType.RANDOM:
                warn_of_no_effect(
                    f"exploration_type={options.exploration.name}",
                    "the policy does not take it; give it a parameter of that name, or use a TensorDict module",
                )
            self._overlap: Overlap | None = None
            if options.overlap and isinstance(host, ProcessHost):
                self._overlap = Overlap([(half, self._make_rules(half.spec)) for half in host.halves()])
            self._act_with(self._bound_policy, self._observation)
            self._info_reader = info_reader(options.info_keys, host.spec)
            self.layout = Layout(
                batch_shape=host.spec.batch_shape,
                observation=host.spec.observation_keys,
                outputs=self.bound.keys,
                infos=() if self._info_reader is None else self._info_reader.keys,
                track_ids=options.track_traj_ids,
                track_version=bool(options.track_policy_version),
                compact_obs=options.compact_obs,
                masked=host.spec.next_step_autoreset or request.masked,
                open=isinstance(host.spec, TensorDictSpec),
            )
            self.seeding: Seeding | None = None
            self._stage = LoopState(self._observation)
            self._reset_due = False
            self._rebuilds = request.in_process and options.on_env_error == "restart"
            self._env_error: Exception | None = None
            self._streams: PrivateStreams | None = None
            self._ids = self._new_ids()
            self._rules = self._make_rules(host.spec)
            self.make_steps(-(-request.frames // host.spec.num_envs))
            if request.seed is not None:
                self.seed_with(request.seed)
            self._begin_writing(request, self.layout, self.hooks)

    @property
    def label(self) -> str:
        """Return index, life and version in words."""
        return f"worker {self.worker_idx} (life {self.life}, policy version {self.version})"

    @property
    def module(self) -> nn.Module | None:
        """Return the module that acts now; `None` if the policy has no weights."""
        policy = self.acting_policy
        return policy if isinstance(policy, nn.Module) and policy.state_dict() else None

    def act_in_background(self, background: bool) -> None:
        """Act with a copy of the policy from the next fragment on, or with the policy itself again."""
        self.in_background = background
        is_copied = background and isinstance(self.policy, nn.Module)
        self.acting_policy = copy.deepcopy(self.policy) if is_copied else self.policy
        observation = self._stage.observation
        bound = self._bind(self.acting_policy, observation, self.host.spec) if is_copied else self._bound_policy
        if bound is not self.bound:
            bound.take_over(self.bound)  # its recurrent state
            self._act_with(bound, observation)

    def produce(self, request: FragmentRequest) -> tuple[Head, Any]:
        """Make one fragment, and return its head and its body.

        The body is the fragment's arrays, or its batch where entries may have any form or a hook gets the batch. If the
        worker writes, the writer calls the hook with what is written.
        """
        if self.hooks.before is not None:
            with note_source(f"pre_collect_hook in {self.label}"):
                self.hooks.before()
        if request.frames and (n_steps := -(-request.frames // self.host.spec.num_envs)) != self.n_steps:
            self.make_steps(n_steps)
        since, fragment = self._ids.next_id, self.make_fragment(request)
        frames, n_made, episodes = fragment.frames, fragment.steps or 0, self._ids.ended_episodes.tobytes()
        body, hook = fragment, self.hooks.after if self._writer is None else None
        if not self._in_process and self._writer is None and hook is None:
            fragment.move_to_cpu()
        if hook is not None or self.layout.open:
            body = fragment.to_tensordict(self.layout)
        if hook is not None:
            try:
                with note_source(f"post_collect_hook in {self.label}"):
                    hook(body)
            except BaseException:
                self.lose_fragment(frames)
                raise
        self.tally.frames += frames
        counted = self._number, since, self.current_tally()
        return Head(self.life, self.version, frames, n_made, episodes, self._ids.next_id, *counted), body

    def make_fragment(self, request: FragmentRequest) -> Fragment:
        """Make one fragment.

        Raises:
            Exception: what an env or the policy raised, as its own type with a note; the envs then begin new episodes
                with the next fragment.
        """
        self._request, self._number, failures = request, self._number + 1, 0
        self._stop_numbers = None if request.stop_numbers is None else request.stop_numbers.open()
        while True:
            rows, n_made = None, 0
            try:
                self._rebuild()
                plan = self._choose_plan(randomly=request.randomly)
                buffer = self._buffer if plan is None else plan.buffer(self.n_steps)
                rows, check_finite = buffer.open(), self.options.check_finite
                with torch.no_grad(), self._random_states():
                    if self._reset_due or self.options.reset_at_each_iter:
                        self._reset(None)
                    actor = self._random_actor if request.randomly else self._actor
                    plain = nullcontext((self.host, actor, self._stage))
                    with plain if plan is None else plan.continuing(self._stage) as loop_arguments:
                        loop, is_interrupted = self._loop(loop_arguments, randomly=request.randomly)
                        for step in islice(loop, self.n_steps):
                            buffer.write(rows, n_made, step)
                            n_made += 1
                            if check_finite:
                                require_finite_step(step, self.host.spec, self._describe_step)
                                self._checked_steps += 1
                            if is_interrupted():
                                break
                buffer.seal(rows)
                return self._seal(rows, n_made)
            except BaseException as error:
                self._note_failure(error, rows, n_made)
                if not isinstance(error, EnvRaised):
                    raise
                failures += 1
                if self._env_error is None or failures == MOST_FAILURES_IN_A_ROW:
                    raise self._cause_of(error) from error.cause.__cause__

    def is_interrupted(self) -> bool:
        """Return whether the collection, or the user's own interruptor, ends the fragment with this step."""
        if self._stop_numbers is not None and self._stop_numbers[self._request.entry] >= self._request.number:
            return True
        return self._interrupted is not None and self._interrupted()

    def reset(self, index: list[int] | None = None) -> None:
        """Begin fresh episodes with the next fragment, in all envs or in the ones of an index."""
        self._drop_unwritten()
        if index is None:
            self._reset_due = True
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
        self._drop_unwritten()
        first = self.worker_idx * (seeding.stride or n)
        seeds = [root] * n if seeding.static else [derive(root, "env", first + env, self.life) for env in range(n)]
        self.seeding, self._reset_due, self._checked_steps = seeding, True, 0
        if not seeding.envs_only:
            self._streams = PrivateStreams(derive(root, "policy", self.worker_idx, self.life), self.device)
        try:
            with self._random_states():
                self._reset(seeds)
        except EnvRaised as raised:
            raise self._cause_of(raised) from raised.cause.__cause__

    def begin_life(self, life: int, seeding: Seeding | None) -> None:
        """Take another life number, so that ids exceed all before; begin fresh episodes.

        Args:
            life: the number.
            seeding: source of seeds; without it the process's generators are used.
        """
        self._drop_unwritten()
        self.life, self.seeding, self._reset_due = life, seeding, True
        self._ids = self._new_ids()
        if seeding is None:
            self._streams = None
        else:
            self.seed_with(seeding)

    def move_to(self, index: int) -> None:
        """Take the index of another worker and begin fresh episodes; in a new life if ids have been used."""
        if index != self.worker_idx:
            self.worker_idx = index
            self.begin_life(self.life + (self._ids.n_ids > 0), self.seeding)

    def make_steps(self, n_steps: int) -> None:
        """Set the number of steps of the next fragments."""
        self.n_steps = n_steps
        options = self.options.final_observation, self._info_reader
        self._buffer = make_buffer(self.bound, self._observation, n_steps, *options)

    def zero_batch(self) -> Any:
        """Return a batch of zeros with the keys, shapes and dtypes of real ones."""
        rows = self._buffer.open()
        self._buffer.seal(rows)
        rows.blank_from(0)
        rows.valid = None
        ids = convert(np.zeros(rows.terminated.shape, dtype=np.int64), rows.terminated)
        counts = None if self.options.max_frames is None else copy_leaf(ids)
        return Fragment(rows, ids, counts, 0).to_tensordict(self.layout)

    def lose_fragment(self, frames: int) -> None:
        """Count a fragment with this many frames as lost, and begin fresh episodes."""
        self._reset_due = True
        self.tally.fragments_lost += 1
        self.tally.frames += frames
        self.tally.frames_discarded += frames

    def current_tally(self) -> Tally:
        """Return the counts of this life, without frames that it has written."""
        return replace(self.tally)

    def close(self) -> None:
        """Close the envs."""
        self.host.close()

    def describe(self) -> Description:
        """Return the shapes of its fragments and weights; without entries in this process, where no other worker is."""
        n_envs, layout, manifest = self.host.spec.num_envs, self.layout, Manifest.of(self.policy)
        signature = {} if self._in_process else signature_of(self.zero_batch(), len(layout.batch_shape) + 1)
        devices = getattr(first_env(self.host.env), "device", None), self.device
        return Description(n_envs, self.n_steps, layout, manifest, signature, *devices, self.plans.status)

    def next(self) -> Any:
        """Return a batch to a user of this worker's handle; the collection does not see it."""
        return self.make_fragment(FragmentRequest()).to_tensordict(self.layout)

    def stats(self) -> dict[str, Any]:
        """Return life, version and counts."""
        return {"life": self.life, "policy_version": self.version, "plan": self.plans.status, **asdict(self.tally)}

    @property
    def env(self) -> Any:
        """Return the live env, vector env, or list of envs."""
        return self.host.env

    def get_model(self, model_id: str) -> Any:
        """Return the model of an id: the policy, or the object at the end of a path."""
        return self.policy if model_id == POLICY else follow(self, model_id)

    def getattr_env(self, name: str) -> Any:
        """Return an attribute of the first env."""
        env = self.host.env
        return env.map(partial(follow, path=name))[0] if isinstance(env, ProcessEnvs) else follow(first_env(env), name)

    def getattr_policy(self, name: str) -> Any:
        """Return an attribute of the policy."""
        return follow(self.policy, name)

    def weights_version(self) -> int:
        """Return the version of its weights."""
        return self.version

    def apply_weights(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""
        modules = {model_id: self.module if model_id == POLICY else self.get_model(model_id) for model_id in models}
        changes = [plan_copy(models[model_id], module) for model_id, module in modules.items() if module is not None]
        for change in changes:
            change()
        self.version = version

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return weights, transforms, counters, version, seeds and life."""
        saved, stateful = OrderedDict[str, Any](), getattr(self.host, "stateful", None)
        if self.module is not None:
            saved[WEIGHTS] = OrderedDict(
                (name, value.detach().clone() if isinstance(value, torch.Tensor) else value)
                for name, value in self.module.state_dict().items()
            )
        saved["env_state_dict"] = OrderedDict() if stateful is None else stateful.state_dict()
        saved["frames"], saved["iter"] = self.tally.frames, self._number - 1
        saved[TRAJ_POOL] = {"traj_id": torch.tensor(self._ids.next_id, dtype=torch.int64)}
        saved["policy_version"] = self.version
        saved |= Seeding.state_of(self.seeding)
        saved[LIFE] = self.life
        return saved

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore a saved state, in a new life, so that ids exceed all earlier ids.

        Raises:
            TypeError: no state dict.
            KeyError: parts are missing, unless `strict` is false.
            ValueError: weights, for a policy that has none; also only if `strict`. In all cases nothing has changed.
        """
        require_worker_state(state_dict, has_weights=self.module is not None, strict=strict)
        stateful, weights, changes = getattr(self.host, "stateful", None), state_dict.get(WEIGHTS), []
        if self.module is not None and weights is not None:
            modules = [self.policy] if self.acting_policy is self.policy else [self.policy, self.acting_policy]
            changes = [plan_update(module, weights) for module in modules]
        life = max(self.life, last_life_of(state_dict)) + 1
        version = int(state_dict.get("policy_version", self.version))
        for change in changes:
            change()
        self.version, seeding = version, self.seeding
        if stateful is not None and state_dict.get("env_state_dict"):
            stateful.load_state_dict(state_dict["env_state_dict"])
        if "seed" in state_dict:
            seed = state_dict["seed"]
            static = bool(state_dict.get("static_seed", False))
            seeding = None if seed is None else replace(seeding or Seeding(seed), root=seed, static=static)
        self.begin_life(life, seeding)

    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None) -> None:
        """Restore a saved state without weights, which the channel brings; `seeding` replaces the saved seed."""
        if seeding is not None:
            self.seeding, saved = seeding, {name: part for name, part in saved.items() if name != "seed"}
        self.load_state_dict(saved, strict=False)

    def _require_supported(self, request: WorkerRequest) -> None:
        """Check that the envs support the options.

        Raises:
            RuntimeError: the last step of a fragment must be marked as truncated, but the envs have no entry for it.
            ValueError: a device that they cannot go to, or an option for single envs while they step only together.
        """
        spec, options, device = self.host.spec, self.options, self.options.devices.env
        if device is not None and spec.device is not None and device.type != spec.device.type:
            raise ValueError(
                f"env_device={str(device)!r}: the env runs on {spec.device}, where it was built; leave it out"
            )
        if options.set_truncated and not spec.can_truncate:
            raise RuntimeError(
                "set_truncated=True, but no truncated key could be found in the environment; "
                "call env.add_truncated_keys() before handing it in"
            )
        if options.overlap and not isinstance(self.host, ProcessHost):
            raise ValueError("overlap=True steps halves of gymnasium envs, and these are others; leave it out")
        if options.max_frames is not None and not spec.resettable:
            raise ValueError(
                f"max_frames_per_traj={options.max_frames} must reset single envs of a vector env that cannot; "
                "use one with autoreset mode DISABLED, or gymnasium's SyncVectorEnv"
            )
        if options.on_env_error == "reset" and not spec.steps_singly and request.source.is_instance:
            kind = type(request.source.env).__name__
            raise ValueError(f"on_env_error='reset' rebuilds {kind}: pass a callable that returns it")

    def _first_reset(self, copies: bool) -> Leaves:
        """Reset the envs for their first episodes; give different seeds to copies of one instance."""
        n, root = self.host.spec.num_envs, fresh_root()
        try:
            observation = self.host.reset_all([derive(root, "env", env) for env in range(n)] if copies else None)
        except EnvRaised as raised:
            raised.cause.add_note(f"raised by the first reset of env {raised.env}")
            raise raised.cause from raised.cause.__cause__
        if self.options.check_finite:
            require_finite("observation", self.host.spec.observation_keys, observation, self._describe_step)
        return observation

    def _make_rules(self, spec: HostSpec) -> Rules:
        """Return the rules of a loop over envs, in all of which episodes begin."""
        limit = StepLimit(spec, None if isinstance(spec, TensorDictSpec) else self.options.max_frames)
        limit.restart(range(spec.num_envs))
        resets = self.options.on_env_error == "reset"
        failures = Failures(MOST_FAILURES_IN_A_ROW - 1, self._count_env_error) if resets else Failures()
        return Rules(limit, restart_all, failures)

    def _bind(self, policy: Any, observation: Leaves, spec: HostSpec, *, draws: bool = False) -> BoundPolicy:
        """Bind a policy to envs by one call on this observation; draw as TorchRL's collector does if `draws`."""
        options = self.options
        called = maybe_compile(policy, options.compile_policy, options.cudagraph_policy)
        plans, recurrent = options.plans, options.auto_register_policy_transforms is not False
        binding = self._binding = BindingOptions(
            self.device, options.exploration, options.trust_policy, recurrent, draws, plans
        )
        with nullcontext() if draws else preserve_generators(self.device), torch.no_grad():
            return bind(called, spec, observation, binding)

    def _act_with(self, policy: BoundPolicy, observation: Leaves) -> None:
        self.bound, options = policy, self.options
        self._actor: Actor = policy
        self._random_actor: Actor = random_stand_in(self.host.spec, policy)
        if options.check_finite:
            observed, describe = self.host.spec.observation_keys, self._describe_step
            self._actor = FiniteCheck(policy, observed, describe)
            self._random_actor = FiniteCheck(self._random_actor, observed, describe, checks_outputs=False)
        if self._overlap is not None:
            self._overlap.act_with(partial(self._bind, self.acting_policy), observation)
        self.plans = Plans(self.host, self.acting_policy, policy, observation, self._binding, options)

    def _choose_plan(self, *, randomly: bool) -> Planned | None:
        """Return the plan of the envs for the next fragment, if they have one; renew plans of a changed policy."""
        renews = not self.in_background
        if renews:
            self.bound.renew_plan()
            if self._overlap is not None:
                self._overlap.renew_plans()
        return None if randomly else self.plans.choose(self._stage, renews=renews)

    def _loop(
        self, loop_arguments: tuple[Host, Actor, LoopState], *, randomly: bool
    ) -> tuple[Iterator[Step], Callable[[], bool]]:
        """Return the steps of a fragment, and a function that tells after each whether the fragment ends with it."""
        if self._overlap is None:
            return steps(*loop_arguments, self._rules), self.is_interrupted
        # The overlap calls `is_interrupted` before the policy acts ahead; `bool()` is false.
        return self._overlap.steps(self._stage, self.n_steps, self.is_interrupted, randomly=randomly), bool

    def _describe_step(self, env: int) -> str:
        """Describe the step that an env makes now, counted from 0 where it was seeded, and its last seed."""
        return f"step {self._checked_steps} (seed {self.host.seed_of(env)})"

    def _note_failure(self, error: BaseException, rows: Rows | TensorDictRows | None, n_made: int) -> None:
        """Count an exception and the steps that it makes void; `None` for the rows before there were any."""
        if rows is not None:
            valid, n_envs = rows.valid, self.host.spec.num_envs
            self.lose_fragment(n_made * n_envs if valid is None else int(valid[:, :n_made].sum()))
            if isinstance(error, Exception) and not isinstance(error, EnvRaised):
                error.add_note(f"raised while {self.label} collected")
        if isinstance(error, EnvRaised):
            self.tally.env_errors += 1
            self._env_error = error.cause if self._rebuilds else None

    def _seal(self, rows: Rows | TensorDictRows, n_made: int) -> Fragment:
        """Return a fragment of the first `n_made` steps of the rows, with trajectory ids."""
        if n_made < self.n_steps:
            rows.blank_from(n_made)
        if rows.restarted:
            self._ids.begin(rows.restarted)
        # Steps that were not made have no ids; the episodes go on after them.
        valid = None if rows.valid is None else rows.valid[:, :n_made]
        ids, counts = self._ids.label(rows.reward[:, :n_made], rows.last[:, :n_made], valid)
        if n_made < self.n_steps:
            ids = pad_steps(ids, self.n_steps, NO_TRAJECTORY)
            counts = None if counts is None else pad_steps(counts, self.n_steps, 0)
        if self.options.set_truncated:
            rows.truncate_last()
        return Fragment(rows, ids, counts, self.version, n_made)

    def _reset(self, seeds: list[int] | None) -> None:
        self._begin_with(self._rules.failures.begin_all(self.host, seeds))

    def _begin_with(self, observation: Leaves) -> None:
        """Begin counting episodes that have begun in all envs, with these observations."""
        self._stage.observation = observation
        self._stage.ended_envs = ()
        all_envs = range(self.host.spec.num_envs)
        self.bound.restart(all_envs)
        self._rules.limit.restart(all_envs)
        if self._overlap is not None:
            self._overlap.begin()
        self._ids.begin()
        self._reset_due = False

    def _rebuild(self) -> None:
        """Rebuild the env source if it has failed, and begin a new life."""
        if self._env_error is None:
            return
        self.tally.restarts += 1
        _log.warning("%s: %r; its envs are rebuilt, in life %d", self.label, self._env_error, self.life + 1)
        observation = self.host.rebuild()
        self._env_error = None
        self.begin_life(self.life + 1, self.seeding)
        if self.seeding is None:
            self._begin_with(observation)

    def _new_ids(self) -> TrajectoryIds:
        spec, counted = self.host.spec, self.options.max_frames is not None
        return trajectory_ids(spec.num_envs, self.worker_idx, self.life, counted, spec.tensor_device)

    def _random_states(self) -> AbstractContextManager[None]:
        return nullcontext() if self._streams is None or self.in_background else self._streams.activate()

    def _count_env_error(self, env: int, error: Exception) -> None:  # noqa: ARG002  only counted, not raised
        self.tally.env_errors += 1

    def _cause_of(self, raised: EnvRaised) -> Exception:
        """Return the exception of an env, with a note that names env, seed and worker."""
        raised.cause.add_note(f"raised by env {raised.env} (seed {self.host.seed_of(raised.env)}) of {self.label}")
        return raised.cause
