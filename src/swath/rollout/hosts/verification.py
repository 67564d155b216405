"""The check of an env's plan: it and TorchRL's own steps give the same bytes for the same answers and actions.

    spaces of the env ──▶ random answers ──▶ CheckedHost, a plan ───────────────────▶ leaves ──┐
                                                  │                                            ├─▶ equal, or no plan
                                               answers ──▶ GymWrapper, SerialEnv, transforms ──┘

The env itself is not stepped, and its random state does not change.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from swath.keys import ACTION, FLAGS, NEXT, REWARD, Key
from swath.rollout.hosts.base import Transition
from swath.rollout.hosts.plan import Chain, PlanHost, chain_of
from swath.rollout.hosts.program import Program, Unit, require_known_transforms
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.hosts.torchrl import TorchRLEnv
from swath.rollout.hosts.transforms import stage_of
from swath.rollout.plans import VARIABLE, NoPlan, plans_mode
from swath.rollout.seeding import GeneratorStates, preserve_generators
from swath.rollout.spaces import Leaves

N_CHECKED_STEPS = 24
_results = dict[Any, str | None]()  # the error of each plan of this process by its settings, or `None`


class Answers(gym.Env[Any, Any]):
    """A gymnasium env that gives random answers of its spaces, the same for the same seed.

    Args:
        env: an env with these spaces.
        seed: of the answers.

    Attributes:
        actions: type and bytes of the actions that it got.
    """

    def __init__(self, env: gym.Env[Any, Any], seed: int) -> None:
        self.observation_space, self.action_space = copy.deepcopy((env.observation_space, env.action_space))
        self.observation_space.seed(seed)
        self.action_space.seed(seed)
        self._random, self.actions = np.random.default_rng(seed), list[Any]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        """Return an observation."""
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return an answer; one in four ends an episode."""
        self.actions.append(_bytes_of(action))
        kind = self._random.random()
        reward = float(self._random.normal() * 10)
        return self.observation_space.sample(), reward, kind < 0.15, 0.1 < kind < 0.25, {}


def _bytes_of(action: Any) -> tuple[Any, ...]:
    array = np.asarray(action)
    return type(action), array.dtype, array.shape, array.tobytes()


class Recorded:
    """A gymnasium env whose answers are recorded.

    Args:
        env: the env.

    Attributes:
        answers: the actions that it got, `None` for a reset, and its answers.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env, self.answers = env, deque[tuple[Any, Any]]()

    def reset(self) -> Any:
        """Reset the env."""
        return self._record(None, self.env.reset())

    def step(self, action: Any) -> Any:
        """Step the env."""
        before = _bytes_of(action)
        return self._record(before, self.env.step(action))

    def _record(self, action: Any, answer: Any) -> Any:
        self.answers.append((action, copy.deepcopy(answer[:-1])))
        return answer


class Replayed(gym.Env[Any, Any]):
    """A gymnasium env that gives the answers of another one.

    Args:
        source: has recorded them.
    """

    def __init__(self, source: Recorded) -> None:
        self.observation_space, self.action_space = source.env.observation_space, source.env.action_space
        self._source = source

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:  # noqa: ARG002
        """Return the first observation of the other env."""
        return (*self._next(None), {})

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return the answer of the other env to this action."""
        return (*self._next(_bytes_of(action)), {})

    def _next(self, action: Any) -> Any:
        expected, answer = self._source.answers.popleft() if self._source.answers else ("no further call", ())
        if action != expected:
            raise NoPlan(f"the env gets {expected} in a plan, and {action} in TorchRL")
        return answer


def plain_host(program: Program, units: Sequence[Unit], sources: Sequence[Any], *, autoresets: bool) -> TensorDictHost:
    """Return a host of TorchRL's envs with the wrappers and transforms of a plan, over other gymnasium envs.

    Args:
        program: the parts of the plan.
        units: whose wrappers and transforms to copy, with their states.
        sources: the gymnasium envs, one per unit.
        autoresets: whether a step resets episodes that end.
    """
    torchrl_envs = importlib.import_module("torchrl.envs")

    def add_transforms(env: Any, transforms: Sequence[Any]) -> Any:
        copies = [copy.deepcopy(transform.clone()) for transform in transforms]  # a clone has no env
        for transform in copies:
            if type(transform) is torchrl_envs.TensorDictPrimer and transform.primers.shape:  # of other envs than these
                transform.primers = transform.primers[(0,) * len(transform.primers.shape)]
        return torchrl_envs.TransformedEnv(env, torchrl_envs.Compose(*copies)) if copies else env

    def build(unit: Unit, source: Any) -> Any:
        return add_transforms(copy.deepcopy(unit.wrapper, {id(unit.env): source}), unit.transforms)

    makers = [partial(build, unit, source) for unit, source in zip(units, sources, strict=True)]
    if program.separate:
        adapters = [TorchRLEnv(make(), autoresets=autoresets) for make in makers]
        return TensorDictHost(adapters, None, separate=True)
    env = makers[0]()
    if program.batched:
        env = torchrl_envs.SerialEnv(len(makers), makers)
        env.start()
    adapter = TorchRLEnv(add_transforms(env, program.transforms), autoresets=autoresets)
    return TensorDictHost([adapter], None, separate=False)


def _draw_action(unit: Unit, source: Answers) -> torch.Tensor:
    action: torch.Tensor = unit.wrapper.full_action_spec[ACTION].encode(source.action_space.sample())
    return action


def _require_arrays(program: Program) -> None:
    """Check that each wrapper hands actions on as arrays or numbers.

    Raises:
        NoPlan: it hands on tensors.
    """
    for unit in program.units:
        source = Answers(unit.env, 0)
        trial = copy.deepcopy(unit.wrapper, {id(unit.env): source})
        trial.step(TensorDict({ACTION: _draw_action(unit, source)}, device=unit.wrapper.device))
        if issubclass(source.actions[0][0], torch.Tensor):
            raise NoPlan(f"{type(unit.wrapper).__name__} has actions as tensors")


def verify(host: PlanHost, *, owns_generators: bool = True) -> None:
    """Run the env's plan and TorchRL's own steps on the same answers and actions, once per process and settings.

    The actions of each wrapper are looked at every time, since TorchRL does not publish this setting.

    Args:
        host: the plan.
        owns_generators: whether no other thread draws from the process's generators; else they are left alone.

    Raises:
        NoPlan: they differ.
    """
    program = host.program
    if host.resets_by_torchrl and not owns_generators:
        raise NoPlan("TorchRL begins its episodes, for which it may draw as other threads do")
    with preserve_generators() if owns_generators else nullcontext(), torch.no_grad():
        _require_arrays(program)
        if host.config not in _results:
            difference = None
            try:
                _compare(host, owns_generators=owns_generators)
            except NoPlan as reason:
                difference = str(reason)
            _results[host.config] = difference
        if (difference := _results[host.config]) is not None:
            raise NoPlan(difference)


def _compare(host: PlanHost, *, owns_generators: bool) -> None:
    """Run a plan like this one and TorchRL's own steps on the same answers and actions.

    Raises:
        NoPlan: they differ.
    """
    program = host.program
    distinct = {repr([stage_of(part, ()).config for part in unit.transforms]): unit for unit in program.units}
    units = [*program.units] if host.resets_by_torchrl else [*distinct.values()]  # statistics may have a row per env
    if len(units) == 1 and not host.resets_by_torchrl and (program.batched or program.separate):
        units *= 2
    sources = [Answers(unit.env, seed) for seed, unit in enumerate(units)]
    planned = CheckedHost(
        plain_host(program, units, sources, autoresets=host.autoresets), owns_generators=owns_generators
    )
    planned.reset_all()
    for _ in range(N_CHECKED_STEPS):
        actions = [_draw_action(unit, source) for unit, source in zip(units, sources, strict=True)]
        transition = planned.compare_step([torch.stack(actions).numpy().astype(planned.spec.action[0].dtype)])
        for _, error in transition.failed:
            raise NoPlan(f"a step raised {error!r}")
        planned.compare_reset(transition.ends.envs.tolist(), transition.observation)


class CheckedHost(PlanHost):
    """A plan whose steps TorchRL makes, too, from what the gymnasium envs have answered; the first difference raises.

    TorchRL's wrappers and transforms are copies, made again after each reset by TorchRL.

    Args:
        plain: the host of the TorchRL env.
        owns_generators: whether no other thread draws from the process's generators; else they are left alone.
    """

    def __init__(self, plain: TensorDictHost, *, owns_generators: bool) -> None:
        self._owns_generators, self._recorded = owns_generators, list[Recorded]()
        self._copies: list[TensorDictHost] = []
        self._n_steps = 0
        super().__init__(plain)

    def load(self, root: TensorDictBase) -> Leaves:
        """Continue from a root `[*B]` of TorchRL, and return its leaves."""
        self._copies = []
        return super().load(root)

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs, unless their last step did.

        Raises:
            RuntimeError: TorchRL's first observations are others.
        """
        with self._explain_difference():
            return self.compare_reset(envs, base, seeds)

    def step(self, action: Leaves, only: int | None = None) -> Transition:  # noqa: ARG002
        """Step every env that is not retired.

        Raises:
            RuntimeError: TorchRL's step is another.
        """
        self._n_steps += 1
        with self._explain_difference():
            return self.compare_step(action)

    def compare_reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs, unless their last step did.

        Raises:
            NoPlan: TorchRL's first observations are others.
        """
        root, copies = self.dump().clone(), self._copies_of_env()
        leaves = super().reset(envs, base, seeds)
        if any(recorded.answers for recorded in self._recorded):
            require_same("the first", self.spec.observation_keys, leaves, copies[0].reset(envs, [root])[0])
        elif {*envs} - self._fresh:
            self._copies = []
        return leaves

    def compare_step(self, action: Leaves) -> Transition:
        """Step every env that is not retired; TorchRL's step is made from the same states of the generators.

        Raises:
            NoPlan: TorchRL's step is another.
        """
        owned, root, copies = self._owns_generators, self.dump().clone(), self._copies_of_env()
        before = GeneratorStates() if owned else None
        transition = super().step(action)
        if transition.failed:
            self._copies = []
            return transition
        ends, draws = transition.ends, GeneratorStates() if owned else None
        if before is not None:
            before.restore()
        flags = np.zeros((3, self.spec.num_envs, 1), np.bool_)
        flags[1, ends.envs, 0], flags[2, ends.envs, 0] = ends.terminated, ends.truncated
        flags[0] = flags[1] | flags[2]
        step = [*transition.observation, transition.reward[:, None], *flags]
        for number, plain in enumerate(copies):
            if not self.program.separate:
                self._compare_with(plain, root, action, step, slice(None))
            elif number not in self._retired:
                self._compare_with(plain, root[number], action, step, slice(number, number + 1))
        has_reset = ends.envs.size and self.resets_by_torchrl  # TorchRL's copy has not reset
        if draws is not None and has_reset:
            draws.restore()
        elif draws is not None and not draws.equals(GeneratorStates()):
            raise NoPlan("the env draws other random numbers in a plan")
        if has_reset:
            self._copies = []
        return transition

    def _compare_with(
        self, plain: TensorDictHost, root: TensorDictBase, action: Leaves, step: Leaves, at: slice
    ) -> None:
        """Make the step of some rows by TorchRL, and compare its entries with the plan.

        Raises:
            NoPlan: they differ.
        """
        keys = self.spec.observation_keys
        outputs: list[tuple[int, Key]] = [(0, ACTION), *((place, (NEXT, name)) for place, name in self._written)]
        for place, key in outputs:
            rows = action[place][at]
            root.set(key, torch.from_numpy(rows).reshape((*root.batch_size, *rows.shape[1:])))
        written = [root]
        expected = plain.step(written)
        for _, error in expected.failed:
            raise error if isinstance(error, NoPlan) else NoPlan(f"only TorchRL's step raised {error!r}")
        require_same("the next", (*keys, REWARD, *FLAGS), [leaf[at] for leaf in step], written[0].get(NEXT))
        if plain.spec.autoresets:
            require_same("the first", keys, self._leaves(self._root), expected.observation[0])

    def _make_chain(self) -> Chain:
        self._recorded = [Recorded(unit.env) for unit in self.program.units]
        return chain_of(self.program, self._recorded)

    def _copies_of_env(self) -> list[TensorDictHost]:
        """Return hosts of TorchRL's env, or of each separate env, over envs that replay answers."""
        for recorded in self._recorded:
            recorded.answers.clear()
        if not self._copies:
            programs, sources = [self.program], [*map(Replayed, self._recorded)]
            if self.program.separate:
                units = self.program.units
                programs = [
                    Program((replace(unit, transforms=()),), unit.transforms, batched=False, separate=False)
                    for unit in units
                ]
            shares = [sources] if len(programs) == 1 else [[source] for source in sources]
            autoresets = self.autoresets and not self.resets_by_torchrl
            self._copies = [
                plain_host(program, program.units, share, autoresets=autoresets)
                for program, share in zip(programs, shares, strict=True)
            ]
        return self._copies

    @contextmanager
    def _explain_difference(self) -> Iterator[None]:
        try:
            yield
        except NoPlan as difference:
            place = f"step {self._n_steps}: plan and env {type(self._torchrl_envs[0]).__name__} differ: {difference}"
            raise RuntimeError(f"{place}; unset {VARIABLE}=check, or set {VARIABLE}=0, and report it") from None


def require_same(place: str, keys: Sequence[Key], leaves: Leaves, td: TensorDictBase) -> None:
    """Check leaves `[B, …]` against entries `[*B, …]`.

    Raises:
        NoPlan: they differ.
    """
    for key, leaf in zip(keys, leaves, strict=True):
        value = td.get(key).numpy(force=True)
        same_form = value.dtype == leaf.dtype and leaf.shape in (value.shape, (1, *value.shape))
        if not same_form or value.tobytes() != leaf.tobytes():
            raise NoPlan(f"{place} {key!r} is {leaf!r} in a plan, and {value!r} in TorchRL")


def plan_of_env(host: TensorDictHost, *, owns_generators: bool = True) -> PlanHost:
    """Return the verified host that steps the gymnasium envs inside TorchRL's; random states do not change.

    Args:
        host: the host of TorchRL's envs.
        owns_generators: whether no other thread draws from the process's generators; else they are left alone.

    Raises:
        NoPlan: the env has no plan; the message says why.
        Exception: what the env raised.
    """
    if not isinstance(host.envs[0], TorchRLEnv):
        raise NoPlan("envs of PettingZoo")
    adapter = host.envs[0]
    if adapter.reason_for_no_plan:
        raise NoPlan(adapter.reason_for_no_plan)
    if adapter.plan is not None:
        adapter.plan.renew()
        planned: PlanHost = adapter.plan
        return planned
    checks = plans_mode() == "check"
    planned = CheckedHost(host, owns_generators=owns_generators) if checks else PlanHost(host)
    verify(planned, owns_generators=owns_generators)
    for adapter in host.envs:
        require_known_transforms(adapter.env)
    return planned


def log_no_plan(env: Any, reason: str) -> None:
    """Log at level DEBUG why an env has no plan."""
    logging.getLogger("swath").debug("no plan for %s: %s", type(env).__name__, reason)
