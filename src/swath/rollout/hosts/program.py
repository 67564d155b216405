"""The parts of TorchRL's envs that a plan runs: gymnasium envs, their wrappers, and transforms.

Parts are found by public attributes, and only exact classes are known.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any

import cloudpickle
import gymnasium as gym

from swath.keys import ACTION, FLAGS, REWARD
from swath.rollout.plans import NoPlan

# Methods that a user may have replaced in an env.
_METHODS = ("step", "reset", "step_and_maybe_reset", "maybe_reset", "rand_action", "read_action", "read_done")


@dataclass(frozen=True)
class Unit:
    """A gymnasium env with its wrapper, and the transforms over it alone.

    Attributes:
        wrapper: the `GymEnv` or `GymWrapper`.
        env: the gymnasium env.
        transforms: of this env, in the order of their application.
    """

    wrapper: Any
    env: Any
    transforms: tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """The parts of TorchRL envs that a plan runs.

    Attributes:
        units: one per gymnasium env.
        transforms: over all of them, in the order of their application.
        batched: whether the units are in a `SerialEnv`.
        separate: whether the units are separate envs.
        stand_ins: envs of the same kind as the ones in the processes of a `ParallelEnv`; the units are theirs.
    """

    units: tuple[Unit, ...]
    transforms: tuple[Any, ...]
    batched: bool
    separate: bool
    stand_ins: Sequence[Any] = ()

    @classmethod
    def of(cls, envs: Sequence[Any], *, separate: bool, stand_ins: Sequence[Any] = ()) -> Program:
        """Return the parts of one env, or of several separate ones.

        Raises:
            NoPlan: there are other parts than a plan knows.
        """
        torchrl_envs = importlib.import_module("torchrl.envs")
        units, transforms, batched = _parts(envs, separate=separate, stand_ins=stand_ins)
        first = units[0].wrapper
        for wrapper in (unit.wrapper for unit in units):
            if type(wrapper) is torchrl_envs.ParallelEnv:
                raise NoPlan("a ParallelEnv has a plan in collectors only")
            if type(wrapper) not in (torchrl_envs.GymEnv, torchrl_envs.GymWrapper):
                raise NoPlan(f"{type(wrapper).__name__} is no GymEnv, GymWrapper, SerialEnv or ParallelEnv")
            _require_plain(wrapper)
            if wrapper is not first and wrapper.specs != first.specs:
                raise NoPlan("the envs of the SerialEnv differ")
        units = [replace(unit, env=_gymnasium_env(unit.wrapper)) for unit in units]
        if others := [type(unit.env).__name__ for unit in units if not isinstance(unit.env, gym.Env)]:
            raise NoPlan(f"{others[0]} is no gymnasium env")
        return cls(tuple(units), transforms, batched, separate, stand_ins)

    def is_of(self, envs: Sequence[Any]) -> bool:
        """Tell whether envs still have the same parts.

        Raises:
            NoPlan: they have parts that a plan does not know.
        """
        units, transforms, _ = _parts(envs, separate=self.separate, stand_ins=self.stand_ins)
        old, new = (
            [*outer, *(part for unit in parts for part in (unit.wrapper, *unit.transforms))]
            for outer, parts in ((self.transforms, self.units), (transforms, units))
        )
        same = len(old) == len(new) and all(part is other for part, other in zip(old, new, strict=True))
        return same and all(_gymnasium_env(unit.wrapper) is unit.env for unit in self.units)


def _parts(
    envs: Sequence[Any], *, separate: bool, stand_ins: Sequence[Any]
) -> tuple[list[Unit], tuple[Any, ...], bool]:
    """Return the wrappers with their transforms, the transforms over all, and whether they are batched.

    Raises:
        NoPlan: a part has other methods than its class, or is closed.
    """
    torchrl_envs, transforms, batched, inner = importlib.import_module("torchrl.envs"), (), False, [*envs]
    if not separate:
        transforms, outer = _unwrap(envs[0])
        batched = bool(stand_ins) or type(outer) is torchrl_envs.SerialEnv
        if not batched:
            return [Unit(outer, None, ())], transforms, False
        inner = [*stand_ins] or _envs_of(outer)
    pairs = [_unwrap(env) for env in inner]
    return [Unit(wrapper, None, inner_transforms) for inner_transforms, wrapper in pairs], transforms, batched


def _unwrap(env: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the transforms of an env, and the env that they transform.

    Raises:
        NoPlan: a part has other methods than its class, or is closed.
    """
    torchrl_envs, transforms = importlib.import_module("torchrl.envs"), list[Any]()
    _require_own_methods(env)
    while type(env) is torchrl_envs.TransformedEnv:
        transforms[:0] = _flatten_transforms(env.transform, torchrl_envs.Compose)
        env = env.base_env
        _require_own_methods(env)
    if type(env) in (torchrl_envs.GymEnv, torchrl_envs.GymWrapper, torchrl_envs.SerialEnv) and env.is_closed:
        raise NoPlan("the env is closed")
    return tuple(transforms), env


def _envs_of(serial_env: Any) -> list[Any]:
    """Return the envs inside a `SerialEnv`: it hands on methods that all of them have.

    Raises:
        NoPlan: they lack the methods of gymnasium's envs.
    """
    try:
        methods = serial_env.insert_transform if _have_transforms(serial_env) else serial_env.read_action
    except AttributeError:
        raise NoPlan("the SerialEnv has other envs than GymEnv and GymWrapper") from None
    return [method.__self__ for method in methods.list_callable]


def _have_transforms(serial_env: Any) -> bool:
    """Tell whether all envs inside a `SerialEnv` are `TransformedEnv`s."""
    try:
        return bool(serial_env.insert_transform)
    except AttributeError:
        return False


def require_known_transforms(env: Any) -> None:
    """Check that a `SerialEnv` shows the transforms of its envs: it does not if only some of them have any.

    Raises:
        NoPlan: several functions make the envs, so that some may have transforms which are not seen.
    """
    _, inner = _unwrap(env)
    is_serial = type(inner) is importlib.import_module("torchrl.envs").SerialEnv
    if is_serial and not _have_transforms(inner) and not are_one_function(inner.create_env_fn):
        raise NoPlan("several functions make the envs of the SerialEnv, some without transforms")


def are_one_function(functions: Sequence[Any]) -> bool:
    """Tell whether all functions are one, or of the same code and with the same values."""
    return all(_is_same_function(functions[0], other) for other in functions[1:])


def _is_same_function(first: Any, other: Any) -> bool:
    if first is other:
        return True
    if isinstance(first, partial) and isinstance(other, partial):
        same_arguments = cloudpickle.dumps(first.keywords) == cloudpickle.dumps(other.keywords)
        return same_arguments and first.args == other.args and _is_same_function(first.func, other.func)
    if not isinstance(first, FunctionType) or not isinstance(other, FunctionType):
        return False
    parts = [
        (f.__code__, f.__defaults__, f.__kwdefaults__, [id(cell.cell_contents) for cell in f.__closure__ or ()])
        for f in (first, other)
    ]
    return parts[0] == parts[1]


def _gymnasium_env(wrapper: Any) -> Any:
    return wrapper.get_wrapper_attr("step").__self__


def _flatten_transforms(transform: Any, compose: Any) -> list[Any]:
    if type(transform) is not compose:
        return [transform]
    return [inner for part in transform for inner in _flatten_transforms(part, compose)]


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
