"""Env and policy of one worker of an evaluation: built where they are used, the policy a private one.

id | callable | instance | list of k of these ──▶ S slots of one host, its running statistics frozen ─┐
policy | factory ──▶ private copy, in eval mode ───────────────────────────────────────────────────────┴──▶ Setting

Models of a setting take weights by id: `"policy"`, and parts of the env on every
copy of it, such as `"env.transform[0]"` and, through gymnasium's wrappers, `"env.obs_rms"`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from inspect import getclosurevars
from threading import Lock
from types import FunctionType
from typing import Any, NamedTuple

import torch

from swath.errors import warn_of_no_effect
from swath.evaluation.acting import EpisodeOf, Performer, Predictor, Predicts, RowByRow, row_of
from swath.evaluation.env_parts import change, frozen, has_moments, moments_of, parts_at, paths_of
from swath.evaluation.options import EvaluatorOptions
from swath.rollout.hosts.base import (
    ArraySpec,
    Host,
    HostSpec,
    TensorDictSpec,
    close_broken,
    closed_on_failure,
    first_of,
)
from swath.rollout.hosts.sources import build
from swath.rollout.hosts.torchrl import Fitting
from swath.rollout.hosts.vec_env import VecEnvHost
from swath.rollout.policies.binding import bind, compiled, from_factory
from swath.rollout.policies.calling import Binding, ExplorationType, device_of, the_policy
from swath.rollout.seeding import PrivateStreams, preserved
from swath.rollout.spaces import Leaves
from swath.seeds import derive
from swath.weights.manifest import Manifest, take
from swath.weights.snapshot import POLICY, Snapshot, owner

_WAY_OUT = "evaluation runs a private copy: give it `__deepcopy__`, or an Evaluator a policy_factory"


class Wanted(NamedTuple):
    """What weights a model wants; travels.

    Attributes:
        manifest: names, shapes and dtypes.
        shapes: of the tensors in extra state, by its name.
    """

    manifest: Manifest
    shapes: Mapping[str, Mapping[str, Any]]

    def fitted(self, model_id: str, weights: Snapshot) -> Snapshot:
        """The weights as the model wants them.

        Raises:
            TypeError: the model has none.
            KeyError: other names.
            ValueError: other shapes.
        """
        fitting = take(weights, self.manifest)
        if fitting is None:
            raise TypeError(f"weights were sent for {model_id!r}, which has none; leave them out")
        for name, extra in fitting.extras.items():
            mine, theirs = self.shapes.get(name), _shapes(extra)
            if mine and mine != theirs:
                raise (ValueError if mine.keys() == theirs.keys() else KeyError)(
                    f"statistics for {model_id!r} have the shapes {theirs}, it has {mine}; nothing was changed"
                )
        return fitting


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
        try:
            self.policy = self._policy()
            self.device = options.policy_device or device_of(self.policy)
            self._acts = compiled(self.policy, options.settings.compile_policy, options.settings.cudagraph_policy)
        except BaseException:
            self._open.close()
            if self._built:
                close_broken(self.host)
            raise

    def bound(
        self, exploration: ExplorationType, root: int | None, observation: Leaves, episode_of: EpisodeOf
    ) -> Performer:
        """The policy as it acts in one evaluation, given the first observation. Random states stay as they are.

            deterministic, unseeded, or beside other threads  ──▶ one call for all B rows
            sampled from a seed                               ──▶ one call per row, with the noise of its own episode

        Where other threads draw from the process's generators these are left alone, and noise is drawn from them.

        Raises:
            TypeError: `predict` for envs that give TensorDicts.
            Exception: what binding a policy raises.
        """
        policy, spec, device, sampled = self._acts, self.host.spec, self.device, exploration is ExplorationType.RANDOM

        def bound_to(spec: HostSpec, observation: Leaves) -> Performer:
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
            return RowByRow(rows, episode_of, lambda episode: PrivateStreams(derive(root, "noise", 0, episode), device))

    def renew(self) -> None:
        """Close the envs and build others, which get what those before them had been sent.

        Envs that were handed in stay, and go on from their next reset.
        """
        if self._built:
            close_broken(self)
            self.host, self.closed = self._host(), False
            self._put(self._sent)

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
        if model_id == POLICY:
            return Wanted(Manifest.of(model), {})
        manifest = Manifest.of(moments_of(model) if has_moments(model) else model)
        extras = {name: model.get_submodule(owner(name)).get_extra_state() for name in manifest.extras}
        return Wanted(manifest, {name: _shapes(extra) for name, extra in extras.items()})

    def state(self, model_id: str) -> Any:
        """The state of a model, as its first copy has it.

        Raises:
            TypeError: it has none.
        """
        model = self._found(model_id)[0]
        if not hasattr(model, "state_dict"):
            raise TypeError(f"the model {model_id!r}, {type(model).__name__}, has no weights to keep")
        return model.state_dict()

    def apply(self, snapshots: Mapping[str, Snapshot]) -> None:
        """Put newer weights in: into all models and copies, or into none.

        Raises:
            KeyError, ValueError: they do not fit.
        """
        self._put(snapshots)
        self._sent.update(copy.deepcopy({name: each for name, each in snapshots.items() if name != POLICY}))

    def _put(self, snapshots: Mapping[str, Snapshot]) -> None:
        found = [(target, snapshot) for model_id, snapshot in snapshots.items() for target in self._found(model_id)]
        for put in [change(target, snapshot) for target, snapshot in found]:
            put()

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
        host = VecEnvHost(options.env) if source is None else build(source, Fitting(device=device, apart=True))
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


def _shapes(extra: Any) -> dict[str, Any]:
    state = extra if isinstance(extra, Mapping) else {}
    return {name: tuple(value.shape) if isinstance(value, torch.Tensor) else None for name, value in state.items()}
