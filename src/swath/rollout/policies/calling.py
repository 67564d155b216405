"""The call of a policy: which way it is called, found out once, and the call itself.

leaves [B, …] ─▶ give ─▶ tensors [*B, …] ─▶ call ─▶ answer ─▶ unpack ─▶ outputs, actions first
"""

from __future__ import annotations

import inspect
import operator
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from itertools import chain
from types import FunctionType
from typing import Any, Literal, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import CudaGraphModule, TensorDictModuleBase, set_interaction_type
from tensordict.nn import InteractionType as ExplorationType
from torch.overrides import TorchFunctionMode

from swath.errors import NonFinite, WorkerLate, warn_of_no_effect
from swath.keys import Key, as_key, as_tuple, nested
from swath.options import count
from swath.rollout.hosts.base import HostSpec
from swath.rollout.policies.answers import Memory, Take, Unpack, changed, unpacker
from swath.rollout.spaces import Leaves

__all__ = ["ExplorationType"]  # one enum, shared with tensordict (and so with TorchRL); all else is defined here

LONGEST_CALL_S = 300.0
_one_call_at_a_time = threading.RLock()

_EXPLORATION = "exploration_type"
_UNNAMED = inspect.Parameter.POSITIONAL_ONLY
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY, _UNNAMED)


@dataclass(frozen=True)
class Binding:
    """How to bind a policy.

    Attributes:
        device: where its inputs go; `None` leaves them on the CPU.
        exploration: how it picks actions.
        trust: call it with the TensorDict, unchecked; `None` does so with CUDA graphs.
        recurrent: supply `is_init` and recurrent state where it reads them.
        first_plain: make the first call with a TensorDict under the exploration type that is in force already.
    """

    device: torch.device | None = None
    exploration: ExplorationType = ExplorationType.RANDOM
    trust: bool | None = None
    recurrent: bool = True
    first_plain: bool = False


class BoundPolicy(ABC):
    """A policy bound to a host, with what its outputs look like. Used by one thread at a time.

    Attributes:
        keys: of its outputs, action leaves first, what it remembered last.
        example: what these outputs look like, leaves `[B, …]`.
        memory: what it remembers from step to step.
        explores: whether it takes the exploration type.
        name: what messages call it.
    """

    explores = False
    name = "the policy"

    def __init__(self, keys: Sequence[Key], example: Leaves, memory: Memory) -> None:
        self.keys, self.example, self.memory = tuple(keys), example, memory

    @abstractmethod
    def __call__(self, observation: Leaves) -> Leaves:
        """Outputs `[B, …]`, action leaves first."""

    def begin(self, envs: Sequence[int]) -> None:
        """Episodes begin in these envs."""
        if self.memory.keys:
            self.memory.begin(envs)

    def rewind(self) -> None:
        """Take the last call back, for the envs that begin next."""
        self.memory.rewind()

    def take_over(self, other: Any) -> None:
        """Go on from what `other`, the same kind of policy, remembers."""
        self.memory = other.memory

    def require_form(self, key: Key, form: tuple[Any, Any], then: tuple[Any, Any]) -> None:
        """Raise `ValueError` if an output has another form, dtype and shape, than at construction."""
        if form != then:
            had = f"at construction it had {tuple(then[1])} and {then[0]}, which it must keep"
            raise ValueError(f"{self.name} answered {key!r} with shape {tuple(form[1])} and dtype {form[0]}; {had}")


# How a policy is called: with what (`"keys"`: entries in order, `"names"`: by keyword); which entries it reads, as
# far as it says; whether it takes the exploration type.
Way: TypeAlias = tuple[Literal["tensordict", "keys", "names", "single"], tuple[Key, ...], bool]


def convention(policy: Any, observation: Sequence[Key], *, trust: bool | None) -> Way:
    """Read from a policy how to call it; with a TensorDict if it is trusted, as CUDA graphs are if `trust` is `None`.

    Raises:
        TypeError: it fits no way of calling; the message has its parameters, the env's keys and the way out.
    """
    in_keys = getattr(policy, "in_keys", None)
    read = tuple(as_key(as_tuple(key)) for key in in_keys or ())
    if isinstance(policy, TensorDictModuleBase) or (isinstance(policy, CudaGraphModule) if trust is None else trust):
        return "tensordict", read, True
    if isinstance(policy, type) or not callable(policy):
        what = f"the class {policy.__name__}" if isinstance(policy, type) else f"of type {type(policy).__name__}"
        raise TypeError(f"policy is {what}; it must be None, an nn.Module or a callable (an instance, not a class)")
    try:
        signature = inspect.signature(policy.forward if isinstance(policy, torch.nn.Module) else policy)
    except ValueError as error:
        raise TypeError(f"{the_policy(policy)} has no readable signature; wrap it in a function") from error
    set_already = policy.keywords if isinstance(policy, partial) else ()
    parameters = {n: p for n, p in signature.parameters.items() if n not in set_already and p.kind in _NAMED}
    children = list(policy.children()) if isinstance(policy, torch.nn.Module) else []
    if not parameters and len(children) == 1:  # as in what `torch.compile` returns
        return convention(children[0], observation, trust=trust)
    explores = _EXPLORATION in parameters
    inputs = {name: parameter for name, parameter in parameters.items() if name != _EXPLORATION}
    for name, parameter in inputs.items() if len(inputs) == 1 else ():
        annotation = getattr(parameter.annotation, "__name__", str(parameter.annotation))
        if name in ("tensordict", "td") or annotation.endswith(("TensorDict", "TensorDictBase")):
            return "tensordict", read, True
    if in_keys is not None:
        return "keys", read, explores
    required = [name for name, parameter in inputs.items() if parameter.default is parameter.empty]
    named = tuple(name for name in inputs if name in observation and inputs[name].kind != _UNNAMED)
    if named and set(required) <= set(named):
        return "names", named, explores
    if len(required) == 1 or (not required and len(inputs) == 1):
        return "single", (), explores
    found = f"its parameters are {list(inputs)}, the env's entries {list(observation)}"
    ways = "Name its parameters after these entries, give it `in_keys`, or let it take one `tensordict`"
    trusted = "Failed to wrap the policy. If the policy needs to be trusted, set trust_policy=True."
    raise TypeError(f"cannot tell how to call {the_policy(policy)}: {found}. {ways}. {trusted}")


def the_policy(policy: Any) -> str:
    """What messages call it: `the policy act`, and `the policy` alone where its name says no more."""
    name = getattr(policy, "__name__", type(policy).__name__)
    return "the policy" if name == "policy" else f"the policy {name}"


def caller(
    policy: Any, way: Way, keys: Sequence[Key], spec: HostSpec, options: Binding, taker: Callable[..., Take]
) -> tuple[Callable[[Sequence[Any]], list[Any]], list[Key]]:
    """What calls a policy with tensors and gives its outputs; and their keys, once it was called.

    An answer that is not like the first one, of another kind or with more or fewer outputs, is a `TypeError`.

    Args:
        policy: the policy.
        way: how it is called.
        keys: of the inputs that it will get.
        spec: the envs.
        options: device and exploration type.
        taker: how to take a value like the first one, given whether it is an action.
    """
    function, outputs, takes = _function(policy, way, keys, spec, options), list(spec.acted), list[Take]()
    unpack: Unpack = list

    def call(inputs: Sequence[Any]) -> list[Any]:
        nonlocal function, unpack
        if takes:
            answer = function(*inputs)
        else:
            answer, function = _first_call(policy, function, inputs)
            n_actions = len(outputs)
            outputs[:], unpack = unpacker(policy, spec.acted, keys, answer)
            takes[:] = [taker(value, action=place < n_actions) for place, value in enumerate(unpack(answer))]
        try:
            return [take(value) for take, value in zip(takes, unpack(answer), strict=True)]
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            entries = f" of {[*answer.keys()]}" if isinstance(answer, Mapping) else ""
            raise changed(the_policy(policy), f"answered with {type(answer).__name__}{entries}", outputs) from error

    return call, outputs


def _first_call(policy: Any, function: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, Callable[..., Any]]:
    """The answer to a first call, and what to call from then on: in inference mode, if that cannot be noticed.

    Small networks are up to a fifth quicker in it. What they make there can be part of no loss, so a module that has
    kept something in its first call, or has taken gradients, is called without, and so are functions.
    """
    if not (isinstance(policy, torch.nn.Module) and inspect.signature(policy.forward).parameters):
        return function(*inputs), function
    before = _kept(policy)
    with _GradientsWatch() as watch:
        answer = function(*inputs)
    after = _kept(policy)
    if watch.seen or len(before) != len(after) or not all(map(operator.is_, before, after)):
        return answer, function
    mode = torch.inference_mode()

    def infer(*given: Any) -> Any:
        with mode:
            return function(*given)

    return answer, infer


class _GradientsWatch(TorchFunctionMode):
    """Notes whether one of torch's functions gives a tensor with a gradient."""

    seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= isinstance(result, torch.Tensor) and result.grad_fn is not None
        return result


def _kept(module: torch.nn.Module) -> list[Any]:
    """What the parts of a module hold, what is in their lists and dicts too."""
    held = [one for part in module.modules() for one in vars(part).values()]
    inside = (one.values() if isinstance(one, dict) else one for one in held if isinstance(one, dict | list))
    return [*held, *chain.from_iterable(inside)]


def _function(policy: Any, way: Way, keys: Sequence[Key], spec: HostSpec, options: Binding) -> Callable[..., Any]:
    """What to call with one tensor per input; the policy itself, if it takes just these."""
    kind, read, explores = way
    if kind == "tensordict":
        act = exploring(policy, options.exploration)

        def call(*inputs: torch.Tensor | None) -> Any:
            known = {key: value for key, value in zip(keys, inputs, strict=True) if value is not None}
            given = TensorDict(known, batch_size=spec.batch_shape, device=options.device)
            answer = act(given)
            return given if answer is None else answer

        return call
    function = partial(policy, **{_EXPLORATION: options.exploration}) if explores else policy
    at = [list(keys).index(key) for key in read]
    if kind == "names":
        return lambda *inputs: function(**{str(key): inputs[place] for key, place in zip(read, at, strict=True)})
    if kind == "keys" and at != [*range(len(keys))]:
        return lambda *inputs: function(*[inputs[place] for place in at])
    if kind == "single" and len(keys) > 1:
        return lambda *inputs: function(nested(zip(keys, inputs, strict=True)))
    return function


def as_exploration(value: ExplorationType | str) -> ExplorationType:
    """The enum member, also from its name in any case.

    Raises:
        ValueError: no such type; the message lists the names there are.
    """
    types = ExplorationType.__members__
    name = value.name if isinstance(value, ExplorationType) else str(value).upper()
    if name not in types:
        raise ValueError(f"exploration_type={value!r} is none of {', '.join(types)}")
    return types[name]


def exploring(policy: Callable[[Any], Any], exploration: ExplorationType) -> Callable[[Any], Any]:
    """The policy, called with a TensorDict under this exploration type.

    The type belongs to the process. So calls from several threads wait for each other, and each sees its own type.
    What the user's own code sets outside of these calls is not guarded.

    Raises:
        WorkerLate: another thread has been in such a call for `LONGEST_CALL_S` seconds.
    """
    mode = set_interaction_type(exploration)

    def call(td: Any) -> Any:
        if not _one_call_at_a_time.acquire(timeout=LONGEST_CALL_S):
            late = f"another thread has been in a call of its policy for {LONGEST_CALL_S:.0f} s; use backend='process'"
            raise WorkerLate(late, deadline=LONGEST_CALL_S)
        try:
            with mode:
                return policy(td)
        finally:
            _one_call_at_a_time.release()

    return call


# ---- to the policy's device and back


def as_device(name: str, value: Any) -> torch.device | None:
    """An int, a str or a `torch.device` as a device.

    Raises:
        TypeError: something else.
        RuntimeError: torch knows no device of this name.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | torch.device | None):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__}; it must be a device, like 'cuda:0'")
    return None if value is None else torch.device(value)


def referred_modules(policy: Any) -> dict[str, torch.nn.Module]:
    """Find the modules that a function refers to: as globals, from functions around it, or as defaults."""
    if not isinstance(policy, FunctionType):
        return {}
    referred = inspect.getclosurevars(policy)
    defaults = {name: each.default for name, each in inspect.signature(policy).parameters.items()}
    values = {**referred.globals, **referred.nonlocals, **defaults}
    return {name: value for name, value in values.items() if isinstance(value, torch.nn.Module)}


def device_of(policy: Any) -> torch.device | None:
    """Where a module's weights are, if that is not the CPU: its inputs must go there."""
    first = next(policy.parameters(), None) if isinstance(policy, torch.nn.Module) else None
    return None if first is None or first.device.type == "cpu" else first.device


# ---- what is handed in


def compiled(policy: Any, compile_policy: Any, cudagraph_policy: Any) -> Any:
    """Compile the policy, or capture it in a CUDA graph, if that is asked for.

    Of the options of a compilation `warmup` is ours, as TorchRL's: so many calls are made before. Where torch has no
    CUDA at all, a graph is warned of, and left out.

    Raises:
        ValueError: a CUDA graph for a policy that is not on CUDA though there is one; neither yes nor no nor options; a
            `warmup` that is no whole number; a random policy.
    """
    for name, value in (("compile_policy", compile_policy), ("cudagraph_policy", cudagraph_policy)):
        if not (value is None or isinstance(value, bool | Mapping)):
            raise ValueError(f"{name}={value!r} must be True, False or a dict of options")
        if value not in (None, False) and not callable(policy):
            raise ValueError(f"{name} needs a policy that is called, not a {type(policy).__name__}; leave it out")
    if compile_policy not in (None, False):  # `{}` asks for it, too
        options = {} if compile_policy is True else dict(compile_policy)
        warmup = count("warmup of compile_policy", options.pop("warmup", 0), least=0)
        policy = compiled_later(policy, warmup, options) if warmup else torch.compile(policy, **options)
    if cudagraph_policy not in (None, False) and not torch.cuda.is_available():
        warn_of_no_effect("cudagraph_policy", "torch sees no CUDA device; the policy is called without a graph")
    elif cudagraph_policy not in (None, False):
        if (device := device_of(policy)) is None or device.type != "cuda":
            raise ValueError("cudagraph_policy needs a policy on CUDA; leave it out, or set policy_device='cuda'")
        policy = CudaGraphModule(policy, **({} if cudagraph_policy is True else cudagraph_policy))
    return policy


def compiled_later(policy: Callable[..., Any], warmup: int, options: Mapping[str, Any]) -> Callable[..., Any]:
    """Compile a policy after `warmup` calls, which are made to the policy as it stands.

    Args:
        policy: a module or a function.
        warmup: how many calls.
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
    """Has the parameters and keys of a module, and calls a function in its place."""

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


class Finite:
    """Call a policy, and check that its observations and answers are finite.

    Args:
        policy: the policy.
        observed: keys of the observation leaves.
        moment: says of an env, in words, what happens in it now.
        checks_outputs: false for random actions, which are finite, and whose other outputs are NaN.
    """

    def __init__(
        self,
        policy: BoundPolicy,
        observed: Sequence[Key],
        moment: Callable[[int], str],
        *,
        checks_outputs: bool = True,
    ) -> None:
        self._policy, self._observed, self._moment, self._checks_outputs = policy, observed, moment, checks_outputs
        self.begin, self.rewind = policy.begin, policy.rewind

    def __call__(self, observation: Leaves) -> Leaves:
        """Return the policy's outputs.

        Raises:
            NonFinite: an output or an observation is NaN or infinite.
        """
        require_finite("observation", self._observed, observation, self._moment)
        outputs = self._policy(observation)
        if self._checks_outputs:
            require_finite("policy output", self._policy.keys, outputs, self._moment)
        return outputs


def require_finite(what: str, keys: Sequence[Key], leaves: Leaves, moment: Callable[[int], str]) -> None:
    """Raise `NonFinite` for the first leaf `[B, …]` with a NaN or an infinity, or the first such TensorDict entry.

    Args:
        what: the leaves are, for the message.
        keys: of the leaves, or of the entries of a TensorDict that are looked at; none: all.
        leaves: leaves `[B, …]`, or a TensorDict.
        moment: says of an env, in words, what happens in it now.
    """
    named: Iterable[tuple[Key, Any]] = zip(keys, leaves, strict=False)
    if isinstance(leaves[0], TensorDictBase):
        entries = leaves[0].items(include_nested=True, leaves_only=True)
        chosen = [(key, value) for key, value in entries if not keys or as_key(as_tuple(key)) in keys]
        named = ((key, value.reshape(leaves[0].numel(), -1)) for key, value in chosen)
    for key, leaf in named:
        values = torch.as_tensor(leaf)
        if values.is_floating_point() and not bool(values.isfinite().all()):
            env = int((~values.isfinite()).reshape(len(values), -1).any(dim=1).nonzero()[0])
            found = f"{what} {key!r} is not finite in env {env}, {moment(env)}: {values[env].tolist()}"
            raise NonFinite(f"{found}; look for a diverged network or env state")
