"""Tracing of policies: the steps of a TensorDict policy, each a function of a dict of tensors.

The tracer runs the policy part by part, and makes a step for each. A part that it does not know becomes a step that
calls it with a TensorDict of all entries.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import BuiltinFunctionType
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, TensorDictModule
from torch import Tensor, nn

from swath.keys import Key, as_key, as_tuple
from swath.rollout.plans import NoPlan
from swath.rollout.policies.formulas import DrawRequest, draw_with_object, find_formula

# Entries of a policy's TensorDict, by key.
State: TypeAlias = dict[Key, Any]

# Reads entries of a state and writes others.
Step: TypeAlias = Callable[[State], None]

_MODELESS = (
    "torch.nn.modules.",
    "tensordict.nn.distributions.",
    "tensordict.nn.utils",
    "torchrl.modules.models.models",
)
_POSITIONAL = TensorDictModule(torch.neg, in_keys=["x"], out_keys=["y"])


@dataclass(frozen=True)
class PlanSetting:
    """The conditions of a plan, besides the policy.

    Attributes:
        keys: of the inputs.
        batch_size: of the inputs.
        device: of the inputs; `None` for the CPU.
        exploration: the exploration type.
        owns_generators: whether no other thread draws from the process's generators while the plan is made.
        hands_on: whether the policy's outputs are among the entries of its next call.
        private: keys, among `keys`, that the policy itself writes, for its next call.
    """

    keys: tuple[Key, ...]
    batch_size: tuple[int, ...]
    device: torch.device | None
    exploration: InteractionType
    owns_generators: bool = True
    hands_on: bool = False
    private: tuple[Key, ...] = ()

    def is_output(self, key: Key) -> bool:
        """Tell whether the policy may write this entry."""
        return key not in self.keys or key in self.private


def entries_of(td: TensorDictBase) -> State:
    """Return all leaves by key."""
    items = td.items(include_nested=True, leaves_only=True)
    return {key if isinstance(key, str) else as_key(as_tuple(key)): value for key, value in items}


def _known_class(module: Any) -> str | None:
    """Return the known class of a module, by its path: its own, or a base of which it overrides nothing."""
    classes = type(module).__mro__
    for index, cls in enumerate(classes):
        path = f"{cls.__module__}.{cls.__qualname__}"
        if path in TRACES:
            special = ("__call__", "__getattr__", "__getattribute__")
            names = {name for derived in classes[:index] for name in vars(derived)} & {*dir(cls)}
            overrides = any(not (name.startswith("__") and name.endswith("__")) or name in special for name in names)
            shadows = any(inspect.isfunction(getattr(cls, name, None)) for name in vars(module))
            return None if overrides or shadows else path
    return None


def _has_hooks(module: nn.Module) -> bool:
    """Return whether a call of a module runs hooks."""
    return any("hook" in name and "state_dict" not in name and value for name, value in vars(module).items())


class Tracer:
    """Makes the steps of a policy while it runs them.

    Args:
        setting: what the plan depends on.
        unknown: parts to call with a TensorDict.
        uses_formulas: make draws by formula where there is one.

    Attributes:
        steps: the steps.
        containers: parts of the policy that the steps stand for.
        reads_mode: whether a step may read the exploration type of the process.
        untraceable: a part that must be called with a TensorDict, found in its first call.
    """

    def __init__(self, setting: PlanSetting, unknown: Sequence[nn.Module], *, uses_formulas: bool) -> None:
        self._setting, self._unknown, self._uses_formulas = setting, unknown, uses_formulas
        self.reads_mode = False
        self.untraceable: nn.Module | None = None
        self.steps, self.containers, self._state = list[Step](), list[nn.Module](), State()

    def trace_policy(self, policy: Any, inputs: Sequence[Tensor | None]) -> State:
        """Make and run the steps of a policy, and return all entries.

        Raises:
            NoPlan: no part of it is known.
        """
        pairs = zip(self._setting.keys, inputs, strict=True)
        self._state.update({key: value for key, value in pairs if value is not None})
        self._trace(policy)
        if not self.containers or all(isinstance(step, _TensorDictStep) for step in self.steps):
            raise NoPlan(f"no part of {type(policy).__name__} is known, or parts have hooks")
        return self._state

    def _trace(self, module: Any) -> None:
        path = None if _has_hooks(module) or module in self._unknown else _known_class(module)
        if path is None or not TRACES[path](self, module):
            self._add_unknown(module)
        else:
            self.containers.append(module)

    def _add(self, step: Step) -> bool:
        step(self._state)
        self.steps.append(step)
        return True

    def _add_unknown(self, module: Any) -> None:
        self.reads_mode, last = True, self.steps[-1] if self.steps else None
        if isinstance(last, _TensorDictStep):  # one TensorDict for both
            _TensorDictStep([module], self._setting)(self._state)
            self.steps[-1] = _TensorDictStep([*last.modules, module], self._setting)
        else:
            self._add(_TensorDictStep([module], self._setting))

    def _names_no_group(self, keys: Iterable[Key]) -> bool:
        """Return whether none of the keys is a group of entries."""
        return _groups_of(self._state).isdisjoint(map(as_tuple, keys))

    def trace_module(self, module: Any) -> bool:
        """Trace a `TensorDictModule`; return whether it can be."""
        lists = {name for name, value in vars(module).items() if isinstance(value, list)}
        takes_names = not lists <= {name for name, value in vars(_POSITIONAL).items() if isinstance(value, list)}
        if module.inplace is not True or takes_names or not self._names_no_group((*module.in_keys, *module.out_keys)):
            return False
        function = module.module if module.method is None else getattr(module.module, module.method)
        self.reads_mode |= module.method is not None or _may_read_mode(function)
        function = partial(function, **module.method_kwargs) if module.method_kwargs else function
        in_keys, out_keys = [*module.in_keys], [*module.out_keys]
        if module.strict and not {*in_keys} <= self._state.keys():
            return False

        def call(state: State) -> None:
            answer = function(*[state.get(key) for key in in_keys])
            values = (answer,) if isinstance(answer, Tensor) else _values_of(answer, out_keys)
            for key, value in zip(out_keys, values, strict=True):
                if key != "_":
                    state[key] = value

        self._add(call)
        if not all(isinstance(self._state[key], Tensor) for key in out_keys if key != "_"):
            self.untraceable = module
            raise NoPlan("a module returns no tensor")
        return True

    def trace_sequence(self, module: Any) -> bool:
        """Trace a `TensorDictSequential`; return whether it can be."""
        parts = _parts_of(module)
        is_usual = module.inplace is None and not module.partial_tolerant
        return is_usual and self._trace_selected(module, parts)

    def trace_probabilistic_sequence(self, module: Any) -> bool:
        """Trace a `ProbabilisticTensorDictSequential`; return whether it can be."""
        parts, determined = _parts_of(module), module.det_part
        if module.inplace is not None:
            return False
        if determined is None:  # no part is probabilistic
            return self._trace_selected(module, parts)
        drawn = getattr(parts[-1], "dist_sample_keys", (None,))
        if all(key in determined.out_keys for key in drawn):  # an earlier part gives the draw
            return False
        return self._trace_selected(module, parts if module.return_composite else [determined, parts[-1]])

    def _trace_selected(self, module: Any, parts: Sequence[Any]) -> bool:
        """Trace the parts of a sequence, which gives all of their outputs or selected ones."""
        self.containers.append(module.module)
        if {*module.out_keys} >= {key for part in parts for key in part.out_keys}:
            for part in parts:
                self._trace(part)
            return True
        inner = Tracer(self._setting, self._unknown, uses_formulas=self._uses_formulas)
        inner._state.update(self._state)
        try:
            for part in parts:
                inner._trace(part)
        finally:
            self.untraceable, self.reads_mode = inner.untraceable, self.reads_mode or inner.reads_mode
        self.containers += inner.containers
        selected = {as_tuple(key) for key in (*module.out_keys, *self._state)}
        groups, steps = _groups_of(self._state), inner.steps
        kept = {key for key in inner._state if _is_selected(as_tuple(key), selected, groups)}

        def run(state: State) -> None:
            copy = dict(state)
            for step in steps:
                step(copy)
            state.update({key: value for key, value in copy.items() if key in kept})

        self._state.update({key: value for key, value in inner._state.items() if key in kept})
        self.steps.append(run)
        return True

    def trace_draw(self, module: Any, *, joint: bool = False) -> bool:
        """Trace a `ProbabilisticTensorDictModule`; return whether it can be.

        Args:
            module: the part.
            joint: whether it makes draw and log-probability together where the distribution can.
        """
        keys, outputs = [*module.in_keys], module.dist_sample_keys
        if module.num_samples is not None or len(outputs) != 1 or not {*keys} <= self._state.keys():
            return False
        names = [as_tuple(key)[-1] for key in module.dist_keys]
        parameters = {name: self._state[key] for name, key in zip(names, keys, strict=True)}
        request = DrawRequest(
            module.distribution_class,
            module.distribution_kwargs,
            parameters,
            self._setting.exploration,
            scored=module.return_log_prob,
            joint=joint,
            n_estimate=module.n_empirical_estimate,
        )
        draw = find_formula(request) if self._uses_formulas else None
        if draw is None:
            self.reads_mode, draw = True, draw_with_object(request)
        if draw is None:
            return False
        (output,), score = outputs, module.log_prob_key if module.return_log_prob else None

        def write(state: State) -> None:
            state[output], log_prob = draw(*[state[key] for key in keys])
            if score is not None:
                state[score] = log_prob

        return self._add(write)

    def trace_q_values(self, module: Any) -> bool:
        """Trace TorchRL's `QValueModule`; return whether it can be."""
        keys, outputs, space = [*module.in_keys], [*module.out_keys], module.action_space
        if space not in ("one_hot", "categorical") or len(outputs) != 3 or not {*keys} <= self._state.keys():
            return False
        choose, value_of = module.action_func_mapping[space], module.action_value_func_mapping.get(space)

        def choose_action(state: State) -> None:
            values = state[keys[0]]
            if len(keys) > 1:
                values = torch.where(state[keys[1]], values, torch.finfo(values.dtype).min)
            action = choose(values)
            chosen_value = (action * values).sum(-1, keepdim=True) if value_of is None else value_of(values, action)
            state.update(zip(outputs, (action, values, chosen_value), strict=True))

        return self._add(choose_action)


def _may_read_mode(function: Any) -> bool:
    """Return whether a module or function may read the exploration type of the process."""
    if isinstance(function, nn.Module):
        return not all(type(part).__module__.startswith(_MODELESS) for part in function.modules())
    return not isinstance(function, BuiltinFunctionType)


def _groups_of(keys: Iterable[Key]) -> set[tuple[str, ...]]:
    """Return the paths of all groups of entries."""
    paths = [as_tuple(key) for key in keys]
    return {path[:depth] for path in paths for depth in range(1, len(path))}


def _is_selected(path: tuple[str, ...], selected: set[tuple[str, ...]], groups: set[tuple[str, ...]]) -> bool:
    """Tell whether an update with the selected keys takes an entry; it takes a group that is not there yet whole."""
    for depth in range(1, len(path) + 1):
        if all(key[:depth] != path[:depth] for key in selected):
            return False
        if path[:depth] not in groups:
            return True
    return True


def _parts_of(sequence: Any) -> list[Any]:
    """Return the modules of a sequence."""
    modules = sequence.module
    return [*(modules.values() if isinstance(modules, nn.ModuleDict) else modules)]


def _values_of(answer: Any, keys: Sequence[Key]) -> Sequence[Any]:
    """Return the values of a module's answer that is no tensor, one per key."""
    if answer is None:
        return ()
    if isinstance(answer, dict | TensorDictBase) and all(key in answer for key in keys):
        return [answer.get(key) for key in keys]
    return answer if isinstance(answer, tuple) else (answer,)


class _TensorDictStep:
    """Calls modules with a TensorDict of all entries."""

    def __init__(self, modules: Sequence[Any], setting: PlanSetting) -> None:
        self.modules, self._setting = modules, setting

    def __call__(self, state: State) -> None:
        """Replace the entries by those that the modules leave."""
        td: Any = TensorDict(dict(state), batch_size=self._setting.batch_size, device=self._setting.device)
        for module in self.modules:
            answer = module(td)
            td = td if answer is None else answer
        state.clear()
        state.update(entries_of(td))


TRACES: Mapping[str, Callable[[Tracer, Any], bool]] = {
    "tensordict.nn.common.TensorDictModule": Tracer.trace_module,
    "tensordict.nn.sequence.TensorDictSequential": Tracer.trace_sequence,
    "tensordict.nn.probabilistic.ProbabilisticTensorDictModule": Tracer.trace_draw,
    "tensordict.nn.probabilistic.ProbabilisticTensorDictSequential": Tracer.trace_probabilistic_sequence,
    "torchrl.modules.tensordict_module.common.SafeModule": Tracer.trace_module,
    "torchrl.modules.tensordict_module.sequence.SafeSequential": Tracer.trace_sequence,
    "torchrl.modules.tensordict_module.probabilistic.SafeProbabilisticModule": partial(Tracer.trace_draw, joint=True),
    "torchrl.modules.tensordict_module.probabilistic.SafeProbabilisticTensorDictSequential": (
        Tracer.trace_probabilistic_sequence
    ),
    "torchrl.modules.tensordict_module.actors.QValueModule": Tracer.trace_q_values,
}
"""A function per class that traces a module, and returns whether it can be traced."""
