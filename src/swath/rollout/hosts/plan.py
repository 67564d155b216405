"""The plan of a TorchRL env: gymnasium envs are stepped directly, wrappers and transforms run as array programs.

    GymEnv, GymWrapper  ─┐
    SerialEnv           ─┼─▶ PlanHost ─▶ Chain: transforms over all envs ─┬─▶ Reader: gymnasium envs, and their answers
    TransformedEnv      ─┘                                                └─▶ Rows: a Chain of one env each

The entries are TorchRL's, bit for bit: same keys, shapes, dtypes, random draws. State stays where TorchRL has it, in
the gymnasium envs and the transforms; all other state is in the entries of the root. So a run may go on with the plan
or with TorchRL's own step from any step on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain as joined
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from swath.keys import ACTION, DONE, FLAGS, REWARD, TERMINATED, TRUNCATED, Key, under_next
from swath.rollout.hosts.base import NO_ENDS, ArrayHost, ArraySpec, Ends, EnvRaised, Transition
from swath.rollout.hosts.program import Program, Unit
from swath.rollout.hosts.tensordict import TensorDictHost
from swath.rollout.hosts.transforms import Entries, Stage, stage_of, to_numpy_dtype
from swath.rollout.plans import NoPlan
from swath.rollout.spaces import Array, Leaf, Leaves, unbounded_leaf

_CHECKED_READS = 8  # answers of each env that are read both ways
_FLOATS, _BOOLS = (float, np.float64, np.float32), (bool, np.bool_)
_LARGEST = float(np.finfo(np.float32).max)


class PlanHost(ArrayHost):
    """The gymnasium envs of a TorchRL env, or of several separate ones, and their transforms.

    Args:
        plain: the host of the TorchRL env, which makes resets with seeds.

    Attributes:
        plain: as above.
        program: the parts of the envs.
        autoresets: whether a step resets the episodes that end.
        resets_by_torchrl: whether TorchRL itself begins episodes.

    Raises:
        NoPlan: the env has no plan; the message says why.
    """

    def __init__(self, plain: TensorDictHost) -> None:
        super().__init__([], None)
        self.plain, outer = plain, plain.spec
        self.program = self._make_program()
        env, n, keys = self._torchrl_envs[0], outer.num_envs, [*outer.observation_keys]
        if nested := [key for key in (*keys, *outer.all_done_keys, *outer.reward_keys) if not isinstance(key, str)]:
            raise NoPlan(f"the env has the nested keys {nested}")
        if sorted(env.done_keys) != sorted(FLAGS) or env.reward_keys != [REWARD] or env.action_keys != [ACTION]:
            raise NoPlan("the env has other rewards, flags or actions than one of each")
        if env.reward_spec.dtype != torch.float32 or env.reward_spec.shape[-1:] != (1,):
            raise NoPlan(f"the env has rewards of {env.reward_spec.dtype}")
        n_lead, no_action = len(env.batch_size), spaces.Dict()
        leaves = tuple(_leaf(str(key), env.full_observation_spec[key], n_lead) for key in keys)
        action = _leaf(ACTION, env.full_action_spec[ACTION], n_lead)
        singly, seeding = outer.steps_singly, outer.seeding
        self.spec = ArraySpec(
            n,
            outer.batch_shape,
            leaves,
            (action,),
            no_action,
            no_action,
            steps_singly=singly,
            seeding=seeding,
            library="torchrl",
        )
        self._keys, self._device, self.autoresets = [str(leaf.key) for leaf in leaves], env.device, outer.autoresets
        self._chain = self._make_chain()
        self._configure()
        self._root: Entries = {}
        self._fresh = set[int]()  # envs whose episode ended in the last step, and whose next one has begun
        self._retired = set[int]()
        self._written = list[tuple[int, str]]()  # places and names of entries of the root that the policy writes

    @property
    def config(self) -> tuple[Any, ...]:
        """Return all settings that the plan depends on."""
        spec, wrapper = self.spec, self.program.units[0].wrapper
        return (
            str(wrapper.specs),
            *(f"{leaf.key} {leaf.shape} {leaf.dtype}" for leaf in (*spec.observation, *spec.action)),
            repr(self._configs),
            self.program.batched,
            spec.steps_singly,
            self.autoresets,
            wrapper.wrapper_frame_skip,
        )

    @property
    def env(self) -> Any:
        """Return the TorchRL env, or a list of several."""
        return self.plain.env

    @property
    def _torchrl_envs(self) -> list[Any]:
        return [adapter.env for adapter in self.plain.envs]

    def is_valid(self) -> bool:
        """Tell whether the env still is as it was when the plan was made; runs once per fragment."""
        try:
            if not self.program.is_of(self._torchrl_envs):
                return False
            before = self._configs
            self._configure()
        except NoPlan:
            return False
        return before == self._configs

    def hand_on(self, outputs: Sequence[Key]) -> None:
        """Hand on to the next root the recurrent state that a policy writes under `"next"`, and a transform begins.

        Args:
            outputs: keys of the policy's outputs, in the order of the leaves that `step` gets.

        Raises:
            NoPlan: a transform reads it.
        """
        places = {key: at for at, key in enumerate(outputs)}
        self._written = [(places[under_next(name)], name) for name in self._keys if under_next(name) in places]
        names = {name for _, name in self._written}
        transforms = [*self.program.transforms, *joined.from_iterable(unit.transforms for unit in self.program.units)]
        for transform in transforms:
            if type(transform).__name__ != "TensorDictPrimer" and names & {*map(str, transform.in_keys or ())}:
                raise NoPlan(f"{type(transform).__name__} reads what the policy writes")

    def load(self, root: TensorDictBase) -> Leaves:
        """Continue from a root `[*B]` of TorchRL, and return its leaves."""
        return self._continue(self._entries_of(root))

    def dump(self) -> TensorDictBase:
        """Return the root `[*B]` from which TorchRL would continue."""
        shape = self.spec.batch_shape
        entries = {name: torch.from_numpy(rows.reshape(*shape, *rows.shape[1:])) for name, rows in self._root.items()}
        flags = {name: torch.zeros((*shape, 1), dtype=torch.bool) for name in FLAGS}
        return TensorDict(entries | flags, batch_size=shape, device=self._device)

    def pending_resets(self, ended: Sequence[int]) -> Sequence[int]:
        """Return the envs, among the ones that ended, that have not begun another episode."""
        return [env for env in ended if env not in self._fresh]

    def seed_of(self, env: int) -> int | None:
        """Return the last seed of this env, or `None`."""
        return self.plain.seed_of(env)

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, by TorchRL itself."""
        return self.load(self.plain.reset_all(seeds)[0])

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in these envs, unless their last step did, and return the observations of all envs.

        TorchRL itself begins episodes of separate envs, and ones with seeds.
        """
        if self.spec.steps_singly or (seeds is not None and seeds[0] is not None and self.spec.seeding == "episode"):
            self._write_first(self._entries_of(self.plain.reset(envs, base, seeds)[0]), envs)
        elif due := [env for env in envs if env not in self._fresh]:
            try:
                self._begin(due)
            except Exception as error:
                raise EnvRaised(due[0], error) from error
        return self._leaves(self._root)

    def retire(self, envs: Sequence[int]) -> None:
        """Stop stepping these envs, if they are separate."""
        self._retired.update(envs if self.spec.steps_singly else ())

    def step(self, action: Leaves, only: int | None = None) -> Transition:  # noqa: ARG002  a failure is raised
        """Step every env that is not retired."""
        n, chain, retired = self.spec.num_envs, self._chain, self._retired
        try:
            entries = chain.step(self._root, action[0], retired)
            for at, name in self._written:
                entries[name] = action[at].copy()
            ends = NO_ENDS
            if np.count_nonzero(entries[DONE]):  # takes a fifth of the time of `any`
                ends = Ends.from_flags(entries[TERMINATED][:, 0], entries[TRUNCATED][:, 0]).without([*retired])
            self._root = {key: entries[key] for key in self._keys}
            self._fresh.clear()
            if ends is not NO_ENDS and self.autoresets:
                self._begin(ends.envs.tolist())
                self._fresh.update(ends.envs.tolist())
        except Exception as error:  # noqa: BLE001  `Transition.failed` has it, with its type
            env_error = error if isinstance(error, EnvRaised) else EnvRaised(0, error)
            envs = [env_error.env] if self.spec.steps_singly else range(n)
            return Transition([], np.zeros(n), failed=[(env, env_error.cause) for env in envs])
        return Transition(self._leaves(entries), entries[REWARD][:, 0], ends, info=[{}] * n)

    def render(self, env: int) -> Array | None:
        """Return a frame of this env, or `None`."""
        return self.plain.render(env)

    def info_of(self, env: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Return an empty dict: TorchRL's envs give no infos."""
        return {}

    def _make_program(self) -> Program:
        return Program.of(self._torchrl_envs, separate=self.plain.spec.steps_singly)

    def _make_chain(self) -> Chain:
        return chain_of(self.program)

    def _continue(self, root: Entries) -> Leaves:
        """Continue from entries of a root, and return its leaves."""
        self._root = {key: root[key] for key in self._keys}
        self._fresh.clear()
        self._retired.clear()
        return self._leaves(self._root)

    def _configure(self) -> None:
        self._configs = self._chain.configure()
        self.resets_by_torchrl = not all(begins for *_, begins in self._configs)

    def _begin(self, envs: Sequence[int]) -> None:
        """Begin an episode in these envs, and write its first entries into the root."""
        if self.resets_by_torchrl:
            self._root = self._entries_of(self.plain.envs[0].reset_some(self.dump().clone(), envs))
        else:
            self._write_first(self._chain.reset(envs), envs)

    def _write_first(self, first: Entries, envs: Sequence[int]) -> None:
        if len(envs) == self.spec.num_envs:
            self._root = {key: first[key] for key in self._keys}
            return
        rows = list(envs)
        self._root = {key: array.copy() for key, array in self._root.items()}
        for key, array in self._root.items():
            array[rows] = first[key][rows]

    def _entries_of(self, root: TensorDictBase) -> Entries:
        n = self.spec.num_envs
        forms = zip(self._keys, self.spec.observation, strict=True)
        return {key: root.get(key).numpy().reshape(n, *leaf.shape) for key, leaf in forms}

    def _leaves(self, entries: Entries) -> Leaves:
        return [entries[key] for key in self._keys]


def _leaf(key: str, spec: Any, n_lead: int) -> Leaf:
    try:
        dtype = to_numpy_dtype(spec.dtype)
    except (AttributeError, TypeError) as error:
        raise NoPlan(f"the entry {key!r} is of {getattr(spec, 'dtype', None)}") from error
    return unbounded_leaf(key, spec.shape[n_lead:], dtype)


class Source(Protocol):
    """Envs that are stepped and reset together, as arrays `[B, …]`."""

    def configure(self) -> list[Any]:
        """Read the settings of all transforms, and return names, settings and whether they begin episodes by arrays."""

    def step(self, root: Entries, actions: Array, idle: Collection[int] = ()) -> Entries:
        """Step every env that is not idle, and return the entries of the step, from the root and the actions.

        Only separate envs may be idle; their rows mean nothing.
        """

    def reset(self, envs: Sequence[int]) -> Entries:
        """Reset these envs, and return their first entries; the rows of the others mean nothing."""


def chain_of(program: Program, envs: Sequence[Any] | None = None) -> Chain:
    """Return the program as functions of arrays.

    Args:
        program: the parts.
        envs: step these gymnasium envs instead.
    """
    units = program.units
    if envs is not None:
        units = tuple(replace(unit, env=env) for unit, env in zip(units, envs, strict=True))
    if not program.separate and not any(unit.transforms for unit in units):
        return Chain(Reader(units), program.transforms, (len(units),) if program.batched else ())
    rows = [Chain(Reader([unit]), unit.transforms, ()) for unit in units]
    return Chain(Rows(rows), program.transforms, (len(units),))


class Chain:
    """Envs, and the transforms over all of them.

    Args:
        source: the envs.
        transforms: in the order of their application.
        lead: `*B`.
    """

    def __init__(self, source: Source, transforms: Sequence[Any], batch_shape: tuple[int, ...]) -> None:
        self._source, self._transforms, self._batch_shape, self._stages = source, transforms, batch_shape, list[Stage]()

    def configure(self) -> list[Any]:
        """Read the settings of all transforms, and return names, settings and whether they begin episodes by arrays."""
        self._stages = [stage_of(transform, self._batch_shape) for transform in self._transforms]
        self._inverses = [stage.inverse for stage in reversed(self._stages) if stage.inverse is not None]
        pairs = zip(self._transforms, self._stages, strict=True)
        configs = [(type(transform).__name__, stage.config, stage.reset is not None) for transform, stage in pairs]
        return configs + self._source.configure()

    def step(self, root: Entries, actions: Array, idle: Collection[int] = ()) -> Entries:
        """Step every env that is not idle, and return the entries of the step."""
        for inverse in self._inverses:
            actions = inverse(actions)
        return self._run(root, actions, self._stages, idle)

    def _run(self, root: Entries, actions: Array, stages: Sequence[Stage], idle: Collection[int]) -> Entries:
        next_entries = self._source.step(root, actions, idle)
        for index, stage in enumerate(stages):
            stage.step(root, next_entries)
            for _ in range(1, stage.repeats):
                reward, next_entries = next_entries[REWARD], self._run(root, actions, stages[:index], idle)
                next_entries[REWARD] = reward + next_entries[REWARD]
        return next_entries

    def reset(self, envs: Sequence[int]) -> Entries:
        """Reset these envs, and return their first entries; the rows of the others mean nothing."""
        return self.begin(self._source.reset(envs))

    def begin(self, first: Entries) -> Entries:
        """Write the entries of the transforms among first entries of episodes, and return these."""
        for stage in self._stages:
            assert stage.reset is not None
            stage.reset(first)
        return first


class Rows:
    """Single envs, each with its own transforms, as rows.

    Args:
        chains: one per env.
    """

    def __init__(self, chains: Sequence[Chain]) -> None:
        self._chains, self._last = chains, dict[int, Entries]()

    def configure(self) -> list[Any]:
        """Read the settings of all transforms."""
        return [config for chain in self._chains for config in chain.configure()]

    def step(self, root: Entries, actions: Array, idle: Collection[int] = ()) -> Entries:
        """Step every env that is not idle; the rows of the others are from their last step.

        Raises:
            EnvRaised: an env raised.
        """
        for index, chain in enumerate(self._chains):
            if index not in idle:
                rows = slice(index, index + 1)
                try:
                    self._last[index] = chain.step({key: array[rows] for key, array in root.items()}, actions[rows])
                except Exception as error:
                    raise EnvRaised(index, error) from error
        return self._join(self._last)

    def reset(self, envs: Sequence[int]) -> Entries:
        """Reset these envs, and return their first entries; the rows of the others mean nothing."""
        return self._join({env: self._chains[env].reset([0]) for env in envs})

    def _join(self, rows: Mapping[int, Entries]) -> Entries:
        others = next(iter(rows.values()))
        columns = [rows.get(index, others) for index in range(len(self._chains))]
        return {key: np.concatenate([entries[key] for entries in columns]) for key in others}


class Reader:
    """Steps and resets gymnasium envs, and reads their answers as `GymEnv` does.

    Arrays of the dtype and shape of their space, floats and booleans are read directly, and everything else by the
    methods of the wrapper. The first answers are read both ways.

    Args:
        units: the envs, whose spaces are equal.

    Raises:
        NoPlan: an observation is nested.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self._wrappers, self._envs = [unit.wrapper for unit in units], [unit.env for unit in units]
        first = self._wrappers[0]
        specs = first.full_observation_spec
        names = [*specs.keys(include_nested=True, leaves_only=True)]
        if any(not isinstance(name, str) for name in names):
            raise NoPlan("an observation space is nested")
        self._forms = [(name, to_numpy_dtype(specs[name].dtype), tuple(specs[name].shape)) for name in names]
        self._space = first.get_wrapper_attr("observation_space")
        is_dict = isinstance(self._space, spaces.Dict)
        if is_dict and names != [*self._space.spaces]:
            raise NoPlan("the entries of the observation have other names than in their space")
        self._is_dict, self._repeats = is_dict, int(first.wrapper_frame_skip)
        self._to_actions = _action_reader(first)
        self._checks_left, self._is_direct = _CHECKED_READS * len(self._envs), True

    def configure(self) -> list[Any]:
        """Return an empty list, since there are no transforms."""
        return []

    def step(self, root: Entries, actions: Array, idle: Collection[int] = ()) -> Entries:  # noqa: ARG002
        """Step every env, and return the entries `[B, …]` of the step."""
        n = len(self._envs)
        entries = {name: np.empty((n, *shape), dtype) for name, dtype, shape in self._forms}
        rewards, (terminated, truncated) = np.empty((n, 1), np.float32), np.empty((2, n, 1), np.bool_)
        for row, (env, action) in enumerate(zip(self._envs, self._to_actions(actions), strict=True)):
            observation, reward, is_terminated, is_truncated, _ = env.step(action)
            total = 0 if reward is None else 0 + reward
            for _ in range(1, self._repeats):
                if is_terminated or is_truncated:
                    break
                observation, reward, is_terminated, is_truncated, _ = env.step(action)
                total = total if reward is None else total + reward
            self._read(entries, row, observation)
            if self._is_direct and type(total) in _FLOATS and -_LARGEST <= total <= _LARGEST:
                rewards[row, 0] = total
                if self._checks_left:
                    self._check_reward(rewards, row, total)
            else:
                rewards[row] = self._wrappers[row].read_reward(total).numpy()
            if type(is_terminated) in _BOOLS and type(is_truncated) in _BOOLS:
                terminated[row, 0], truncated[row, 0] = is_terminated, is_truncated
            else:
                done = is_terminated | is_truncated
                flags = self._wrappers[row].read_done(terminated=is_terminated, truncated=is_truncated, done=done)
                terminated[row], truncated[row] = (flag.reshape(1).numpy() for flag in flags[:2])
        entries[REWARD], entries[DONE] = rewards, terminated | truncated
        entries[TERMINATED], entries[TRUNCATED] = terminated, truncated
        return entries

    def reset(self, envs: Sequence[int]) -> Entries:
        """Reset these envs, and return the first entries `[B, …]`; the rows of the others are zero."""
        entries = {name: np.zeros((len(self._envs), *shape), dtype) for name, dtype, shape in self._forms}
        for row in envs:
            observation, _ = self._envs[row].reset()
            self._read(entries, row, observation)
        return entries

    def _read(self, entries: Entries, row: int, observation: Any) -> None:
        """Write an observation into row `at`."""
        if self._is_direct and self._read_directly(entries, row, observation):
            if not self._checks_left:
                return
            self._checks_left -= 1
            direct = {name: entries[name][row].tobytes() for name, *_ in self._forms}
            self._read_by_wrapper(entries, row, observation)
            self._is_direct = all(entries[name][row].tobytes() == read for name, read in direct.items())
        else:
            self._read_by_wrapper(entries, row, observation)

    def _read_directly(self, entries: Entries, row: int, observation: Any) -> bool:
        """Write arrays of the expected dtype and shape into row `at`; return false for everything else."""
        if self._is_dict and (type(observation) is not dict or observation.keys() != entries.keys()):
            return False
        for name, dtype, shape in self._forms:
            value = observation[name] if self._is_dict else observation
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                return False
            entries[name][row] = value
        return True

    def _read_by_wrapper(self, entries: Entries, row: int, observation: Any) -> None:
        read = self._wrappers[row].read_obs(dict(observation) if isinstance(observation, Mapping) else observation)
        for name, _, shape in self._forms:
            entries[name][row] = read[name].reshape(shape).numpy()

    def _check_reward(self, rewards: Array, row: int, total: Any) -> None:
        direct = rewards[row].tobytes()
        rewards[row] = self._wrappers[row].read_reward(total).numpy()
        self._is_direct &= rewards[row].tobytes() == direct


def _action_reader(wrapper: Any) -> Callable[[Array], Sequence[Any]]:
    """Return a function that turns actions `[B, …]` into one per env, as the wrapper does."""
    data, spec = importlib.import_module("torchrl.data"), wrapper.full_action_spec[ACTION]
    kind = type(spec)
    if kind is data.OneHot and len(spec.shape) == 1 and not spec.use_register:
        return lambda actions: actions.astype(np.int64, copy=False).argmax(-1).tolist()
    if kind is data.Categorical and not spec.shape:
        return lambda actions: [int(action) for action in actions]
    if isinstance(spec, data.Bounded | data.Unbounded):
        return list
    return lambda actions: [wrapper.read_action(torch.from_numpy(action)) for action in actions]
