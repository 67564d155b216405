"""Env and policy of one worker of an evaluation: built where they are used, the policy a private one.

id | callable | instance | list of k of these ──▶ S slots of one host, its running statistics frozen ─┐
policy | factory ──▶ private copy, in eval mode ───────────────────────────────────────────────────────┴──▶ Setting

Models of a setting take weights by id: `"policy"`, and parts of the env on every copy of it, such as
`"env.transform[0]"` and, through gymnasium's wrappers, `"env.obs_rms"`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from inspect import getclosurevars
from threading import Lock
from types import FunctionType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from swath.errors import warn_of_no_effect
from swath.evaluation.env_parts import Wanted, change, frozen, has_moments, moments_of, parts_at, paths_of
from swath.evaluation.options import EvaluatorOptions
from swath.keys import Key
from swath.rollout.hosts.base import ArraySpec, Host, TensorDictSpec, close_broken, closed_on_failure, first_of
from swath.rollout.hosts.sources import build
from swath.rollout.hosts.torchrl import Fitting
from swath.rollout.hosts.vector import AsVectorEnv, VectorHost
from swath.rollout.loop import Actor
from swath.rollout.policies.answers import require_fitting
from swath.rollout.policies.binding import bind, from_factory
from swath.rollout.policies.calling import Binding, ExplorationType, as_exploration, compiled, device_of, the_policy
from swath.rollout.seeding import PrivateStreams, preserved
from swath.rollout.spaces import Array, Leaves, structured
from swath.seeds import derive
from swath.weights.manifest import Manifest
from swath.weights.snapshot import POLICY, Snapshot

_WAY_OUT = "evaluation runs a private copy: give it `__deepcopy__`, or an Evaluator a policy_factory"


class Setting:
    """A host and a policy.

    Args:
        options: what to build.
        root: of the seed under which a factory is called.
        borrows: whether instances go back to whoever has handed them in: envs are not closed, and an object with
            `predict` acts itself, with its modes put back at the end; draws are the caller's business then.

    Attributes:
        host: the envs.
        policy: what has the weights; nobody else has it.
        device: where its inputs go; `None` for where the envs are.
        closed: whether the envs are closed.
        alone: whether the process is the worker's own; if not, others draw from the process's generators meanwhile,
            and evaluations draw from them, too.
        turn: held while the envs are used.

    Raises:
        TypeError: no form of an env, or a policy that cannot be copied.
        ValueError: envs that differ in their spaces, cannot go to the device, or are more or less than asked for.
        Exception: what building env or policy raised.
    """

    def __init__(self, options: EvaluatorOptions, root: int = 0, *, borrows: bool = False) -> None:
        self._options, self._root, self._borrows, self._open = options, root, borrows, ExitStack()
        self._sent: dict[str, Snapshot] = {}
        self._built, self.alone = not options.lent, borrows or options.place != "thread"
        self.turn, self.closed = Lock(), False
        self.host = self._host()
        with closed_on_failure([self.host] if self._built else []), self._open as failing:
            self.policy = self._policy()
            self.device = options.policy_device or device_of(self.policy)
            self._acts = compiled(self.policy, options.settings.compile_policy, options.settings.cudagraph_policy)
            self._open = failing.pop_all()

    def bound(self, options: EvaluatorOptions, observation: Leaves, playing: Sequence[int | None]) -> Performer:
        """The policy as it acts in one evaluation, given the first observation. Random states stay as they are.

            deterministic, unseeded, or beside other threads  ──▶ one call for all B rows
            sampled from a seed                               ──▶ one call per row, with the noise of its own episode

        Where other threads draw from the process's generators these are left alone, and noise is drawn from them.

        Raises:
            TypeError: `predict` for envs that give TensorDicts.
            Exception: what binding a policy raises.
        """
        exploration, root = as_exploration(options.exploration_type), options.seed
        policy, spec, device, sampled = self._acts, self.host.spec, self.device, exploration is ExplorationType.RANDOM

        def bound_to(spec: ArraySpec | TensorDictSpec, observation: Leaves) -> Performer:
            if not isinstance(policy, Predicts):
                return bind(policy, spec, observation, Binding(device, exploration))
            if isinstance(spec, ArraySpec):
                return Predictor(policy, spec, deterministic=not sampled)
            raise TypeError(f"{type(policy).__name__}.predict takes arrays, this env gives TensorDicts; pass a policy")

        # Rows of a batch of TorchRL's have no seeds of their own, and may differ in their shapes.
        is_batch = isinstance(spec, TensorDictSpec) and spec.seeding != "episode"
        with preserved(device) if self.alone else nullcontext():
            if not (self.alone and sampled) or root is None or is_batch:
                return bound_to(spec, observation)
            single = replace(spec, num_envs=1, batch_shape=(1,) if spec.batch_shape else ())
            rows = [bound_to(single, row_of(observation, slot)) for slot in range(spec.num_envs)]
            return RowByRow(rows, playing, root, device)

    def renew(self) -> None:
        """Close the envs and build others, which get what those before them had been sent.

        Envs that were handed in stay, and go on from their next reset.
        """
        if self._built:
            close_broken(self)
            self.host, self.closed = self._host(), False
            self.apply(self._sent)

    def close(self) -> None:
        """Close the envs, also those that were handed in, unless they are borrowed. Twice is fine."""
        self.closed = True
        self._open.close()
        if self._built or not self._borrows:
            self.host.close()

    def wanted(self, model_id: str) -> Wanted:
        """What weights a model wants.

        Raises:
            KeyError: there is no such model.
        """
        model = self._found(model_id)[0]
        return Wanted(Manifest.of(model), {}) if model_id == POLICY else Wanted.by(model)

    def state(self, model_id: str) -> Any:
        """The state of a model, as its first copy has it.

        Raises:
            AttributeError: it has none.
        """
        model = self._found(model_id)[0]
        return moments_of(model) if has_moments(model) else model.state_dict()

    def apply(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Put newer weights in: into all models and copies, or into none.

        Raises:
            KeyError, ValueError: they do not fit.
        """
        found = [(target, snapshot) for model_id, snapshot in snapshots.items() for target in self._found(model_id)]
        for put in [change(target, snapshot) for target, snapshot in found]:
            put()
        self._sent.update(copy.deepcopy({name: each for name, each in snapshots.items() if name != POLICY}))

    def _found(self, model_id: str) -> list[Any]:
        """The model, once per env copy if it is part of the env.

        Raises:
            KeyError: there is none.
        """
        if model_id == POLICY:
            return [module_of(self.policy) or self.policy]
        root, _, path = model_id.partition(".")
        found = parts_at(self.host.env, path) if root == "env" else []
        if not found:
            ids = [POLICY, *(f"env.{each}" for each in paths_of(first_of(self.host.env)))]
            raise KeyError(f"there is no model {model_id!r} that takes weights; there are {ids}")
        return found

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
        self._open.enter_context(frozen(host.env))
        return host

    def _policy(self) -> Any:
        factory, policy, device = self._options.policy_factory, self._options.policy, self._options.policy_device
        if factory is not None:
            # From generators that are seeded equally in every worker and life.
            with PrivateStreams(derive(self._root, "policy"), device).swapped():
                policy = from_factory(factory, first_of(self.host.env))
        borrowed = self._borrows and isinstance(policy, Predicts)
        if not borrowed and (factory is None or not self.alone):  # others may hold what a factory gave
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
    if not isinstance(policy, FunctionType):
        return
    referred = getclosurevars(policy)
    for name, value in {**referred.globals, **referred.nonlocals}.items():
        if isinstance(value, torch.nn.Module):
            raise TypeError(f"{the_policy(policy)} refers to the module {name}, not copied with it; {_WAY_OUT}")


def module_of(policy: Any) -> torch.nn.Module | None:
    """The module that has the weights and a mode: the policy itself, or that of a model of Stable-Baselines3."""
    module = policy if isinstance(policy, torch.nn.Module) else getattr(policy, "policy", None)
    return module if isinstance(module, torch.nn.Module) else None


# What acts where that is no policy that is called for all rows at once


@runtime_checkable
class Predicts(Protocol):
    """What picks actions by `predict`."""

    def predict(self, observation: Any, state: Any, episode_start: Any, deterministic: bool) -> tuple[Any, Any]:
        """Actions `[B, …]` and the next state."""


class Performer(Actor, Protocol):
    """A policy that is bound to a host, with the keys of what it answers, those of the action first."""

    keys: tuple[Key, ...]


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
        leaf, *more = self._spec.action
        seen = structured(self._spec.observation_space, iter(observation))
        answer = self._model.predict(
            seen, state=self.state, episode_start=self.starts, deterministic=self._deterministic
        )
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise TypeError(f"predict returned {answer!r}; it must return (actions, state)")
        rows, self.state = np.asarray(answer[0]), answer[1]
        self.starts = np.zeros_like(self.starts)
        wanted = (self._spec.num_envs, *leaf.shape)
        if rows.shape != wanted or more:
            raise ValueError(f"predict returned actions of shape {rows.shape}; the envs want {wanted}")
        require_fitting(self.keys, [rows], self._spec)
        return [rows]

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
