"""Env and policy of one worker of an evaluation: built where they are used, the policy a private one.

id | callable | instance | list of k of these ──▶ S slots of one host, its running statistics frozen ─┐
policy | factory ──▶ private copy, in eval mode ───────────────────────────────────────────────────────┴──▶ Setting

Of a list, slot g runs entry g mod k. Models of a setting take weights by id: `"policy"`, and parts of the env on every
copy of it, such as `"env.transform[0]"` and, through gymnasium's wrappers, `"env.obs_rms"`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from inspect import getclosurevars
from itertools import cycle
from threading import Lock
from types import FunctionType
from typing import Any, NamedTuple

import torch

from swath.errors import warn_of_no_effect
from swath.evaluation.acting import EpisodeOf, Performer, Predictor, Predicts, RowByRow, row_of
from swath.evaluation.collector_settings import CollectorSettings
from swath.evaluation.env_parts import change, frozen, has_moments, moments_of, parts_at, paths_of
from swath.options import count
from swath.rollout.hosts.base import (
    ArraySpec,
    Host,
    HostSpec,
    TensorDictSpec,
    close_broken,
    closed_on_failure,
    first_of,
)
from swath.rollout.hosts.pettingzoo import is_parallel_env
from swath.rollout.hosts.sources import Source, build, is_env_instance, make_env
from swath.rollout.hosts.torchrl import Fitting, is_torchrl_env
from swath.rollout.hosts.vec_env import VecEnvHost, is_vec_env
from swath.rollout.hosts.vector import is_vector_env
from swath.rollout.policies.binding import bind, compiled, from_factory
from swath.rollout.policies.calling import Binding, ExplorationType, device_of, the_policy
from swath.rollout.seeding import PrivateStreams, preserved
from swath.rollout.spaces import Leaves
from swath.seeds import derive
from swath.weights.manifest import Manifest, take
from swath.weights.snapshot import POLICY, Snapshot, owner

_WAY_OUT = "evaluation runs a private copy: give it `__deepcopy__`, or an Evaluator a policy_factory"


@dataclass(frozen=True)
class SettingRequest:
    """What a worker of an evaluation builds.

    Attributes:
        env: an id, a callable, an instance, or a list of one kind of these: k tasks.
        num_envs: slots of the worker; `None`: 1 for an id or callable, the size of an instance or list.
        policy: the policy; `None` if a factory builds it.
        factory: builds the policy; called with the env if it wants one.
        device: where the policy runs; `None` leaves it where it is.
        seed: root of the seed under which a factory is called; `None` seeds nothing.
        alone: whether the process is the worker's own; if not, others draw from the process's generators meanwhile,
            and evaluations draw from them, too.
        rendered: ids are built so that they render frames, unless the keywords say otherwise.
        settings: keywords for an id or a callable, where envs run, whether and how the policy is compiled.
        borrows: whether instances go back to whoever has handed them in: envs are not closed, and an object with
            `predict` acts itself, with its modes put back at the end; draws are the caller's business then.
    """

    env: Any
    num_envs: int | None = None
    policy: Any = None
    factory: Callable[..., Any] | None = None
    device: torch.device | None = None
    seed: int | None = 0
    alone: bool = True
    rendered: bool = False
    settings: CollectorSettings = field(default_factory=CollectorSettings)
    borrows: bool = False

    @property
    def entries(self) -> list[Any]:
        """The tasks."""
        return [*self.env] if isinstance(self.env, list | tuple) else [self.env]

    @property
    def lent(self) -> bool:
        """Whether envs were handed in, so that there are no others."""
        return any(is_env_instance(entry) or is_vec_env(entry) for entry in self.entries)

    def source(self) -> Source | None:
        """What the host is built from; `None` for a `VecEnv` of Stable-Baselines3. Nothing is built yet.

        Raises:
            TypeError: no form of an env.
            ValueError: a number of slots that a list cannot have, or keywords for an instance.
        """
        if self.num_envs is not None:
            count("num_envs", self.num_envs)
        if isinstance(self.env, list | tuple):
            return self._in_turn([self._source(entry) for entry in self.env])
        if is_vec_env(self.env):
            return None
        return self._source(self.env, None if is_env_instance(self.env) else self.num_envs)

    def _source(self, env: Any, copies: int | None = None) -> Source:
        rendered = {"render_mode": "rgb_array"} if self.rendered and isinstance(env, str) else {}
        return Source(env, {**rendered, **self.settings.create_env_kwargs}, copies, "num_envs")

    def _in_turn(self, sources: list[Source]) -> Source:
        """One source that gives the envs of several in turn."""
        instances, n = {source.is_instance for source in sources}, len(sources)
        if len(instances) != 1:
            what = "a list of instances and of things to build; make it one kind" if n else "an empty list; name an env"
            raise ValueError(f"env is {what}")
        size = self.num_envs or n
        if size % n or (True in instances and size != n):
            wanted = f"{n}" if True in instances else f"a multiple of {n}"
            raise ValueError(f"num_envs={size} for a list of {n} envs; it must be {wanted}, or None")
        turns, kinds = cycle(sources), set[tuple[bool, bool]]()

        def make() -> Any:
            source = next(turns)
            env = source.env if source.is_instance else make_env(source)
            kinds.add((is_torchrl_env(env), is_parallel_env(env)))
            if len(kinds) > 1 or is_vector_env(env) or (is_torchrl_env(env) and env.batch_size):
                if not source.is_instance:
                    close_broken(env)
                raise TypeError(f"{source.env!r} in a list of envs gives {env}; a list takes single envs of one kind")
            return env

        return Source(make, {}, size, "num_envs", lends=True in instances)


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
        request: what to build.

    Attributes:
        host: the envs.
        policy: what has the weights; nobody else has it.
        device: where its inputs go; `None` for where the envs are.
        closed: whether the envs are closed.
        alone: as in the request.
        turn: held while the envs are used.

    Raises:
        TypeError: no form of an env, or a policy that cannot be copied.
        ValueError: envs that differ in their spaces, cannot go to the device, or are more or less than asked for.
        Exception: what building env or policy raised.
    """

    def __init__(self, request: SettingRequest) -> None:
        self._request, self._open, self.closed = request, ExitStack(), False
        self._sent: dict[str, Snapshot] = {}
        self._built, self.alone, self.turn = not request.lent, request.alone, Lock()
        self.host = self._host()
        try:
            self.policy = self._policy()
            self.device = request.device or device_of(self.policy)
            self._acts = compiled(self.policy, request.settings.compile_policy, request.settings.cudagraph_policy)
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
        if self._built or not self._request.borrows:
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
        request, device = self._request, self._request.settings.env_device
        source = request.source()
        host = VecEnvHost(request.env) if source is None else build(source, Fitting(device=device, apart=True))
        with closed_on_failure([host] if self._built else []):
            if request.num_envs not in (None, n := host.spec.num_envs):
                has = f"{request.env}, which has {n} already"
                raise ValueError(f"num_envs={request.num_envs} for {has}; leave it out, or pass a callable")
            if device is not None and host.spec.device is not None and device.type != host.spec.device.type:
                raise ValueError(f"env_device={str(device)!r}: these envs run on the CPU; leave it out or give 'cpu'")
        self._open.enter_context(frozen(host.env))
        return host

    def _policy(self) -> Any:
        request, policy = self._request, self._request.policy
        if request.factory is not None:
            # From generators that are seeded equally in every worker and life.
            seed = None if request.seed is None else derive(request.seed, "policy")
            with nullcontext() if seed is None else PrivateStreams(seed, request.device).swapped():
                policy = from_factory(request.factory, first_of(self.host.env))
        borrowed = request.borrows and isinstance(policy, Predicts)
        if not borrowed and (request.factory is None or not request.alone):  # others may hold what a factory gave
            policy = private_copy(policy, or_itself=request.factory is not None)
        if (module := module_of(policy)) is not None:
            for part in module.modules() if borrowed else ():
                self._open.callback(setattr, part, "training", part.training)
            module.eval()
        if request.device is not None and isinstance(policy, torch.nn.Module):
            policy.to(request.device)
        elif request.device is not None and isinstance(policy, Predicts):
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
