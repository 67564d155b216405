"""The call of a policy, and the calling convention, which is found once.

leaves [B, …] ─▶ tensors [*B, …] ─▶ call ─▶ answer ─▶ unpack ─▶ outputs, actions first
"""

from __future__ import annotations

import copy
import inspect
import operator
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from types import FunctionType
from typing import Any, Literal, TypeAlias, cast

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import CudaGraphModule, TensorDictModuleBase, set_interaction_type
from tensordict.nn import InteractionType as ExplorationType
from torch.overrides import TorchFunctionMode

from swath.errors import NonFinite, WorkerLate, warn_of_no_effect
from swath.keys import ACTION, NEXT, REWARD, Key, as_key, as_tuple, is_private, nest_entries, under_next
from swath.options import count
from swath.rollout.hosts.base import HostSpec, TensorDictSpec
from swath.rollout.loop import Step
from swath.rollout.plans import plans_mode
from swath.rollout.policies.outputs import Memory, ToLeaf, Unpack, changed_error, unpacker
from swath.rollout.policies.plan import PlannedCall, attribute_values
from swath.rollout.policies.tracing import PlanSetting
from swath.rollout.spaces import Leaves

__all__ = ["ExplorationType"]  # the enum of tensordict, and so of TorchRL; all else is defined here

LONGEST_CALL_S = 300.0
_one_call_at_a_time = threading.RLock()

_EXPLORATION = "exploration_type"
_UNNAMED = inspect.Parameter.POSITIONAL_ONLY
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, _UNNAMED)


@dataclass(frozen=True)
class BindingOptions:
    """Options of `bind`.

    Attributes:
        device: device of the policy's inputs; `None` for the CPU.
        exploration: the exploration type of its calls.
        trust: call it with the TensorDict, unchecked; `None` does so for CUDA graphs only.
        recurrent: supply `is_init` and recurrent state if it reads them.
        first_in_current_mode: make the first call with a TensorDict under the present exploration type.
        plans: call TensorDict modules without containers where that gives equal bits.
        owns_generators: whether no other thread draws from the process's generators during the first call.
    """

    device: torch.device | None = None
    exploration: ExplorationType = ExplorationType.RANDOM
    trust: bool | None = None
    recurrent: bool = True
    first_in_current_mode: bool = False
    plans: bool = True
    owns_generators: bool = True


class BoundPolicy(ABC):
    """A policy bound to a host, with an example of its outputs. Used by one thread at a time.

    Attributes:
        keys: of its outputs: action leaves first, recurrent state last.
        example: example of the outputs, leaves `[B, …]`.
        memory: its recurrent state.
        explores: whether the exploration type has an effect on it.
        name: its name in messages.
        planned: calls it by its plan; `None` if plans are off, or it takes no TensorDict.
    """

    explores = False
    planned: PlannedCall | None = None
    name = "the policy"

    def __init__(self, keys: Sequence[Key], example: Leaves, memory: Memory) -> None:
        self.keys, self.example, self.memory = tuple(keys), example, memory

    @property
    def has_state(self) -> bool:
        """Tell whether it has recurrent state."""
        return bool(self.memory.keys)

    @abstractmethod
    def __call__(self, observation: Leaves) -> Leaves:
        """Return outputs `[B, …]`, action leaves first."""

    def begin(self, envs: Sequence[int] | torch.Tensor) -> None:
        """Reset the recurrent state of the envs, or of a mask `[B]` of envs, where an episode begins."""
        if self.memory.keys:
            self.memory.begin(envs)

    def restart(self, envs: Sequence[int]) -> None:
        """Reset the recurrent state and forget private entries, where all envs have been reset."""
        self.begin(envs)
        self.memory.kept = [None] * len(self.memory.private)

    def rewind(self) -> None:
        """Restore the state before the last call."""
        self.memory.rewind()

    def take_over(self, other: Any) -> None:
        """Take over the recurrent state of a policy of the same kind."""
        self.memory = other.memory

    @property
    def reason_for_no_plan(self) -> str | None:
        """Return why the policy is called without plan; `None` if it has one."""
        return "plans are off" if self.planned is None else self.planned.reason

    def renew_plan(self) -> None:
        """Make the plan again with the next call, if the policy has changed. Call it where a fragment begins."""
        if self.planned is not None:
            self.planned.renew()

    def require_form(self, key: Key, form: tuple[Any, Any], first_form: tuple[Any, Any]) -> None:
        """Raise `ValueError` if the form of an output, its dtype and shape, has changed since construction."""
        if form != first_form:
            reason = f"at construction it had {tuple(first_form[1])} and {first_form[0]}, which it must keep"
            raise ValueError(f"{self.name} answered {key!r} with shape {tuple(form[1])} and dtype {form[0]}; {reason}")


# The arguments of a policy (`"keys"`: entries in order, `"names"`: entries by keyword); the keys that it declares to
# read; whether it takes the exploration type.
CallConvention: TypeAlias = tuple[Literal["tensordict", "keys", "names", "single"], tuple[Key, ...], bool]


def find_convention(policy: Any, observation: Sequence[Key], *, trust: bool | None) -> CallConvention:
    """Find out how to call a policy; with a TensorDict if it is trusted, as CUDA graphs are if `trust` is `None`.

    Raises:
        TypeError: no convention fits; the message has the policy's parameters, the env's keys and the way out.
    """
    in_keys = getattr(policy, "in_keys", None)
    read = tuple(as_key(as_tuple(key)) for key in in_keys or ())
    if isinstance(policy, TensorDictModuleBase) or (isinstance(policy, CudaGraphModule) if trust is None else trust):
        return "tensordict", read, True
    if isinstance(policy, type) or not callable(policy):
        kind = f"the class {policy.__name__}" if isinstance(policy, type) else f"of type {type(policy).__name__}"
        raise TypeError(f"policy is {kind}; it must be None, an nn.Module or a callable (an instance, not a class)")
    try:
        signature = inspect.signature(policy.forward if isinstance(policy, torch.nn.Module) else policy)
    except ValueError as error:
        raise TypeError(f"{policy_name(policy)} has no readable signature; wrap it in a function") from error
    keywords = policy.keywords if isinstance(policy, partial) else ()
    parameters = {n: p for n, p in signature.parameters.items() if n not in keywords and p.kind in _NAMED}
    children = list(policy.children()) if isinstance(policy, torch.nn.Module) else []
    if not parameters and len(children) == 1:  # a compiled module
        return find_convention(children[0], observation, trust=trust)
    explores = _EXPLORATION in parameters
    inputs = {name: parameter for name, parameter in parameters.items() if name != _EXPLORATION}
    for name, parameter in inputs.items() if len(inputs) == 1 else ():
        annotation = getattr(parameter.annotation, "__name__", str(parameter.annotation))
        if name in ("tensordict", "td") or annotation.endswith(("TensorDict", "TensorDictBase")):
            return "tensordict", read, True
    if in_keys is not None:
        return "keys", read, explores
    required = [name for name, parameter in inputs.items() if parameter.default is parameter.empty]
    by_name = tuple(name for name in inputs if name in observation and inputs[name].kind != _UNNAMED)
    if by_name and set(required) <= set(by_name):
        return "names", by_name, explores
    if len(required) == 1 or (not required and len(inputs) == 1):
        return "single", (), explores
    mismatch = f"its parameters are {list(inputs)}, the env's entries {list(observation)}"
    remedies = "Name its parameters after these entries, give it `in_keys`, or let it take one `tensordict`"
    trust_hint = "Failed to wrap the policy. If the policy needs to be trusted, set trust_policy=True."
    raise TypeError(f"cannot tell how to call {policy_name(policy)}: {mismatch}. {remedies}. {trust_hint}")


def policy_name(policy: Any) -> str:
    """Return the name of a policy in messages, as in `the policy act`; `the policy` if it is called so."""
    name = getattr(policy, "__name__", type(policy).__name__)
    return "the policy" if name == "policy" else f"the policy {name}"


def make_caller(
    policy: Any,
    convention: CallConvention,
    keys: Sequence[Key],
    spec: HostSpec,
    options: BindingOptions,
    leaf_converter: Callable[..., ToLeaf],
    private: Sequence[Key] = (),
) -> tuple[Callable[[Sequence[Any]], list[Any]], list[Key], PlannedCall | None]:
    """Return a function that calls a policy with tensors and returns its outputs, the list of their keys, and its plan.

    The list is complete after the first call. An answer of another kind than the first, or with more or fewer outputs,
    is a `TypeError`. The private entries of a TensorDict module are its last outputs, as they are.

    Args:
        policy: the policy.
        convention: how to call it.
        keys: of its inputs.
        spec: properties of the envs.
        options: device and exploration type.
        leaf_converter: `f(example, action=bool)`, which returns a function that turns values like it into leaves.
        private: entries that the policy has written before: further inputs, after `keys`.
    """
    function, outputs = _call_with_tensors(policy, convention, keys, spec, options, private), list(spec.action_keys)
    with_private = convention[0] == "tensordict"
    planned = function if isinstance(function, PlannedCall) else None
    converters, unpack = list[ToLeaf](), cast(Unpack, list)

    def call(inputs: Sequence[Any]) -> list[Any]:
        nonlocal function, unpack
        if converters:
            answer = function(*inputs)
        else:
            answer, function = _first_call(policy, function, inputs)
            n_actions = len(outputs)
            outputs[:], unpack = unpacker(policy, spec.action_keys, keys, answer, with_private=with_private)
            converters[:] = [
                _identity if is_private(key) else leaf_converter(value, action=at < n_actions)
                for at, (key, value) in enumerate(zip(outputs, unpack(answer), strict=True))
            ]
        try:
            return [convert(value) for convert, value in zip(converters, unpack(answer), strict=True)]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            entries = f" of {[*answer.keys()]}" if isinstance(answer, Mapping) else ""
            raise changed_error(
                policy_name(policy), f"answered with {type(answer).__name__}{entries}", outputs
            ) from error

    return call, outputs, planned


def _identity(value: Any) -> Any:
    return value


def _first_call(policy: Any, function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, Callable[..., Any]]:
    """Return the answer to a first call, and the function for further calls.

    That function runs in inference mode, in which small networks are up to a fifth quicker, if this cannot be noticed.
    Tensors made there cannot be part of a loss, so functions, and modules that keep something of their first call or
    use gradients, are called without it.
    """
    if not (isinstance(policy, torch.nn.Module) and inspect.signature(policy.forward).parameters):
        return function(*inputs), function
    before = attribute_values(policy.modules())
    with _GradientDetector() as detector:
        answer = function(*inputs)
    after = attribute_values(policy.modules())
    if detector.has_gradient or len(before) != len(after) or not all(map(operator.is_, before, after)):
        return answer, function
    mode = torch.inference_mode()

    def infer(*inputs: Any) -> Any:
        with mode:
            return function(*inputs)

    return answer, infer


class _GradientDetector(TorchFunctionMode):
    """Detects whether a function of torch returns a tensor with a gradient."""

    has_gradient = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.has_gradient |= isinstance(result, torch.Tensor) and result.grad_fn is not None
        return result


def _call_with_tensors(
    policy: Any,
    convention: CallConvention,
    keys: Sequence[Key],
    spec: HostSpec,
    options: BindingOptions,
    private: Sequence[Key],
) -> Callable[..., Any]:
    """Return a function of one tensor per input that calls the policy; the policy itself, if it takes these."""
    kind, read, explores = convention
    if kind == "tensordict":
        act, keys = with_exploration(policy, options.exploration), (*keys, *private)

        def call(*inputs: torch.Tensor | None) -> Any:
            entries = {key: value for key, value in zip(keys, inputs, strict=True) if value is not None}
            root = TensorDict(entries, batch_size=spec.batch_shape, device=options.device)
            answer = act(root)
            return root if answer is None else answer

        if not options.plans or plans_mode() == "off":
            return call
        set_exploration = partial(with_exploration, exploration=options.exploration)
        setting = PlanSetting(
            keys,
            spec.batch_shape,
            options.device,
            options.exploration,
            options.owns_generators,
            private=tuple(private),
        )
        return PlannedCall(policy, call, set_exploration, setting)
    function = partial(policy, **{_EXPLORATION: options.exploration}) if explores else policy
    at = [list(keys).index(key) for key in read]
    if kind == "names":
        return lambda *inputs: function(**{str(key): inputs[place] for key, place in zip(read, at, strict=True)})
    if kind == "keys" and at != [*range(len(keys))]:
        return lambda *inputs: function(*[inputs[place] for place in at])
    if kind == "single" and len(keys) > 1:
        return lambda *inputs: function(nest_entries(zip(keys, inputs, strict=True)))
    return function


def as_exploration(value: ExplorationType | str) -> ExplorationType:
    """Return the enum member with this name, in any case.

    Raises:
        ValueError: no exploration type of this name; the message lists all names.
    """
    types = ExplorationType.__members__
    name = value.name if isinstance(value, ExplorationType) else str(value).upper()
    if name not in types:
        raise ValueError(f"exploration_type={value!r} is none of {', '.join(types)}")
    return types[name]


def with_exploration(policy: Callable[[Any], Any], exploration: ExplorationType) -> Callable[[Any], Any]:
    """Return a function that calls the policy with a TensorDict under this exploration type.

    The exploration type belongs to the process, so calls from several threads wait for each other. Code of the user
    that sets it elsewhere is not guarded.

    Raises:
        WorkerLate: another thread has been in such a call for `LONGEST_CALL_S` seconds.
    """
    mode = set_interaction_type(exploration)

    def call(td: Any) -> Any:
        if not _one_call_at_a_time.acquire(timeout=LONGEST_CALL_S):
            message = (
                f"another thread has been in a call of its policy for {LONGEST_CALL_S:.0f} s; use backend='process'"
            )
            raise WorkerLate(message, deadline=LONGEST_CALL_S)
        try:
            with mode:
                return policy(td)
        finally:
            _one_call_at_a_time.release()

    return call


# ---- to the policy's device and back


def as_device(name: str, value: Any) -> torch.device | None:
    """Return the device for an int, a str or a `torch.device`.

    Raises:
        TypeError: another type.
        RuntimeError: torch knows no device of this name.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | torch.device | None):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__}; it must be a device, like 'cuda:0'")
    return None if value is None else torch.device(value)


def move_to_device(policy: Any, device: torch.device | None) -> Any:
    """Return the policy itself, or a copy on `device` if its weights are elsewhere."""
    if device is None or not isinstance(policy, torch.nn.Module):
        return policy
    tensors = [value for value in policy.state_dict().values() if isinstance(value, torch.Tensor)]
    if all(tensor.device.type == device.type and device.index in (None, tensor.device.index) for tensor in tensors):
        return policy
    return copy.deepcopy(policy).to(device)


def referred_modules(policy: Any) -> dict[str, torch.nn.Module]:
    """Return the modules that a function refers to, by name: globals, variables of outer functions, defaults."""
    if not isinstance(policy, FunctionType):
        return {}
    referred = inspect.getclosurevars(policy)
    defaults = {name: parameter.default for name, parameter in inspect.signature(policy).parameters.items()}
    values = {**referred.globals, **referred.nonlocals, **defaults}
    return {name: value for name, value in values.items() if isinstance(value, torch.nn.Module)}


def weights_device(policy: Any) -> torch.device | None:
    """Return the device of a module's weights; `None` without weights."""
    first = next(policy.parameters(), None) if isinstance(policy, torch.nn.Module) else None
    return None if first is None else first.device


def device_of(policy: Any) -> torch.device | None:
    """Return the device of a module's weights, to which its inputs must go; `None` for the CPU."""
    device = weights_device(policy)
    return None if device is None or device.type == "cpu" else device


# ---- compilation


def maybe_compile(policy: Any, compile_policy: Any, cudagraph_policy: Any) -> Any:
    """Compile the policy, or capture it in a CUDA graph, if the options say so.

    The option `warmup`, as in TorchRL, is a number of calls before the compilation. Without CUDA, a graph is left out
    with a warning.

    Raises:
        ValueError: a CUDA graph for a policy on the CPU though there is CUDA; options of a wrong type; a `warmup` that
            is no whole number; a random policy.
    """
    for name, value in (("compile_policy", compile_policy), ("cudagraph_policy", cudagraph_policy)):
        if not (value is None or isinstance(value, bool | Mapping)):
            raise ValueError(f"{name}={value!r} must be True, False or a dict of options")
        if value not in (None, False) and not callable(policy):
            raise ValueError(f"{name} needs a policy that is called, not a {type(policy).__name__}; leave it out")
    if compile_policy not in (None, False):  # `{}` compiles too
        options = {} if compile_policy is True else dict(compile_policy)
        warmup = count("warmup of compile_policy", options.pop("warmup", 0), minimum=0)
        policy = compile_after_warmup(policy, warmup, options) if warmup else torch.compile(policy, **options)
    if cudagraph_policy not in (None, False) and not torch.cuda.is_available():
        warn_of_no_effect("cudagraph_policy", "torch sees no CUDA device; the policy is called without a graph")
    elif cudagraph_policy not in (None, False):
        if (device := device_of(policy)) is None or device.type != "cuda":
            raise ValueError("cudagraph_policy needs a policy on CUDA; leave it out, or set policy_device='cuda'")
        policy = CudaGraphModule(policy, **({} if cudagraph_policy is True else cudagraph_policy))
    return policy


def compile_after_warmup(policy: Callable[..., Any], warmup: int, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a policy that is compiled after `warmup` calls.

    Args:
        policy: a module or a function.
        warmup: number of calls without compilation.
        options: keywords of `torch.compile`.
    """
    function, calls = policy, 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal function, calls
        if calls == warmup:
            function = torch.compile(policy, **options)
        calls += 1
        return function(*args, **kwargs)

    return Forwarding(policy, call) if isinstance(policy, torch.nn.Module) else wraps(policy)(call)


class Forwarding(torch.nn.Module):
    """A module with the parameters and keys of another one, that calls a function."""

    def __init__(self, module: torch.nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self._function, self.__name__ = module, function, type(module).__name__
        for name in ("in_keys", "out_keys"):
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)


# ---- NaN and infinities


class FiniteCheck:
    """A policy whose observations and outputs are checked to be finite.

    Args:
        policy: the policy.
        keys: of the observation leaves.
        describe: returns, for an env, a phrase for messages about its present step.
        checks_outputs: false for random actions, which are finite, and whose other outputs are NaN.
    """

    def __init__(
        self, policy: BoundPolicy, keys: Sequence[Key], describe: Callable[[int], str], *, checks_outputs: bool = True
    ) -> None:
        self._policy, self._keys, self._describe, self._checks_outputs = policy, keys, describe, checks_outputs
        self.begin, self.rewind, self.has_state = policy.begin, policy.rewind, policy.has_state

    def __call__(self, observation: Leaves) -> Leaves:
        """Return the policy's outputs.

        Raises:
            NonFinite: an output or an observation is NaN or infinite.
        """
        require_finite("observation", self._keys, observation, self._describe)
        outputs = self._policy(observation)
        if self._checks_outputs:
            require_finite("policy output", self._policy.keys, outputs, self._describe)
        return outputs


def require_finite_step(step: Step, spec: HostSpec, describe: Callable[[int], str]) -> None:
    """Raise `NonFinite` if the reward of a step, or an observation that it led to, is not finite.

    Args:
        step: the step.
        spec: properties of the envs.
        describe: as of `require_finite`.
    """
    output, entries, n, reward = step.outputs[0], step.next_observation, spec.num_envs, step.reward
    if isinstance(output, TensorDictBase):
        assert isinstance(spec, TensorDictSpec)
        reward = spec.host.reader.reward(output.get(NEXT)) if reward is None else reward
        entries = [output.get(under_next(key)).reshape(n, -1) for key in spec.observation_keys]
        output = output.get(ACTION, None)

    def describe_step(env: int) -> str:
        action = None if output is None else torch.as_tensor(output).reshape(n, -1)[env].tolist()
        return f"{describe(env)} after the action {action}"

    require_finite("next", (REWARD, *spec.observation_keys), [reward, *entries], describe_step)


def require_finite(noun: str, keys: Sequence[Key], leaves: Leaves, describe: Callable[[int], str]) -> None:
    """Raise `NonFinite` for the first leaf `[B, …]`, or TensorDict entry, with a NaN or an infinity.

    Args:
        noun: noun for the leaves in the message.
        keys: of the leaves, or of the entries of a TensorDict to check; empty for all.
        leaves: leaves `[B, …]`, or a TensorDict.
        describe: returns, for an env, a phrase for messages about its present step.
    """
    named: Iterable[tuple[Key, Any]] = zip(keys, leaves, strict=False)
    if isinstance(leaves[0], TensorDictBase):
        entries = leaves[0].items(include_nested=True, leaves_only=True)
        pairs = [(key, value) for key, value in entries if not keys or as_key(as_tuple(key)) in keys]
        named = ((key, value.reshape(leaves[0].numel(), -1)) for key, value in pairs)
    for key, leaf in named:
        values = torch.as_tensor(leaf)
        if values.is_floating_point() and not bool(values.isfinite().all()):
            env = int((~values.isfinite()).reshape(len(values), -1).any(dim=1).nonzero()[0])
            message = f"{noun} {key!r} is not finite in env {env}, {describe(env)}: {values[env].tolist()}"
            raise NonFinite(f"{message}; look for a diverged network or env state")
