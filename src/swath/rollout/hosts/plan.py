"""The plan of a TorchRL env: gymnasium envs are stepped directly, wrappers and transforms run as array programs.

    GymEnv, GymWrapper  ─┐
    SerialEnv           ─┼─▶ PlanHost: gymnasium envs, readers of their answers, stages of transforms
    TransformedEnv      ─┘

The entries are TorchRL's, bit for bit: same keys, shapes, dtypes, random draws. State stays where TorchRL has it, in
the gymnasium envs and the transforms; all other state is in the entries of the root. So a run may go on with the plan
or with TorchRL's own step from any step on.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict, TensorDictBase

from swath.keys import ACTION, DONE, FLAGS, REWARD, TERMINATED, TRUNCATED
from swath.rollout.hosts.base import NO_ENDS, ArrayHost, ArraySpec, Ends, Transition
from swath.rollout.hosts.torchrl import TorchRLEnv
from swath.rollout.hosts.transforms import Entries, Stage, stage_of, to_numpy_dtype
from swath.rollout.plans import NoPlan
from swath.rollout.spaces import Array, Leaf, Leaves

# Methods that a user may have replaced in an env.
_METHODS = ("step", "reset", "step_and_maybe_reset", "maybe_reset", "rand_action", "read_action", "read_done")

_CHECKED_READS = 8  # answers of each env that are read both ways
_FLOATS, _BOOLS = (float, np.float64, np.float32), (bool, np.bool_)
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Program:
    """The parts of a TorchRL env that a plan runs.

    Attributes:
        wrappers: the `GymEnv`s and `GymWrapper`s, one per gymnasium env.
        envs: the gymnasium envs.
        transforms: in the order of their application.
        batched: whether the wrappers are in a `SerialEnv`.
    """

    wrappers: tuple[Any, ...]
    envs: tuple[Any, ...]
    transforms: tuple[Any, ...]
    batched: bool

    @classmethod
    def of(cls, env: Any) -> Program:
        """Return the parts of an env.

        Raises:
            NoPlan: it has other parts than a plan knows.
        """
        torchrl_envs, (wrappers, transforms, batched) = importlib.import_module("torchrl.envs"), _parts(env)
        for wrapper in wrappers:
            if type(wrapper) not in (torchrl_envs.GymEnv, torchrl_envs.GymWrapper):
                raise NoPlan(f"{type(wrapper).__name__} is no GymEnv, GymWrapper or SerialEnv")
            _require_plain(wrapper)
        if batched and _has_transforms(env):
            raise NoPlan("the envs inside the SerialEnv have transforms")
        envs = [*map(_gymnasium_env, wrappers)]
        if strays := [type(inner).__name__ for inner in envs if not isinstance(inner, gym.Env)]:
            raise NoPlan(f"{strays[0]} is no gymnasium env")
        return cls(wrappers, tuple(envs), transforms, batched)

    def is_of(self, env: Any) -> bool:
        """Tell whether an env still has the same parts.

        Raises:
            NoPlan: it has parts that a plan does not know.
        """
        wrappers, transforms, _ = _parts(env)
        mine, others = (*self.wrappers, *self.transforms), (*wrappers, *transforms)
        same = len(mine) == len(others) and all(part is other for part, other in zip(mine, others, strict=True))
        return same and (self.batched or _gymnasium_env(wrappers[0]) is self.envs[0])


def _parts(env: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], bool]:
    """Return the wrappers of gymnasium envs, the transforms, and whether the wrappers are in a `SerialEnv`.

    Raises:
        NoPlan: a part has other methods than its class, or is closed.
    """
    torchrl_envs, transforms, outer = importlib.import_module("torchrl.envs"), list[Any](), env
    _require_own_methods(outer)
    while type(outer) is torchrl_envs.TransformedEnv:
        transforms[:0] = _flat(outer.transform, torchrl_envs.Compose)
        outer = outer.base_env
        _require_own_methods(outer)
    if type(outer) in (torchrl_envs.GymEnv, torchrl_envs.GymWrapper, torchrl_envs.SerialEnv) and outer.is_closed:
        raise NoPlan("the env is closed")
    if type(outer) is not torchrl_envs.SerialEnv:
        return (outer,), tuple(transforms), False
    # The method of an inner env that a batched env hands on belongs to the innermost one.
    return tuple(method.__self__ for method in outer.read_action.list_callable), tuple(transforms), True


def _has_transforms(env: Any) -> bool:
    """Tell whether envs inside a `SerialEnv`, itself inside transforms or not, are `TransformedEnv`s."""
    while type(env) is importlib.import_module("torchrl.envs").TransformedEnv:
        env = env.base_env
    try:
        return bool(env.insert_transform)
    except AttributeError:
        return False


def _gymnasium_env(wrapper: Any) -> Any:
    return wrapper.get_wrapper_attr("step").__self__


def _flat(transform: Any, compose: Any) -> list[Any]:
    if type(transform) is not compose:
        return [transform]
    return [inner for part in transform for inner in _flat(part, compose)]


def _require_own_methods(env: Any) -> None:
    if replaced := [name for name in _METHODS if name in vars(env)]:
        raise NoPlan(f"{type(env).__name__} has another {replaced[0]}")


def _require_plain(wrapper: Any) -> None:
    """Check that a wrapper has no options that a plan does not know.

    Raises:
        NoPlan: it has one.
    """
    _require_own_methods(wrapper)
    device = wrapper.device
    obstacles = {
        "a batch size": bool(wrapper.batch_size),
        "readers of infos": bool(wrapper.info_dict_reader),
        "pixels": bool(wrapper.from_pixels),
        f"the device {device}": device is not None and device.type != "cpu",
        "several rewards": wrapper.reward_keys != [REWARD] or tuple(wrapper.reward_spec.shape) != (1,),
        "other flags": sorted(wrapper.done_keys) != sorted(FLAGS),
        "several actions": wrapper.action_keys != [ACTION],
        "state": bool([*wrapper.state_spec.keys(include_nested=True, leaves_only=True)]),
    }
    if present := [obstacle for obstacle, is_present in obstacles.items() if is_present]:
        raise NoPlan(f"{type(wrapper).__name__} has {present[0]}")


class PlanHost(ArrayHost):
    """The gymnasium envs of a TorchRL env, and its transforms.

    Args:
        env: the TorchRL env.
        autoresets: whether a step resets the episodes that end.

    Attributes:
        program: the parts of the env.
        config: all settings that the plan depends on.

    Raises:
        NoPlan: the env has no plan; the message says why.
    """

    def __init__(self, env: Any, *, autoresets: bool) -> None:
        super().__init__([env], None)
        self._adapter, self._autoresets = TorchRLEnv(env, autoresets=autoresets), autoresets
        self.program = Program.of(env)
        first, n = self.program.wrappers[0], len(self.program.envs)
        keys = [*env.observation_keys]
        if nested := [key for key in (*keys, *env.done_keys, *env.reward_keys) if not isinstance(key, str)]:
            raise NoPlan(f"the env has the nested keys {nested}")
        if sorted(env.done_keys) != sorted(FLAGS) or env.reward_keys != [REWARD] or env.action_keys != [ACTION]:
            raise NoPlan("the env has other rewards, flags or actions than one of each")
        if env.reward_spec.dtype != torch.float32 or env.reward_spec.shape[-1:] != (1,):
            raise NoPlan(f"the env has rewards of {env.reward_spec.dtype}")
        self._lead = tuple(env.batch_size)
        specs = {key: env.full_observation_spec[key] for key in keys}
        nothing = spaces.Dict()
        leaves = [_leaf(key, spec, len(self._lead)) for key, spec in specs.items()]
        action = _leaf(ACTION, env.full_action_spec[ACTION], len(self._lead))
        seeding: Any = "layout" if self._lead else "episode"
        self.spec = ArraySpec(
            n, self._lead, tuple(leaves), (action,), nothing, nothing, steps_singly=False, seeding=seeding
        )
        self._keys, self._device = keys, env.device
        self._reader = Reader(self.program)
        self._set_stages()
        self.config = (
            *(str(wrapper.specs) for wrapper in self.program.wrappers[:1]),
            *(f"{leaf.key} {leaf.shape} {leaf.dtype}" for leaf in (*leaves, action)),
            *map(repr, self._configs),
            bool(self._lead),
            autoresets,
            first.wrapper_frame_skip,
        )
        self._root: Entries = {}
        self._fresh = set[int]()  # envs whose episode ended in the last step, and whose next one has begun

    @property
    def env(self) -> Any:
        """Return the TorchRL env."""
        return self.envs[0]

    def is_valid(self) -> bool:
        """Tell whether the env still is as it was when the plan was made; runs once per fragment."""
        try:
            if not self.program.is_of(self.env):
                return False
            before = self._configs
            self._set_stages()
        except NoPlan:
            return False
        return before == self._configs

    def load(self, root: TensorDictBase) -> Leaves:
        """Continue from a root `[*B]` of TorchRL's, and return its leaves."""
        n = self.spec.num_envs
        self._root = {leaf.key: root.get(leaf.key).numpy().reshape(n, *leaf.shape) for leaf in self.spec.observation}  # type: ignore[misc]
        self._fresh.clear()
        return self._leaves(self._root)

    def dump(self) -> TensorDictBase:
        """Return the root `[*B]` from which TorchRL would continue."""
        lead = self._lead
        entries = {name: torch.from_numpy(array.reshape(*lead, *array.shape[1:])) for name, array in self._root.items()}
        flags = {name: torch.zeros((*lead, 1), dtype=torch.bool) for name in FLAGS}
        return TensorDict(entries | flags, batch_size=lead, device=self._device)

    def pending_resets(self, ended: Sequence[int]) -> Sequence[int]:
        """Return the envs, among the ones that ended, that have not begun another episode."""
        return [env for env in ended if env not in self._fresh]

    def reset_all(self, seeds: Sequence[int | None] | None = None) -> Leaves:
        """Begin an episode in every env, by TorchRL itself."""
        return self.load(self._adapter.reset(seeds))

    def reset(self, envs: Sequence[int], base: Leaves, seeds: Sequence[int | None] | None = None) -> Leaves:  # noqa: ARG002
        """Begin an episode in these envs, unless their last step did, and return the observations of all envs."""
        if seeds is not None and seeds[0] is not None and self.spec.seeding == "episode":
            return self.reset_all([seeds[0]])
        due = [env for env in envs if env not in self._fresh]
        if due:
            self._begin(due)
        return self._leaves(self._root)

    def step(self, action: Leaves, only: int | None = None) -> Transition:  # noqa: ARG002  the envs fail together
        """Step every env."""
        n = self.spec.num_envs
        try:
            following = self._step_envs(action[0])
            for stage in self._stages:
                stage.step(self._root, following)
            ends = NO_ENDS
            if following[DONE].any():
                ends = Ends.from_flags(following[TERMINATED][:, 0], following[TRUNCATED][:, 0])
            self._root = {key: following[key] for key in self._keys}
            self._fresh.clear()
            if ends is not NO_ENDS and self._autoresets:
                self._begin(ends.envs.tolist())
                self._fresh.update(ends.envs.tolist())
        except Exception as error:  # noqa: BLE001  `Transition.failed` has it, with its type
            return Transition([], np.zeros(n), failed=[(env, error) for env in range(n)])
        return Transition(self._leaves(following), following[REWARD][:, 0], ends, info=[{}] * n)

    def render(self, env: int) -> Array | None:
        """Return a frame of this env, or `None`."""
        return self._adapter.render(env)

    def info_of(self, env: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Return an empty dict: TorchRL's envs give no infos."""
        return {}

    def _step_envs(self, actions: Array) -> Entries:
        """Step the gymnasium envs, and return their entries under `"next"`."""
        for stage in self._inverses:
            actions = stage(actions)
        return self._reader.step(actions)

    def _begin(self, envs: Sequence[int]) -> None:
        """Begin an episode in these envs, and write its first entries into the root."""
        first = self._reader.reset(envs)
        for stage in self._stages:
            stage.reset(first)
        if len(envs) == self.spec.num_envs:
            self._root = {key: first[key] for key in self._keys}
            return
        rows = list(envs)
        self._root = {key: array.copy() for key, array in self._root.items()}
        for key, array in self._root.items():
            array[rows] = first[key][rows]

    def _leaves(self, entries: Entries) -> Leaves:
        return [entries[key] for key in self._keys]

    def _set_stages(self) -> None:
        n = self.spec.num_envs
        self._stages: list[Stage] = [stage_of(transform, n) for transform in self.program.transforms]
        self._configs = [
            (type(t).__name__, s.config) for t, s in zip(self.program.transforms, self._stages, strict=True)
        ]
        self._inverses = [stage.inverse for stage in reversed(self._stages) if stage.inverse is not None]


def _leaf(key: str, spec: Any, n_lead: int) -> Leaf:
    try:
        dtype = to_numpy_dtype(spec.dtype)
    except (AttributeError, TypeError) as error:
        raise NoPlan(f"the entry {key!r} is of {getattr(spec, 'dtype', None)}") from error
    shape = tuple(spec.shape)[n_lead:]
    return Leaf(key, (), shape, dtype, spaces.Box(-np.inf, np.inf, shape, np.float64))


class Reader:
    """Steps and resets gymnasium envs, and reads their answers as `GymEnv` does.

    Arrays of the dtype and shape of their space, floats and booleans are read directly, and everything else by the
    methods of the wrapper. The first answers are read both ways.

    Args:
        program: the parts of the env.

    Raises:
        NoPlan: envs that differ.
    """

    def __init__(self, program: Program) -> None:
        self._wrappers, self._envs = program.wrappers, program.envs
        first = program.wrappers[0]
        specs = first.full_observation_spec
        names = [*specs.keys(include_nested=True, leaves_only=True)]
        if any(not isinstance(name, str) for name in names):
            raise NoPlan("an observation space is nested")
        if any(wrapper.specs != first.specs for wrapper in program.wrappers[1:]):
            raise NoPlan("the envs of the SerialEnv differ")
        self._forms = [(name, to_numpy_dtype(specs[name].dtype), tuple(specs[name].shape)) for name in names]
        self._space = first.get_wrapper_attr("observation_space")
        is_dict = isinstance(self._space, spaces.Dict)
        if is_dict and names != [*self._space.spaces]:
            raise NoPlan("the entries of the observation have other names than in their space")
        self._is_dict, self._repeats = is_dict, int(first.wrapper_frame_skip)
        self._to_actions = _action_reader(first)
        self._checks_left, self._is_direct = _CHECKED_READS * len(self._envs), True

    def step(self, actions: Array) -> Entries:
        """Step every env, and return the entries `[B, …]` of the step."""
        n = len(self._envs)
        entries = {name: np.empty((n, *shape), dtype) for name, dtype, shape in self._forms}
        rewards, (terminated, truncated) = np.empty((n, 1), np.float32), np.empty((2, n, 1), np.bool_)
        for at, (env, action) in enumerate(zip(self._envs, self._to_actions(actions), strict=True)):
            observation, reward, is_terminated, is_truncated, _ = env.step(action)
            total = 0 if reward is None else 0 + reward
            for _ in range(1, self._repeats):
                if is_terminated or is_truncated:
                    break
                observation, reward, is_terminated, is_truncated, _ = env.step(action)
                total = total if reward is None else total + reward
            self._read(entries, at, observation)
            if self._is_direct and type(total) in _FLOATS and -_LARGEST <= total <= _LARGEST:
                rewards[at, 0] = total
                if self._checks_left:
                    self._check_reward(rewards, at, total)
            else:
                rewards[at] = self._wrappers[at].read_reward(total).numpy()
            if type(is_terminated) in _BOOLS and type(is_truncated) in _BOOLS:
                terminated[at, 0], truncated[at, 0] = is_terminated, is_truncated
            else:
                done = is_terminated | is_truncated
                flags = self._wrappers[at].read_done(terminated=is_terminated, truncated=is_truncated, done=done)
                terminated[at], truncated[at] = (flag.reshape(1).numpy() for flag in flags[:2])
        entries[REWARD], entries[DONE] = rewards, terminated | truncated
        entries[TERMINATED], entries[TRUNCATED] = terminated, truncated
        return entries

    def reset(self, envs: Sequence[int]) -> Entries:
        """Reset these envs, and return the first entries `[B, …]`; the rows of the others are zero."""
        entries = {name: np.zeros((len(self._envs), *shape), dtype) for name, dtype, shape in self._forms}
        for at in envs:
            observation, _ = self._envs[at].reset()
            self._read(entries, at, observation)
        return entries

    def _read(self, entries: Entries, at: int, observation: Any) -> None:
        """Write an observation into row `at`."""
        if self._is_direct and self._read_directly(entries, at, observation):
            if not self._checks_left:
                return
            self._checks_left -= 1
            direct = {name: entries[name][at].tobytes() for name, *_ in self._forms}
            self._read_by_wrapper(entries, at, observation)
            self._is_direct = all(entries[name][at].tobytes() == read for name, read in direct.items())
        else:
            self._read_by_wrapper(entries, at, observation)

    def _read_directly(self, entries: Entries, at: int, observation: Any) -> bool:
        """Write arrays of the expected dtype and shape into row `at`; return false for everything else."""
        if self._is_dict and (type(observation) is not dict or observation.keys() != entries.keys()):
            return False
        for name, dtype, shape in self._forms:
            value = observation[name] if self._is_dict else observation
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                return False
            entries[name][at] = value
        return True

    def _read_by_wrapper(self, entries: Entries, at: int, observation: Any) -> None:
        read = self._wrappers[at].read_obs(dict(observation) if isinstance(observation, Mapping) else observation)
        for name, _, shape in self._forms:
            entries[name][at] = read[name].reshape(shape).numpy()

    def _check_reward(self, rewards: Array, at: int, total: Any) -> None:
        direct = rewards[at].tobytes()
        rewards[at] = self._wrappers[at].read_reward(total).numpy()
        self._is_direct &= rewards[at].tobytes() == direct


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
