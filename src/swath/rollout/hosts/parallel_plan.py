"""The plan of TorchRL's `ParallelEnv`: its gymnasium envs step in env processes, each with a plan.

    action ─▶ ParallelPlan: transforms over all envs ─▶ EnvProcesses ─▶ a PlanHost in each process ─▶ entries

TorchRL's own processes are not started, or closed when their envs were seeded. A policy without a plan reads and writes
TensorDicts of the same envs, which `PlannedEnv` makes from the entries.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase

from swath.keys import ACTION, DONE, NEXT, REWARD, TERMINATED, TRUNCATED
from swath.rollout.hosts.base import EnvRaised, Transition, close_on_failure, close_quietly
from swath.rollout.hosts.env_server import Processes
from swath.rollout.hosts.parallel import ProcessHost
from swath.rollout.hosts.plan import Chain, PlanHost, chain_of
from swath.rollout.hosts.program import Program, are_one_function
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.hosts.torchrl import CREATOR, TorchRLEnv
from swath.rollout.hosts.transforms import Entries, stage_of
from swath.rollout.hosts.verification import N_CHECKED_STEPS, log_no_plan, plan_of_env, require_same, verify
from swath.rollout.plans import NoPlan, plans_mode
from swath.rollout.seeding import preserve_generators
from swath.rollout.spaces import Array, Leaves

STEP_TIMEOUT_S = 10_000.0  # TorchRL's timeout for its processes
STARTED = "other code has started the ParallelEnv"


def entries_of(keys: Sequence[Any], transition: Transition) -> Entries:
    """Return the entries of a step under `"next"`; `keys` are the ones of its observation."""
    ends, entries = transition.ends, dict(zip(map(str, keys), transition.observation, strict=True))
    terminated, truncated = np.zeros((2, len(transition.reward), 1), np.bool_)
    terminated[ends.envs, 0], truncated[ends.envs, 0] = ends.terminated, ends.truncated
    flags = {DONE: terminated | truncated, TERMINATED: terminated, TRUNCATED: truncated}
    return {**entries, REWARD: transition.reward[:, None].astype(np.float32, copy=False), **flags}


class EnvProcesses:
    """Steps the envs of a `ParallelEnv` in processes, as the source of a chain.

    Args:
        host: the envs, with their own transforms.
        inner: settings of the transforms in the processes.
    """

    def __init__(self, host: ProcessHost, inner: list[Any]) -> None:
        self.host, self._inner, self._n = host, inner, host.spec.num_envs
        self._keys = [str(key) for key in host.spec.observation_keys]
        self._zeros = [np.zeros((self._n, *leaf.shape), leaf.dtype) for leaf in host.spec.observation]

    def configure(self) -> list[Any]:
        """Return names and settings of the transforms of single envs, which do not change."""
        return self._inner

    def step(self, root: Entries, actions: Array, idle: Collection[int] = ()) -> Entries:  # noqa: ARG002
        """Step every env, and return the entries `[B, …]` of the step.

        Raises:
            EnvRaised: an env raised, or its process was lost.
        """
        transition = self.host.step([actions])
        for env, error in transition.failed:
            raise EnvRaised(env, error)
        return entries_of(self._keys, transition)

    def reset(self, envs: Sequence[int]) -> Entries:
        """Reset these envs, and return the first entries `[B, …]`; the rows of the others are zero."""
        return self._entries(self.host.reset(envs, self._zeros))

    def reset_all(self, seed: int | None, *, static: bool) -> Entries:
        """Reset every env, and return the first entries `[B, …]`.

        Args:
            seed: of the first env, from which TorchRL derives the others; `None`: continue from their random states.
            static: whether all envs get the same seed.
        """
        if seed is not None and self.host.has_lost:
            self.host.reset_all()
        if seed is not None:
            for index in range(self.host.num_processes):
                seed = self.host.ask(index, "map", partial(_set_seed, seed=seed, static=static))[0]
        return self._entries(self.host.reset_all())

    def _entries(self, leaves: Leaves) -> Entries:
        return dict(zip(self._keys, leaves, strict=True))


class ParallelPlan(PlanHost):
    """The gymnasium envs of a `ParallelEnv`, built again in processes, and their transforms.

    Args:
        env: the `ParallelEnv`, or a `TransformedEnv` of it.
        autoresets: whether a step resets the episodes that end.
        processes: its envs; `None` to begin processes, at most one per CPU.

    Raises:
        NoPlan: the env has no plan; the message says why.
        Exception: what building an env raised.
    """

    def __init__(self, env: Any, *, autoresets: bool, processes: ProcessHost | None = None) -> None:
        self._makers, self._stand_ins, self._process_host = _makers(env), list[Any](), processes
        try:
            with preserve_generators():
                for make in self._makers[:1] if are_one_function(self._makers) else self._makers:
                    self._stand_ins.append(make())
            super().__init__(TensorDictHost([TorchRLEnv(env, autoresets=autoresets)], None, separate=False))
            verify(self)
        except BaseException:
            self.close()
            raise

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env; TorchRL derives their seeds from the first one."""
        seed, static = (None, False) if seeds is None else (seeds[0], len(seeds) > 1 and len({*seeds}) == 1)
        first = self._processes.reset_all(seed, static=static)
        return self._continue(self._chain.begin(first))

    def is_valid(self) -> bool:
        """Tell whether the env still is as it was when the plan was made, and TorchRL has started no envs."""
        return not is_started(self.env) and super().is_valid()

    def renew(self) -> None:
        """Read the settings of the transforms again, and check the plan with them.

        Raises:
            NoPlan: the env has other parts than when the plan was made, or the plan differs from TorchRL's steps.
        """
        if self.is_valid():
            return
        if is_started(self.env):
            raise NoPlan(STARTED)
        if not self.program.is_of(self._torchrl_envs):
            raise NoPlan("it has other transforms")
        verify(self)

    def require_same_steps(self, root: TensorDictBase, seeds: Sequence[int | None]) -> None:
        """Step TorchRL's envs and the ones of the plan, and begin with the same seeds again.

        Args:
            root: first entries of TorchRL's envs, which are started.
            seeds: of the episodes that have begun.

        Raises:
            NoPlan: they differ, or other episodes change what seeds give.
            Exception: what an env raised.
        """
        plain, first = self.plain.envs[0], root.clone()
        self._require_same("the first", self.reset_all(seeds), root)
        with preserve_generators():
            for _ in range(N_CHECKED_STEPS):
                root = plain.draw(root)
                transition = self.step([root.get(ACTION).numpy()])
                for _, error in transition.failed:
                    raise error
                stepped, root = plain.step(root)
                entries = entries_of(self._keys, transition)
                require_same("the next", [*entries], [*entries.values()], stepped.get(NEXT))
                self._require_same("the first", self._leaves(self._root), root)
        leaves = self.reset_all(seeds)
        self._require_same("after other episodes the first", leaves, plain.reset(seeds))
        self._require_same("after other episodes the first", leaves, first)

    def _require_same(self, place: str, leaves: Leaves, root: TensorDictBase) -> None:
        require_same(place, self.spec.observation_keys, leaves, root)

    def render(self, env: int) -> Array | None:
        """Return a frame of this env, or `None`."""
        return self._processes.host.render(env)

    def close(self) -> None:
        """Close every env, and end the processes."""
        for stand_in in self._stand_ins:
            if not stand_in.is_closed:
                close_quietly(stand_in)
        if (processes := getattr(self, "_processes", None)) is not None:
            processes.host.close()

    def _make_program(self) -> Program:
        return Program.of(self._torchrl_envs, separate=False, stand_ins=self._stand_ins)

    def _make_chain(self) -> Chain:
        """Begin the processes, and return the transforms over their envs.

        Raises:
            NoPlan: their envs have a state, or TorchRL begins their episodes.
        """
        n, outer = len(self._makers), self.program.transforms
        if any(stand_in.state_dict() for stand_in in self._stand_ins):
            raise NoPlan("the envs of the ParallelEnv have a state_dict")
        inner = chain_of(Program(self.program.units, (), batched=True, separate=False)).configure()
        if "TensorDictPrimer" in {*(name for name, *_ in inner), *(type(transform).__name__ for transform in outer)}:
            raise NoPlan("a TensorDictPrimer of a ParallelEnv")
        outer_begins = [stage_of(transform, (n,)).reset is not None for transform in outer]
        if not all((*outer_begins, *(begins for *_, begins in inner))):
            raise NoPlan("TorchRL begins the episodes of the ParallelEnv")
        self._processes = EnvProcesses(self._process_host or _begin_processes(self._makers), inner)
        return Chain(self._processes, outer, (n,))


class PlannedEnv(TorchRLEnv):
    """A `ParallelEnv` whose envs a plan steps, for policies that read and write TensorDicts.

    Where TorchRL has started its processes, their envs are stepped until they are seeded. Then envs of the plan with
    the same seeds are compared with them, and take their place.

    Args:
        env: the `ParallelEnv`, or a `TransformedEnv` of it.
        autoresets: whether a step resets episodes that end.
        processes: its envs; `None` to begin processes, at most one per CPU.

    Attributes:
        plan: steps the envs; `None` if TorchRL does.

    Raises:
        NoPlan: the env has no plan; the message says why.
        Exception: what building an env raised.
    """

    plan: ParallelPlan | None

    def __init__(self, env: Any, *, autoresets: bool, processes: ProcessHost | None = None) -> None:
        super().__init__(env, autoresets=autoresets)
        self.plan, self._awaits_seeds = None, is_started(env)
        if self._awaits_seeds:
            self.reason_for_no_plan = f"{STARTED}, and its envs were not seeded since"
        else:
            self._use_plan(ParallelPlan(env, autoresets=autoresets, processes=processes))

    def reset(self, seeds: Sequence[int | None] | None) -> Any:
        """Begin an episode in every env of the batch, seeded from the first seed, and return the root."""
        if (plan := self._checked_plan()) is None:
            root = super().reset(seeds)
            return root if seeds is None or not self._awaits_seeds else self._replace_envs(root, seeds)
        plan.reset_all(seeds)
        return plan.dump()

    def reset_some(self, root: TensorDictBase, envs: Sequence[int]) -> Any:
        """Begin an episode in these envs of the batch, and return the root with their rows."""
        if (plan := self._checked_plan()) is None:
            return super().reset_some(root, envs)
        plan.reset(envs, plan.load(root))
        return root.update(plan.dump())

    def step(self, root: TensorDictBase) -> tuple[Any, Any]:
        """Step, reset if `autoresets`, and return the root with `"next"` and the root of the next step.

        Raises:
            Exception: what an env raised.
        """
        if (plan := self._checked_plan()) is None:
            return super().step(root)
        plan.load(root)
        transition = plan.step([root.get(ACTION).numpy(force=True)])
        for _, error in transition.failed:
            raise error
        tensors = {
            key: torch.from_numpy(array) for key, array in entries_of(plan.spec.observation_keys, transition).items()
        }
        root = root.set(NEXT, TensorDict(tensors, batch_size=root.batch_size, device=self.env.device))
        next_root = self.env.step_mdp(root)
        if self.autoresets and len(transition.ends.envs):
            next_root.update(plan.dump())
        return root, next_root

    def render(self, env: int) -> Array | None:
        """Return a frame of this env; `None` if it does not render arrays."""
        return super().render(env) if self.plan is None else self.plan.render(env)

    def close(self) -> None:
        """Close the envs, and end their processes."""
        if self.plan is not None:
            self.plan.close()
        super().close()

    def _use_plan(self, plan: ParallelPlan) -> None:
        self.plan, self._awaits_seeds, self.reason_for_no_plan = plan, False, ""
        if self.env is self.stateful:  # its state_dict would ask TorchRL's processes
            self.stateful = None

    def _replace_envs(self, root: TensorDictBase, seeds: Sequence[int | None]) -> Any:
        """Replace TorchRL's envs by the plan's, if they are equal; return their first entries.

        Args:
            root: first entries of TorchRL's envs.
            seeds: of the episodes that have begun.
        """
        self._awaits_seeds = False
        try:
            plan = ParallelPlan(self.env, autoresets=self.autoresets)
            with close_on_failure([plan]):
                plan.require_same_steps(root, seeds)
        except Exception as error:  # noqa: BLE001  TorchRL's own way runs
            self.reason_for_no_plan = _reason(self.env, error)
            return super().reset(seeds)
        _base_env(self.env).close()
        self._use_plan(plan)
        return plan.dump()

    def _checked_plan(self) -> ParallelPlan | None:
        """Return the plan, after a check that the envs in the processes are the ones that the user sees.

        Raises:
            RuntimeError: they are not.
        """
        try:
            if self.plan is not None:
                self.plan.renew()
        except NoPlan as reason:
            raise RuntimeError(
                f"the ParallelEnv has changed since its envs began ({reason}), which they do not see: "
                "pass plans=False, or change it before"
            ) from None
        return self.plan


def adapt_torchrl_env(env: Any, *, autoresets: bool, plans: bool) -> TorchRLEnv:
    """Return a TorchRL env for `TensorDictHost`; a `ParallelEnv` steps by its plan, if it has one.

    Args:
        env: the env.
        autoresets: whether a step resets episodes that end.
        plans: whether to look for the plan of a `ParallelEnv`.
    """
    if not (plans and plans_mode() != "off" and type(_base_env(env)) is _parallel_env()):
        return TorchRLEnv(env, autoresets=autoresets)
    try:
        return PlannedEnv(env, autoresets=autoresets)
    except Exception as error:  # noqa: BLE001  TorchRL's own way runs
        return TorchRLEnv(env, autoresets=autoresets, reason_for_no_plan=_reason(env, error))


def _reason(env: Any, error: Exception) -> str:
    """Return the reason for no plan, and log it."""
    reason = str(error) if isinstance(error, NoPlan) else repr(error)
    log_no_plan(env, reason)
    return reason


def is_started(env: Any) -> bool:
    """Tell whether TorchRL steps the envs of a `ParallelEnv` in its own processes."""
    return not _base_env(env).is_closed


def _parallel_env() -> Any:
    return importlib.import_module("torchrl.envs").ParallelEnv


def _base_env(env: Any) -> Any:
    while isinstance(env, importlib.import_module("torchrl.envs").TransformedEnv):
        env = env.base_env
    return env


def _makers(env: Any) -> list[Callable[[], Any]]:
    """Return functions that build the envs of a `ParallelEnv`, one per env."""
    parallel_env = _base_env(env)
    creator, makers = getattr(importlib.import_module(CREATOR[0]), CREATOR[1]), list[Callable[[], Any]]()
    for make, kwargs in zip(parallel_env.create_env_fn, parallel_env.create_env_kwargs, strict=True):
        if isinstance(make, creator):
            makers.append(partial(make.create_env_fn, **{**kwargs, **make.create_env_kwargs}))
        else:
            makers.append(partial(make, **kwargs))
    return makers


def parallel_batch_of(makers: Sequence[Callable[[], Any]]) -> Any:
    """Return a `ParallelEnv` of functions that build envs; it is not started."""
    return _parallel_env()(len(makers), [*makers])


def _begin_processes(makers: Sequence[Callable[[], Any]]) -> ProcessHost:
    n, number = len(makers), min(len(makers), len(os.sched_getaffinity(0)))
    starts = [n * index // number for index in range(number + 1)]
    shares = [partial(_build_share, makers[start:stop]) for start, stop in pairwise(starts)]
    return ProcessHost(shares, Processes(number, STEP_TIMEOUT_S))


def _build_share(makers: Sequence[Callable[[], Any]]) -> PlanHost:
    env = importlib.import_module("torchrl.envs").SerialEnv(len(makers), [*makers])
    with close_on_failure([env]):
        return plan_of_share(env)


def plan_of_share(env: Any, *, plans: bool = True) -> PlanHost:
    """Return the plan of a `SerialEnv` in an env process.

    Args:
        env: the env.
        plans: whether it may have a plan.

    Raises:
        NoPlan: it has no plan; the message says why.
    """
    if plans_mode() == "off" or not plans:
        raise NoPlan("plans are off")
    return plan_of_env(TensorDictHost([TorchRLEnv(env, autoresets=False)], None, separate=False))


def _set_seed(env: Any, *, seed: int, static: bool) -> int | None:
    """Seed the envs of a process; return the seed of the first env of the next process."""
    next_seed: int | None = env.set_seed(seed, static_seed=static)
    return next_seed
