"""Planned fragments: where env and policy have a plan, a fragment is made by array programs.

    TensorDict root ──▶ leaves ──▶ T × steps() of the plan ──▶ leaves ──▶ TensorDict root, from which either way goes on

A plan is used only if it has given the same bytes and the same generator states as TorchRL's own way: the env on random
answers of its spaces, the policy on the first observation.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase

from swath.keys import ACTION, FLAGS, IS_INIT, NEXT, REWARD, Key, as_key, as_tuple, is_private, under_next
from swath.rollout.buffer import Buffer, PlannedRows, set_all
from swath.rollout.hosts.base import ArraySpec, Host, first_env
from swath.rollout.hosts.plan import PlanHost
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.hosts.verification import log_no_plan, plan_of_env, require_same
from swath.rollout.loop import Actor, LoopState
from swath.rollout.plans import NoPlan, plans_mode
from swath.rollout.policies.binding import TensorDictPolicy, batch_order, bind, keys_of
from swath.rollout.policies.calling import BindingOptions, BoundPolicy
from swath.rollout.policies.plan import Attributes, modules_of, with_other_values
from swath.rollout.seeding import GeneratorStates, preserve_generators
from swath.rollout.spaces import Leaves

T = TypeVar("T")


class Planned:
    """A TorchRL env and a tensordict policy, as a host and a policy of leaves.

    Args:
        host: the host of the TorchRL env.
        policy: the policy.
        bound: the policy, bound to that host.
        root: a first observation.
        options: of the binding.

    Attributes:
        host: steps the gymnasium envs.
        policy: the bound policy.

    Raises:
        NoPlan: env or policy has no plan; the message says why.
    """

    def __init__(
        self,
        host: TensorDictHost,
        policy: Any,
        bound: TensorDictPolicy,
        root: TensorDictBase,
        *,
        options: BindingOptions,
    ) -> None:
        require_known_policy(policy, bound)
        self._plain, self.host = host, plan_of_env(host)
        self._bound = bound
        self._leaves = self.host.load(root)
        self.policy = plan_of_policy(policy, bound, root, self.host.spec, self._leaves, options)
        self.host.hand_on(self.policy.keys)
        self._order = batch_order(host, policy)
        self._buffer: Buffer | None = None

    def is_valid(self) -> bool:
        """Tell whether the env is as it was when the plan was made."""
        return self.host.is_valid()

    def buffer(self, n_steps: int) -> Buffer:
        """Return room for fragments of T steps."""
        if self._buffer is None or self._buffer.n_steps != n_steps:
            example = self._leaves, self.policy.example
            self._buffer = planned_buffer(self.host, self.policy.keys, *example, n_steps, self._order)
        return self._buffer

    @contextmanager
    def continuing(self, state: LoopState) -> Iterator[tuple[Host, Actor, LoopState]]:
        """Continue a run in the body, with this host, policy and state; set the state of the run after it."""
        memory, plain, batch_shape = self.policy.memory, self._bound, self._bound.spec.batch_shape
        pending = self._begin_others(plain, state.ended_envs, self._plain.pending_resets(state.ended_envs))
        stage = LoopState(self.host.load(state.observation[0]), pending)
        kept = plain.private_entries(state.observation[0])
        memory.kept = [kept.get(key) for key in memory.private]
        memory.leaves = [leaf.reshape(-1, *leaf.shape[len(batch_shape) :]) for leaf in plain.memory.leaves]
        try:
            yield self.host, self.policy, stage
        finally:
            root, ended = self.host.dump(), stage.ended_envs
            pending = self._begin_others(self.policy, ended, self.host.pending_resets(ended))
            plain.set_private_entries(root, dict(zip(memory.private, memory.kept, strict=True)))
            plain.memory.leaves = [leaf.reshape(*batch_shape, *leaf.shape[1:]) for leaf in memory.leaves]
            state.observation, state.ended_envs = [root], pending

    @staticmethod
    def _begin_others(policy: BoundPolicy, ended: Sequence[int], pending: Sequence[int]) -> Sequence[int]:
        """Reset the recurrent state of envs that have begun another episode; return those that have not."""
        policy.begin([env for env in ended if env not in pending])
        return pending


class Plans:
    """The plan of an env and a policy, made again when the env has changed.

    Random states do not change.

    Args:
        host: the host of the envs.
        policy: the policy.
        bound: the policy, bound to that host.
        observation: leaves of a first observation.
        options: of the binding.
        worker_options: options of a worker, some of which rule out a plan.

    """

    def __init__(
        self,
        host: Host,
        policy: Any,
        bound: BoundPolicy,
        observation: Leaves,
        options: BindingOptions,
        worker_options: Any,
    ) -> None:
        self._make: Callable[[Any], Planned]
        self._host, self._bound, self._status = host, bound, ""
        self._plan: Planned | None = None
        self._can_try, self._last_state_of_env = False, self._state_of_env()
        obstacles = {
            "check_finite": worker_options.check_finite,
            "on_env_error='reset'": worker_options.on_env_error == "reset",
            "compile_policy": worker_options.compile_policy,
            "cudagraph_policy": worker_options.cudagraph_policy,
        }
        if plans_mode() == "off" or not options.plans:
            self._status = "plans are off"
        elif isinstance(host, TensorDictHost) and isinstance(bound, TensorDictPolicy):
            self._make = partial(Planned, host, policy, bound, options=options)
            self._status = ", ".join(name for name, is_set in obstacles.items() if is_set)
            self._can_try = not self._status
            if self._can_try:
                self._try(observation[0])

    @property
    def status(self) -> str:
        """Return `"on"`, or the reason for no plan; `""` for plain policies of envs that give arrays."""
        if self._status == "on" or self._bound.planned is None:
            return self._status
        reason = self._bound.reason_for_no_plan
        if not self._status:
            return reason or "on"
        return self._status if reason else f"on for the policy only: {self._status}"

    def choose(self, state: LoopState, *, renews: bool) -> Planned | None:
        """Return the plan for a fragment that continues from this state, or `None` for TorchRL's own way.

        Args:
            state: of the loop.
            renews: whether plans may be made again, which sets the process's generators for a moment.
        """
        plan = self._plan
        if plan is not None and not plan.is_valid():
            self._plan, self._status = None, "the env has changed"
            if renews:
                self._try(state.observation[0])
        elif plan is None and renews and self._can_try and self._last_state_of_env != self._state_of_env():
            self._try(state.observation[0])  # a ParallelEnv was seeded
        elif plan is not None and renews:
            plan.policy.renew_plan()
        return self._plan

    def _state_of_env(self) -> tuple[Any, ...]:
        """Return the plan of a `ParallelEnv`, and why it has none."""
        env = self._host.envs[0] if isinstance(self._host, TensorDictHost) else None
        return getattr(env, "plan", None), getattr(env, "reason_for_no_plan", "")

    def _try(self, root: TensorDictBase) -> None:
        self._last_state_of_env = self._state_of_env()
        self._plan, self._status = try_plan(self._host, partial(self._make, root))


def try_plan(host: Host, make: Callable[[], T]) -> tuple[T | None, str]:
    """Return a plan and `"on"`, or `None` and the reason, which is logged.

    Args:
        host: the host of the envs.
        make: returns the plan.
    """
    try:
        return make(), "on"
    except Exception as error:  # noqa: BLE001  TorchRL's own way runs
        reason = str(error) if isinstance(error, NoPlan) else repr(error)
        log_no_plan(first_env(host.env), reason)
        return None, reason


def plan_of_policy(
    policy: Any,
    bound: TensorDictPolicy,
    root: TensorDictBase,
    spec: ArraySpec,
    leaves: Leaves,
    options: BindingOptions,
) -> BoundPolicy:
    """Return a policy that is bound to the leaves of a planned env.

    Args:
        policy: the policy.
        bound: the policy, bound to the TorchRL env.
        root: a first observation.
        spec: properties of the planned env.
        leaves: of the first observation.
        options: of the binding.

    Raises:
        NoPlan: it has no plan, or it gives other bytes or draws than `bound`.
    """
    options = replace(options, first_in_current_mode=False)
    answer, draws = _call_copy(policy, bound, root, options)
    # TorchRL leaves the outputs in the root of the next step, where the policy may read them.
    old_outputs = with_other_values({key: answer.get(key) for key in bound.forms})
    later_answer, later_draws = _call_copy(policy, bound, set_all(root.clone(), old_outputs), options)
    with _preserve_generators(options):
        planned = bind(policy, spec_for(bound, spec), leaves, options)
        states = GeneratorStates(options.device)
    if options.owns_generators and not (states.equals(draws) and states.equals(later_draws)):
        raise NoPlan("the policy draws other random numbers in a plan")
    memory = planned.memory
    private = {key for key in keys_of(answer) if is_private(key) and root.get(key, None) is None}
    if {*planned.keys} != {*bound.forms, *memory.keys} or {*memory.private} != private:
        written, by_plan = [*bound.forms, *memory.keys, *private], [*planned.keys, *memory.private]
        raise NoPlan(f"the policy writes {written}, in a plan {by_plan}")
    require_same("the policy's", planned.keys, planned.example, answer)
    require_same("after another step the policy's", planned.keys, planned.example, later_answer)
    if not all(isinstance(answer.get(key), torch.Tensor) for key in private):
        raise NoPlan("the policy keeps private entries that are no tensors")
    if memory.keys or private:
        answer, draws = _call_copy(policy, bound, root, options, n_later=2)
        with _preserve_generators(options), torch.no_grad():
            planned = bind(policy, spec_for(bound, spec), leaves, options)
            outputs = [planned(leaves) for _ in range(2)][-1]
            states = GeneratorStates(options.device)
        if options.owns_generators and not states.equals(draws):
            raise NoPlan("with its state the policy draws other random numbers in a plan")
        require_same("with its state the policy's", planned.keys, outputs, answer)
        planned.restart(range(spec.num_envs))
    return planned


def spec_for(bound: TensorDictPolicy, spec: ArraySpec) -> ArraySpec:
    """Return properties of a planned env whose action has the form that a policy gives it."""
    action = bound.example[0].get(ACTION).numpy(force=True)
    leaf = replace(spec.action[0], shape=action.shape[len(spec.batch_shape) :], dtype=action.dtype)
    return replace(spec, action=(leaf,))


def planned_buffer(
    host: PlanHost, outputs: Sequence[Key], leaves: Leaves, example: Leaves, n_steps: int, order: Sequence[Key]
) -> Buffer:
    """Return room for fragments of T steps, which become batches in TorchRL's form.

    Args:
        host: the envs.
        outputs: keys of the policy's outputs.
        leaves: of an observation.
        example: of the outputs.
        n_steps: T.
        order: keys of the batch in order; then come the recurrent state that the policy has read, and others.
    """
    entries = host.spec.observation_keys, tuple(outputs)
    state = [key for key in outputs if under_next(key) in outputs]
    order = (*order, *state, IS_INIT, under_next(IS_INIT))
    make_rows = partial(PlannedRows, entries=entries, order=order, batch_shape=host.spec.batch_shape)
    return Buffer(leaves, example, n_steps, make_rows=make_rows)


def status_of_env(host: Host) -> str:
    """Return `"on"`, or the reason why the env has no plan; `""` for envs that give arrays.

    Raises:
        Exception: what the env raised.
    """
    if not isinstance(host, TensorDictHost):
        return ""
    try:
        plan_of_env(host)
    except NoPlan as reason:
        return str(reason)
    return "on"


def require_known_policy(policy: Any, bound: TensorDictPolicy) -> None:
    """Check that a plan knows all entries that a policy reads and writes.

    Raises:
        NoPlan: it does.
    """
    if not isinstance(policy, TensorDictModuleBase) or bound.draw is not None:
        raise NoPlan(f"the policy {type(policy).__name__} is no TensorDict module")
    observed = {*bound.spec.observation_keys}
    if foreign := [key for key in policy.in_keys if as_key(as_tuple(key)) not in {*observed, *bound.memory.keys}]:
        raise NoPlan(f"the policy reads {foreign}, which are no observations")
    written = {as_key(as_tuple(key)) for key in policy.out_keys}
    if overwritten := [*written & (observed | {*FLAGS, REWARD, NEXT})]:
        raise NoPlan(f"the policy overwrites {overwritten}")


def _call_copy(
    policy: Any, bound: TensorDictPolicy, root: TensorDictBase, options: BindingOptions, *, n_later: int = 0
) -> tuple[TensorDictBase, GeneratorStates]:
    """Call a copy of a policy with a root as TorchRL does; return its answer and the generators' states after it.

    Further calls, `n_later` of them, get the state that the ones before have written.

    Raises:
        NoPlan: the call changes the policy, or functions of the policy may keep something of their calls.
    """
    modules_of(policy)
    trial = copy.deepcopy(policy, {id(tensor): tensor for tensor in policy.parameters()})
    before = Attributes(modules_of(trial))
    with _preserve_generators(options), torch.no_grad():
        copied = TensorDictPolicy(trial, bound.spec, [root.clone()], replace(options, plans=False))
        answer, kept = copied.example[0], dict[Key, Any]()
        for _ in range(n_later):
            answer = copied([set_all(root.clone(), kept)])[0]
            kept = copied.private_entries(answer)
        draws = GeneratorStates(options.device)
    after = Attributes(modules_of(trial))
    if not (before.has_same_values(after) and before.has_same_buffers(after)):
        raise NoPlan("a call changes the policy")
    return answer, draws


def _preserve_generators(options: BindingOptions) -> AbstractContextManager[None]:
    return preserve_generators(options.device) if options.owns_generators else nullcontext()
