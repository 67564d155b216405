"""Policy plans: TensorDict policies called without containers, with equal bits.

policy ─▶ steps, each a function of a dict of tensors ─▶ compared with the policy ─▶ plan, or the reason for none

A plan calls the inner modules with tensors, in the order of the policy, and makes draws by formula where there is one.
A part that is not known here is called with a TensorDict. Where a plan is made, policy and plan run on the
same inputs from the same random states: outputs of other bytes, or other states afterwards, mean no plan.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase, composite_lp_aggregate, skip_existing
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from swath.keys import Key, as_tuple
from swath.rollout.plans import VARIABLE, NoPlan, plans_mode
from swath.rollout.policies.formulas import checks_arguments
from swath.rollout.policies.tracing import PlanSetting, State, Tracer, entries_of
from swath.rollout.seeding import GeneratorStates

_log = logging.getLogger("swath")
_LATER = "its parameters get their shapes with the first call"
_UNLIKELY = 97  # a value of an output
_PACKAGES = ("torch", "tensordict", "torchrl", "numpy")
_CONSTANTS = (int, float, complex, str, bytes, Enum, Tensor, torch.dtype, torch.device, ModuleType, type, type(None))


class PolicyPlan:
    """A policy as steps on a dict of tensors. Used by one thread at a time.

    Args:
        keys: of the inputs.
        outputs: keys of the outputs, in the order of the policy.
        traced: the tracer that has made the steps.

    Attributes:
        reads_mode: whether a step may read the exploration type of the process.
    """

    def __init__(self, keys: Sequence[Key], outputs: Sequence[Key], tracer: Tracer) -> None:
        self._keys, self._steps, self._outputs = keys, tracer.steps, outputs
        self._containers, self.reads_mode = tracer.containers, tracer.reads_mode
        self._signature, self._globals = _signature(self._containers), _global_modes()
        self._contents = [value.clone() for value in self._signature if isinstance(value, Tensor)]

    def __call__(self, inputs: Sequence[Tensor | None]) -> State:
        """Return the outputs `[*B, …]` by key for one tensor `[*B, …]` per key; `None` for a missing entry."""
        state: State = {key: value for key, value in zip(self._keys, inputs, strict=True) if value is not None}
        for step in self._steps:
            step(state)
        return {key: state[key] for key in self._outputs}

    def is_valid(self) -> bool:
        """Return whether the policy still has the parts, hooks and settings that it had."""
        new = _signature(self._containers)
        if len(new) != len(self._signature) or any(a is not b for a, b in zip(new, self._signature, strict=True)):
            return False
        tensors = (value for value in new if isinstance(value, Tensor))
        return self._globals == _global_modes() and all(map(torch.equal, tensors, self._contents))


def _signature(containers: Iterable[nn.Module]) -> list[Any]:
    """Return the attribute values of containers, except their training mode."""
    values = list[Any]()
    for container in containers:
        for name, value in vars(container).items():
            if isinstance(value, Mapping):
                values += (*value.keys(), *value.values())
            elif isinstance(value, list | tuple):
                values += value
            elif name != "training":
                values.append(value)
    return values


def _global_modes() -> tuple[bool, ...]:
    """Return the process-wide modes that change the behaviour of TensorDict modules."""
    return skip_existing(), composite_lp_aggregate(nowarn=True), checks_arguments()


class PlannedCall:
    """Calls a policy by its plan; with a TensorDict if it has none. Used by one thread at a time.

    The first call makes the plan. A plan that no longer fits the policy is made again.

    Args:
        policy: the policy.
        plain: `f(*inputs)`, which calls the policy with a TensorDict of the inputs, under its exploration type; where
            envs hand outputs on, `f(*inputs, earlier=entries)` also with entries of the step before.
        within: returns a function of one argument that runs under the exploration type.
        setting: what the plan depends on.

    Attributes:
        plan: the plan.
        reason: why there is no plan.
    """

    def __init__(
        self,
        policy: Any,
        plain: Callable[..., Any],
        set_exploration: Callable[[Callable[[Any], Any]], Callable[[Any], Any]],
        setting: PlanSetting,
    ) -> None:
        self._policy, self._plain, self._set_exploration, self._setting = policy, plain, set_exploration, setting
        self.plan: PolicyPlan | None = None
        self.reason: str | None = _LATER
        self._checks, self._n_calls = plans_mode() == "check", 0
        self._by_plan: Callable[[Any], Any] | None = None

    @property
    def is_possible(self) -> bool:
        """Tell whether there is a plan, or the next call makes it."""
        return self.reason is None or self.reason is _LATER

    def __call__(self, *inputs: Tensor | None) -> Any:
        """Return the outputs `[*B, …]`: a dict, or what the policy returns.

        Raises:
            RuntimeError: plan and policy differ, where each call is checked.
        """
        if self._by_plan is None:
            return self._make(inputs) if self.reason is _LATER else self._plain(*inputs)
        return self._call_both_ways(inputs) if self._checks else self._by_plan(inputs)

    def _make(self, inputs: Sequence[Tensor | None]) -> Any:
        """Call the policy, and make its plan.

        The policy is called once, as without plans, and its parts again for the comparison, if that cannot be noticed:
        the generators and buffers have the states of one call afterwards.
        """
        answer, outcome = self._call_and_compare(inputs)
        if isinstance(outcome, PolicyPlan):
            self.plan, self.reason = outcome, None
            self._by_plan = self._set_exploration(outcome) if outcome.reads_mode else outcome
        else:
            self.reason = outcome
            _log.debug("no plan for the policy %s: %s", type(self._policy).__name__, outcome)
        return answer

    def _call_and_compare(self, inputs: Sequence[Tensor | None]) -> tuple[Any, PolicyPlan | str]:
        """Return the policy's answer, and a plan or the reason why there is none."""
        try:
            modules = modules_of(self._policy)
        except NoPlan as reason:
            return self._plain(*inputs), str(reason)
        if any(is_lazy(parameter) for parameter in self._policy.parameters()):
            return self._plain(*inputs), _LATER
        trial = _Trial(modules, self._plain, self._setting, inputs)
        if not trial.can_repeat:
            return trial.answer, "it keeps something of its calls, returns no TensorDict, or draws as other threads do"
        unknown, uses_formulas = list[nn.Module](), True
        while True:
            tracer = Tracer(self._setting, unknown, uses_formulas=uses_formulas)
            difference = trial.compare(self._set_exploration(partial(tracer.trace_policy, self._policy)))
            if difference is None:
                if self._setting.hands_on and trial.compare(partial(self._call_after, trial.outputs)) is not None:
                    return trial.answer, "it reads its outputs of the step before"
                plan = PolicyPlan(self._setting.keys, [*trial.outputs], tracer)
                return trial.answer, self._difference_with_private(modules, trial.outputs, inputs, plan) or plan
            if tracer.untraceable is not None:
                unknown.append(tracer.untraceable)
            elif uses_formulas:
                uses_formulas = False
            else:
                return trial.answer, difference

    def _difference_with_private(
        self, modules: Sequence[nn.Module], outputs: State, inputs: Sequence[Tensor | None], plan: PolicyPlan
    ) -> str | None:
        """Make a second call, with the private entries of the first, and return how the plan differs."""
        if not (private := self._setting.private):
            return None
        if not all(isinstance(outputs.get(key), Tensor) for key in private):
            return "its private entries are no tensors"
        pairs = zip(self._setting.keys, inputs, strict=True)
        values = [outputs[key].clone() if key in private else value for key, value in pairs]
        later = _Trial(modules, self._plain, self._setting, values)
        difference = later.compare(self._set_exploration(plan) if plan.reads_mode else plan)
        later.rewind()
        return difference and f"with its private entries, {difference}"

    def _call_after(self, outputs: State, inputs: Sequence[Tensor | None]) -> State:
        """Call the policy where a step before has left other outputs, and return all entries."""
        return entries_of(self._plain(*inputs, earlier=with_other_values(outputs).items()))

    def renew(self) -> None:
        """Make the plan again with the next call, if the policy has changed."""
        if self.plan is not None and not self.plan.is_valid():
            self.plan, self._by_plan, self.reason = None, None, _LATER
            _log.debug("the policy %s has changed: its plan is made again", type(self._policy).__name__)

    def _call_both_ways(self, inputs: Sequence[Tensor | None]) -> Any:
        assert self._by_plan is not None
        self._n_calls += 1
        trial = _Trial(modules_of(self._policy), self._plain, self._setting, inputs)
        difference = trial.compare(self._by_plan)
        if difference is not None:
            message = f"step {self._n_calls}: plan and policy {type(self._policy).__name__} differ: {difference}"
            raise RuntimeError(f"{message}; unset {VARIABLE}=check, or set {VARIABLE}=0, and report it")
        return trial.answer


class _Trial:
    """A call of a policy with a TensorDict, which can be repeated in another way from the same states.

    Attributes:
        answer: the answer to the call.
        outputs: its entries, without the inputs.
        can_repeat: whether the call left the attributes of the modules as they were, and generators that other threads
            share.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        plain: Callable[..., Any],
        setting: PlanSetting,
        inputs: Sequence[Tensor | None],
    ) -> None:
        self._setting = setting
        self._input_copies = [None if value is None else value.clone() for value in inputs]
        self._before, self._generators = Attributes(modules), GeneratorStates(setting.device)
        self.answer = plain(*inputs)
        self._after, self._generators_after = Attributes(modules), GeneratorStates(setting.device)
        self._inputs = inputs
        may_draw = setting.owns_generators or self._generators.equals(self._generators_after)
        self.can_repeat = type(self.answer) is TensorDict and may_draw and self._before.has_same_values(self._after)
        entries = entries_of(self.answer) if self.can_repeat else {}
        self.outputs: State = {key: value for key, value in entries.items() if setting.is_output(key)}

    def rewind(self) -> None:
        """Restore the states before the call."""
        self._before.restore()
        if self._setting.owns_generators:
            self._generators.restore()

    def compare(self, run: Callable[[Sequence[Tensor | None]], State]) -> str | None:
        """Call `run` with the inputs, from the states before the call, and return how it differs; `None` if not."""
        inputs = [None if value is None else value.clone() for value in self._input_copies]
        self.rewind()
        try:
            outputs = run(inputs)
        except Exception as error:  # noqa: BLE001  the policy did not raise
            return str(error) if isinstance(error, NoPlan) else f"the plan raised {type(error).__name__}: {error}"
        else:
            if not GeneratorStates(self._setting.device).equals(self._generators_after):
                return "the random generators have other states"
            return self._difference(outputs, inputs)
        finally:
            self._after.restore()
            if self._setting.owns_generators:
                self._generators_after.restore()

    def _difference(self, outputs: State, inputs: Sequence[Tensor | None]) -> str | None:
        """Return how outputs, inputs or buffers differ after a call of the other way."""
        keys = self._setting.keys
        expected = dict(self.outputs)
        actual = {key: value for key, value in outputs.items() if self._setting.is_output(key)}
        if expected.keys() != actual.keys():
            return f"it has the entries {[*actual]}, not {[*expected]}"
        expected |= {("input", *as_tuple(key)): value for key, value in zip(keys, self._inputs, strict=True)}
        actual |= {("input", *as_tuple(key)): value for key, value in zip(keys, inputs, strict=True)}
        for number, (saved, tensor) in enumerate(zip(self._after.saved, self._after.tensors, strict=True)):
            expected["buffer", str(number)], actual["buffer", str(number)] = saved, tensor
        for key, value in expected.items():
            if value is not None and (difference := _tensor_difference(value, actual[key])):
                return f"{key!r} {difference}"
        return None


def with_other_values(entries: State) -> State:
    """Return the tensors among entries with other values, which can be noticed where they are read."""
    tensors = {key: value for key, value in entries.items() if isinstance(value, Tensor)}
    return {
        key: torch.full_like(value, math.nan if value.is_floating_point() else _UNLIKELY)
        for key, value in tensors.items()
    }


def _tensor_difference(wanted: Any, got: Any) -> str | None:
    """Return how two tensors differ, byte by byte; `None` if they do not."""
    if not (isinstance(wanted, Tensor) and isinstance(got, Tensor)):
        return f"is no tensor but {type(wanted).__name__}"
    forms = [(tuple(value.shape), value.dtype, value.device) for value in (wanted, got)]
    if forms[0] != forms[1]:
        return f"has the form {forms[1]}, not {forms[0]}"
    rows = [value.detach().contiguous().reshape(-1).view(torch.uint8) for value in (wanted, got)]
    return None if torch.equal(*rows) else f"is {got.tolist()}, not {wanted.tolist()}"


class Attributes:
    """The attribute values of modules, and copies of their buffers."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._values = attribute_values(modules)
        self.tensors = [v for v in self._values if isinstance(v, Tensor) and not isinstance(v, nn.Parameter)]
        self.saved = [tensor.detach().clone() for tensor in self.tensors]

    def has_same_values(self, other: Attributes) -> bool:
        """Return whether the attributes are the same objects."""
        return len(self._values) == len(other._values) and all(
            a is b for a, b in zip(self._values, other._values, strict=True)
        )

    def has_same_buffers(self, other: Attributes) -> bool:
        """Return whether the buffers had the same values."""
        return all(map(torch.equal, self.saved, other.saved))

    def restore(self) -> None:
        """Write the copies into the buffers."""
        for tensor, saved in zip(self.tensors, self.saved, strict=True):
            if not torch.equal(tensor, saved):
                tensor.detach().copy_(saved)


def attribute_values(modules: Iterable[nn.Module]) -> list[Any]:
    """Return the values of all attributes of modules, and the items of lists and dicts among them."""
    values = [value for module in modules for value in vars(module).values()]
    items = (value.values() if isinstance(value, dict) else value for value in values if isinstance(value, dict | list))
    return [*values, *chain.from_iterable(items)]


# ---- what a policy refers to


def modules_of(policy: Any) -> list[nn.Module]:
    """Return the parts of a policy, and the modules that its functions refer to.

    Raises:
        NoPlan: the policy is no TensorDict module, or a function may keep state where it is not visited.
    """
    if not isinstance(policy, TensorDictModuleBase):
        raise NoPlan(f"{type(policy).__name__} is no TensorDict module")
    modules = [*policy.modules()]
    for module in modules:  # grows
        is_part = isinstance(module, TensorDictModuleBase)
        for name, value in vars(module).items():
            if isinstance(value, torch.Generator):
                raise NoPlan(f"{type(module).__name__} has its own random generator")
            is_function = isinstance(value, FunctionType | MethodType | partial)
            if is_function or (is_part and name in ("module", "func") and not isinstance(value, nn.Module)):
                modules += [found for found in _referred_modules(value, set()) if found not in modules]
    return modules


def _referred_modules(value: Any, visited: set[int]) -> list[nn.Module]:
    """Return the modules that a value of a function refers to.

    Raises:
        NoPlan: it refers to something that may change.
    """
    if id(value) in visited or isinstance(value, _CONSTANTS):
        return []
    visited.add(id(value))
    if isinstance(value, nn.Module):
        return [*value.modules()]
    parts: Iterable[Any]
    if isinstance(value, partial):
        parts = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        parts = (value.__self__, value.__func__)
    elif isinstance(value, BuiltinFunctionType):
        parts = (value.__self__,)
    elif isinstance(value, tuple | frozenset):
        parts = value
    elif isinstance(value, FunctionType) and value.__module__.split(".")[0] in _PACKAGES:
        return []
    elif isinstance(value, FunctionType):
        names = inspect.getclosurevars(value)
        parts = (*names.globals.values(), *names.nonlocals.values(), value.__defaults__ or ())
    else:
        raise NoPlan(f"a function of it refers to a {type(value).__name__}, which may keep state")
    return [module for part in parts for module in _referred_modules(part, visited)]
