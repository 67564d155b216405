"""Policies of evaluations: private copies, called for all slots at once or slot by slot.

policy ──▶ copy_policy ──▶ bind_policy ──▶ one call for all rows | RowByRow: each row has the noise of its episode
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.runner import BoundActor
from swath.keys import Key
from swath.rollout.hosts.base import ArraySpec, Host, HostSpec, TensorDictSpec
from swath.rollout.hosts.plan import PlanHost
from swath.rollout.planned import plan_of_policy, require_known_policy, spec_for, try_plan
from swath.rollout.plans import NoPlan, plans_mode
from swath.rollout.policies.binding import TensorDictPolicy, bind
from swath.rollout.policies.calling import BindingOptions, ExplorationType, policy_name, referred_modules
from swath.rollout.policies.outputs import require_fitting
from swath.rollout.seeding import GeneratorStates, PrivateStreams, preserve_generators
from swath.rollout.spaces import Array, Leaves, build_value
from swath.seeds import derive

_ADVICE = "evaluation runs a private copy: give it `__deepcopy__`, or an Evaluator a policy_factory"


def copy_policy(policy: Any, *, allow_original: bool = False) -> Any:
    """Return a copy of any policy, which can act while the original is trained.

    Args:
        policy: the policy.
        allow_original: return the policy itself if it cannot be copied.

    Raises:
        TypeError: the policy cannot be copied.
    """
    try:
        return copy.deepcopy(policy)
    except Exception as error:
        if allow_original:
            return policy
        raise TypeError(f"{type(policy).__name__} cannot be copied ({error}); {_ADVICE}") from error


def require_copyable(policy: Any) -> None:
    """Refuse functions that refer to modules: a copy of a function still uses the original modules.

    Raises:
        TypeError: the policy refers to a module, which would act with weights that training changes meanwhile.
    """
    for name in referred_modules(policy):
        raise TypeError(f"{policy_name(policy)} refers to the module {name}, not copied with it; {_ADVICE}")


def module_of(policy: Any) -> torch.nn.Module | None:
    """Return the module with the weights: the policy itself, or the `policy` of a model of Stable-Baselines3."""
    module = policy if isinstance(policy, torch.nn.Module) else getattr(policy, "policy", None)
    return module if isinstance(module, torch.nn.Module) else None


def bind_policy(
    policy: Any,
    host: Host,
    options: EvaluatorOptions,
    device: torch.device | None,
    observation: Leaves,
    playing: Sequence[int | None],
    *,
    owns_generators: bool,
    plan_envs: Callable[[], PlanHost],
) -> tuple[Host, BoundActor, Leaves]:
    """Bind the policy to the envs of one evaluation, by the first observation. Random states do not change.

        deterministic, unseeded, or with shared generators  ──▶ one call for all B rows
        sampled from a seed                                 ──▶ one call per row, with the noise of its episode

    Args:
        policy: the policy.
        host: the envs.
        options: the exploration type, and the root of all seeds.
        device: device of the policy's inputs; `None` for the device of the envs.
        observation: the first observation.
        playing: the episode that each slot plays, updated before each call of the policy.
        owns_generators: whether no other code draws from the process's generators meanwhile; otherwise noise comes
            from them.
        plan_envs: returns the plan of the envs, or raises `NoPlan`.

    Returns:
        The host that steps the envs, the bound policy and the first observation: of the plan, if there is one.

    Raises:
        TypeError: `predict` for envs that give TensorDicts.
        Exception: what binding a policy raises.
    """
    exploration, root, plans = options.exploration, options.seed, options.settings.plans
    sampled = exploration is ExplorationType.RANDOM
    binding = BindingOptions(device, exploration, plans=plans, owns_generators=owns_generators)

    def bind_to(spec: HostSpec, observation: Leaves) -> BoundActor:
        if not hasattr(policy, "predict"):
            return bind(policy, spec, observation, binding)
        if isinstance(spec, ArraySpec):
            return Predictor(policy, spec, deterministic=not sampled)
        raise TypeError(f"{type(policy).__name__}.predict takes arrays, this env gives TensorDicts; pass a policy")

    # Rows of a batched TorchRL env have no seeds, and may differ in their shapes.
    is_batch = isinstance(host.spec, TensorDictSpec) and host.spec.seeding != "episode"
    by_row = owns_generators and sampled and root is not None and not is_batch

    def rows_of(leaves: Leaves) -> list[Leaves]:
        return [row_of(leaves, slot) for slot in range(host.spec.num_envs)] if by_row else [leaves]

    def row_spec(spec: Any) -> Any:
        return replace(spec, num_envs=1, batch_shape=(1,) if spec.batch_shape else ()) if by_row else spec

    def plan(first: TensorDictPolicy, before: GeneratorStates) -> tuple[Host, list[BoundActor], Leaves]:
        if not (owns_generators or before.equals(GeneratorStates(device))):
            raise NoPlan("the policy draws as other threads do")
        require_known_policy(policy, first)
        planned = plan_envs()
        leaves, spec, root = planned.load(observation[0]), row_spec(planned.spec), rows_of(observation)[0][0]
        row, *others = rows_of(leaves)
        bound_policy: BoundActor = plan_of_policy(policy, first, root, spec, row, binding)
        planned.hand_on(bound_policy.keys)
        return planned, [bound_policy, *(bind_to(spec_for(first, spec), other) for other in others)], leaves

    with preserve_generators(device) if owns_generators else nullcontext():
        before, spec, (row, *others) = GeneratorStates(device), row_spec(host.spec), rows_of(observation)
        first, plan_parts = bind_to(spec, row), None
        if isinstance(first, TensorDictPolicy) and plans and plans_mode() != "off":
            plan_parts, _ = try_plan(host, partial(plan, first, before))
        host, bound, leaves = plan_parts or (host, [first, *(bind_to(spec, other) for other in others)], observation)
    if by_row and root is not None:
        return host, RowByRow(bound, playing, root, device), leaves
    return host, bound[0], leaves


class Predictor:
    """A `predict` object bound to a host.

    Args:
        model: called with keywords `state`, `episode_start`, `deterministic`; not copied.
        spec: the host's envs.
        deterministic: passed to `predict`.

    Attributes:
        state: the second value that the last `predict` returned.
        starts: bool `[B]`: episodes that begin with the next call.
        keys: keys of its outputs.
    """

    has_state = True

    def __init__(self, model: Any, spec: ArraySpec, *, deterministic: bool) -> None:
        self._model, self._spec, self._deterministic = model, spec, deterministic
        self.keys: tuple[Key, ...] = (spec.action[0].key,)
        self.state: Any = None
        self.starts: Array = np.ones(spec.num_envs, dtype=np.bool_)

    def __call__(self, observation: Leaves) -> Leaves:
        """Return actions for this observation.

        Raises:
            TypeError: `predict` returned anything but actions and a state.
            ValueError: actions of another shape.
        """
        structure = build_value(self._spec.observation_space, iter(observation))
        answer = self._model.predict(
            structure, state=self.state, episode_start=self.starts, deterministic=self._deterministic
        )
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"predict returned {answer!r}; it must return (actions, state)")
        actions, self.state = np.asarray(answer[0]), answer[1]
        self.starts = np.zeros_like(self.starts)
        require_fitting(self.keys, [actions], self._spec)
        return [actions]

    def begin(self, envs: Sequence[int]) -> None:
        """Note that episodes begin in these envs."""
        self.starts[list(envs)] = True

    restart = begin

    def rewind(self) -> None:
        """Do nothing: the first failure ends an evaluation, so that no step is repeated."""


class RowByRow:
    """A policy called once per slot, with the noise of the slot's episode; rows of idle slots mean nothing.

    Args:
        rows: the policy, bound once per slot to a single env.
        playing: the episode that each slot plays.
        root: root of the seeds of the noise.
        device: where the policy runs.
    """

    has_state = True

    def __init__(
        self, rows: Sequence[BoundActor], playing: Sequence[int | None], root: int, device: torch.device | None
    ) -> None:
        self._rows, self._playing, self._root, self._device = rows, playing, root, device
        self.keys = rows[0].keys
        self._noises: dict[int, tuple[int, PrivateStreams]] = {}
        self._last: dict[int, Leaves] = {}

    def __call__(self, observation: Leaves) -> Leaves:
        """Return outputs `[B, …]` for this observation."""
        for slot, episode in enumerate(self._playing):
            if episode is not None:
                with self._noises[slot][1].activate_fast():
                    self._last[slot] = self._rows[slot](row_of(observation, slot))
        filler = next(iter(self._last.values()))
        answers = [self._last.get(slot, filler) for slot in range(len(self._rows))]
        return [_stack(leaves) for leaves in zip(*answers, strict=True)]

    def begin(self, envs: Sequence[int]) -> None:
        """Note that episodes begin in these slots, or go on after an end within them, with the same noise."""
        for slot in envs:
            episode = self._playing[slot]
            if episode is not None and (slot not in self._noises or self._noises[slot][0] != episode):
                self._rows[slot].restart([0])
                seed = derive(self._root, "noise", 0, episode)
                self._noises[slot] = episode, PrivateStreams(seed, self._device)
            else:
                self._rows[slot].begin([0])

    restart = begin

    def rewind(self) -> None:
        """Do nothing: the first failure ends an evaluation, so that no step is repeated."""


def row_of(leaves: Leaves, slot: int) -> Leaves:
    """Return the leaves of one slot; a TensorDict without batch dimension is copied, since callers may add entries."""
    return [leaf[slot : slot + 1] if leaf.ndim else leaf.copy() for leaf in leaves]


def _stack(rows: Sequence[Any]) -> Any:
    if isinstance(rows[0], np.ndarray):
        return np.concatenate(rows)
    return torch.cat([*rows]) if rows[0].ndim else rows[0]
