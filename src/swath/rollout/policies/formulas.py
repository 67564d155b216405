"""Draws from distributions by formula: the arithmetic of a distribution object without the object.

A formula gives the bits that the object gives, and leaves the generator in the same state. Sources: the classes that
the table at the end names, of torch, tensordict and TorchRL. A plan compares a formula with the object where it is
bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any, TypeAlias

import torch
from tensordict.nn import InteractionType
from torch import Tensor, distributions
from torch.distributions.utils import probs_to_logits
from torch.nn import functional

# Returns a draw and its log-probability, `None` if that is not wanted, for the values of the parameters.
Draw: TypeAlias = Callable[..., tuple[Tensor, Tensor | None]]

_RANDOM, _MODE, _MEAN = InteractionType.RANDOM, InteractionType.MODE, InteractionType.MEAN
_DETERMINISTIC = InteractionType.DETERMINISTIC
_LOG_SQRT_2PI = math.log(math.sqrt(2 * math.pi))
_LOG_2 = math.log(2.0)


@dataclass(frozen=True)
class DrawRequest:
    """A draw that a module wants from its distribution.

    Attributes:
        distribution: the class, or a function that returns a distribution.
        options: keywords of the class that are the same in each call.
        example: an example of the parameters, by name, in the order of the arguments of the draw.
        exploration: the exploration type.
        scored: whether the log-probability is wanted.
        joint: whether draw and log-probability are made together where the class can, as TorchRL's modules do.
        n_estimate: number of draws for a mean without closed form.
    """

    distribution: Any
    options: Mapping[str, Any]
    example: Mapping[str, Tensor]
    exploration: InteractionType
    scored: bool
    joint: bool
    n_estimate: int

    @property
    def takes_random(self) -> bool:
        """Return whether the draw is random."""
        return self.exploration is _RANDOM


def find_formula(request: DrawRequest) -> Draw | None:
    """Return the formula for a draw; `None` if there is none, or the object would check its arguments."""
    kind = request.distribution
    build = FORMULAS.get(f"{kind.__module__}.{kind.__qualname__}") if isinstance(kind, type) else None
    if build is None or _checks_arguments(request):
        return None
    options = {name: value for name, value in request.options.items() if name != "validate_args"}
    return build(replace(request, options=options))


def _checks_arguments(request: DrawRequest) -> bool:
    """Return whether the object would check its arguments."""
    checks = request.options.get("validate_args")
    passes_on = request.distribution is not distributions.OneHotCategorical
    return checks_arguments() if checks is None or not passes_on else bool(checks)


def checks_arguments() -> bool:
    """Return whether torch's distributions check their arguments, as they do until TorchRL is imported."""
    return _Probe().is_checked


class _Probe(distributions.Distribution):
    """Finds out whether the constructor checks arguments: it then asks for their constraints."""

    is_checked = False

    @property
    def arg_constraints(self) -> dict[str, Any]:
        self.is_checked = True
        return {}


def draw_with_object(request: DrawRequest) -> Draw | None:
    """Return a draw that makes the distribution object; `None` if its class cannot make it."""
    names, exploration = tuple(request.example), request.exploration

    def build(values: Sequence[Tensor]) -> distributions.Distribution:
        return request.distribution(**dict(zip(names, values, strict=True)), **request.options)  # type: ignore[no-any-return]

    example = build([*request.example.values()])
    if exploration is _DETERMINISTIC and not hasattr(example, "deterministic_sample"):
        return None
    reparametrizes = example.has_rsample
    drawn_together = "rsample_and_log_prob" if reparametrizes else "sample_and_log_prob"
    if request.takes_random and request.scored and request.joint and hasattr(type(example), drawn_together):
        return lambda *values: getattr(build(values), drawn_together)(torch.Size())

    def draw(*values: Tensor) -> tuple[Tensor, Tensor | None]:
        distribution = build(values)
        value = _value_of(distribution, exploration, request.n_estimate)
        return value, distribution.log_prob(value) if request.scored else None

    return draw


def _value_of(distribution: Any, exploration: InteractionType, n_estimate: int) -> Any:
    """Return the value that tensordict takes from a distribution for this exploration type."""
    draw = distribution.rsample if distribution.has_rsample else distribution.sample
    if exploration is _RANDOM:
        return draw(torch.Size())
    if exploration is not _MEAN:
        name = "deterministic_sample" if exploration is _DETERMINISTIC else exploration.value
        return getattr(distribution, name)
    try:
        return distribution.mean
    except (AttributeError, NotImplementedError):
        return draw((n_estimate,)).mean(0)


def _sum_last(values: Tensor, n_dims: int) -> Tensor:
    """Return the sum over the last dimensions."""
    if n_dims < 2:
        return values.sum(-1) if n_dims else values
    return values.reshape(*values.shape[:-n_dims], -1).sum(-1)


def _covers(request: DrawRequest, options: str, types: Sequence[InteractionType]) -> bool:
    """Tell whether a formula covers the options and the exploration type of a request."""
    return set(request.options) <= set(options.split()) and request.exploration in types


# ---- categories


def _one_hot(index: Tensor, probs: Tensor) -> Tensor:
    return functional.one_hot(index, probs.shape[-1])


def _float_one_hot(index: Tensor, probs: Tensor) -> Tensor:
    return torch.zeros_like(probs).scatter_(-1, index.unsqueeze(-1), 1)


def _draw_index(probs: Tensor, *, quickly: bool) -> Tensor:
    """Return a drawn index per row of probabilities.

    Args:
        probs: the probabilities.
        quickly: they are on the CPU and from a softmax, which needs no checks but for NaN; the draw is the one of
            `torch.multinomial`, in a third of the time.

    Raises:
        RuntimeError: a probability is NaN.
    """
    if quickly and probs.sum().item() > 0:
        return (probs / torch.empty_like(probs).exponential_()).argmax(-1)
    return torch.multinomial(probs.reshape(-1, probs.shape[-1]), 1, replacement=True).reshape(probs.shape[:-1])


def _mode(logits: Tensor) -> Tensor:
    return (logits == logits.max(-1, keepdim=True)[0]).to(torch.long)


def _categorical(request: DrawRequest) -> Draw | None:
    """Return the formula for `Categorical`."""
    return _draw_category(
        request,
        encode=lambda index, _: index,
        mode=lambda _, probs: probs.argmax(-1),
        index_of=lambda value: value,
    )


def _one_hot_categorical(request: DrawRequest) -> Draw | None:
    """Return the formula for `OneHotCategorical` of tensordict and TorchRL, whose values are whole numbers."""
    return _draw_category(
        request, encode=_one_hot, mode=lambda logits, _: _mode(logits), index_of=lambda value: value.argmax(-1)
    )


def _float_one_hot_categorical(request: DrawRequest) -> Draw | None:
    """Return the formula for `OneHotCategorical` of torch, whose values have the dtype of the probabilities."""
    return _draw_category(
        request,
        encode=_float_one_hot,
        mode=lambda _, probs: _float_one_hot(probs.argmax(-1), probs),
        index_of=lambda value: value.max(-1)[1],
    )


def _draw_category(
    request: DrawRequest,
    encode: Callable[[Tensor, Tensor], Tensor],
    mode: Callable[[Tensor, Tensor], Tensor],
    index_of: Callable[[Tensor], Tensor],
) -> Draw | None:
    """Return a formula for categories.

    Args:
        request: the draw.
        encode: returns the value of an index, given the probabilities.
        mode: returns the most likely value, given log-probabilities and probabilities.
        index_of: returns the index of a value.
    """
    (name, *mask), example = request.example, next(iter(request.example.values()))
    is_covered = _covers(request, "neg_inf" if mask else "", (_RANDOM, _MODE, _DETERMINISTIC))
    if (
        not is_covered
        or (name, *mask) not in (("logits",), ("probs",), ("logits", "mask"))
        or example.shape[-1:] < (2,)
    ):
        return None
    if mask and (request.example["mask"].dtype != torch.bool or example.ndim > 2):
        return None
    blocked = request.options.get("neg_inf", -math.inf)
    takes_logits, random, scored = name == "logits", request.takes_random, request.scored
    draws_quickly = takes_logits and example.device.type == "cpu"

    def score(logits: Tensor, index: Tensor) -> Tensor:
        if not mask:
            return logits.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        result = -functional.cross_entropy(logits, index, reduction="none")
        return torch.where(torch.isfinite(result), result, blocked)

    def draw(parameter: Tensor, *allowed: Tensor) -> tuple[Tensor, Tensor | None]:
        if allowed:
            parameter = parameter.masked_fill(~allowed[0], blocked)
        if takes_logits:
            logits = parameter - parameter.logsumexp(-1, keepdim=True)
            probs = logits.softmax(-1)
        else:
            probs = parameter / parameter.sum(-1, keepdim=True)
            logits = probs_to_logits(probs) if scored or not random else probs
        if random:
            index = _draw_index(probs, quickly=draws_quickly)
            return encode(index, probs), score(logits, index) if scored else None
        value = mode(logits, probs)
        return value, score(logits, index_of(value)) if scored else None

    return draw


# ---- normal distributions


def _draw_normal(loc: Tensor, scale: Tensor) -> Tensor:
    return loc + torch.empty(loc.shape, dtype=loc.dtype, device=loc.device).normal_() * scale


def _score_normal(value: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -((value - loc) ** 2) / (2 * scale**2) - scale.log() - _LOG_SQRT_2PI


def _has_loc_and_scale(request: DrawRequest) -> bool:
    """Tell whether the parameters are `loc` and `scale`, of one shape and floating dtype."""
    if tuple(request.example) != ("loc", "scale"):
        return False
    loc, scale = request.example.values()
    return loc.shape == scale.shape and loc.dtype == scale.dtype and loc.is_floating_point() and loc.ndim > 0


def _normal(request: DrawRequest) -> Draw | None:
    """Return the formula for `Normal`, and for TorchRL's `IndependentNormal`, which ignores `tanh_loc`."""
    is_independent = request.distribution is not distributions.Normal
    options = "event_dim tanh_loc upscale" if is_independent else ""
    if not _has_loc_and_scale(request) or not _covers(request, options, (_RANDOM, _MODE, _MEAN, _DETERMINISTIC)):
        return None
    n_dims, random, scored = request.options.get("event_dim", int(is_independent)), request.takes_random, request.scored

    def draw(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor | None]:
        value = _draw_normal(loc, scale) if random else loc
        return value, _sum_last(_score_normal(value, loc, scale), n_dims) if scored else None

    return draw


# ---- bounded distributions


def _bounds_of(request: DrawRequest, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, bool] | None:
    """Return the ends of the range, and whether it is [-1, 1]; `None` if it is empty or widens the parameters.

    Args:
        request: the draw.
        dtype: of ends that are numbers; `None` for torch's choice.
    """
    example = next(iter(request.example.values()))
    ends = [request.options.get("low", -1.0), request.options.get("high", 1.0)]
    if not all(isinstance(end, Number | Tensor) for end in ends):
        return None
    low, high = (
        torch.as_tensor(end, device=example.device, dtype=None if isinstance(end, Tensor) else dtype) for end in ends
    )
    if not bool((high > low).all()) or (low + high + example).shape != example.shape:
        return None
    return low, high, bool((low == -1).all() and (high == 1).all())


def _tanh_normal(request: DrawRequest) -> Draw | None:
    """Return the formula for TorchRL's `TanhNormal`."""
    covered = "low high upscale event_dims tanh_loc safe_tanh"
    if not _has_loc_and_scale(request) or not _covers(request, covered, (_RANDOM, _DETERMINISTIC)):
        return None
    bounds, options = _bounds_of(request), request.options
    if bounds is None or not options.get("safe_tanh", True):
        return None
    example = request.example["loc"]
    low, high, is_unit = bounds
    center, half, limit = (high + low) / 2, (high - low) / 2, _tanh_limit(example)
    log_half = half.abs().log()
    upscale = options.get("upscale", 5.0)
    upscale = upscale.to(example.device) if isinstance(upscale, Tensor) else upscale
    n_dims = options.get("event_dims")
    n_dims = min(1, example.ndim) if n_dims is None else n_dims
    squashes_loc = options.get("tanh_loc", False)
    random, scored, joint = request.takes_random, request.scored, request.joint and request.takes_random

    def log_slope(x: Tensor) -> Tensor:
        slope = 2.0 * (_LOG_2 - x - functional.softplus(-2.0 * x))
        return _sum_last(slope if is_unit else slope + log_half, n_dims)

    def draw(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor | None]:
        if squashes_loc:
            loc = (loc / upscale).tanh() * upscale
            loc = loc if is_unit else loc + half + low
        x = _draw_normal(loc, scale) if random else loc
        value = x.tanh().clamp(-limit, limit)
        if not is_unit:
            value = center + half * value
        if not scored:
            return value, None
        if joint:
            return value, _sum_last(_score_normal(x, loc, scale), n_dims) - log_slope(x)
        x = (value if is_unit else (value - center) / half).clamp(-limit, limit).atanh()
        return value, 0.0 - log_slope(x) + _sum_last(_score_normal(x, loc, scale), n_dims)

    return draw


def _tanh_limit(example: Tensor) -> float:
    """Return the largest tanh that TorchRL gives in this dtype."""
    return 1.0 - torch.finfo(example.dtype).resolution


def _delta(request: DrawRequest) -> Draw | None:
    """Return the formula for `Delta` of tensordict and TorchRL."""
    types = (_RANDOM, _MODE, _MEAN, _DETERMINISTIC)
    is_known = tuple(request.example) == ("param",) and _covers(request, "atol rtol", types)
    return (lambda param: (param, None)) if is_known and not request.scored else None


def _tanh_delta(request: DrawRequest) -> Draw | None:
    """Return the formula for TorchRL's `TanhDelta`."""
    is_covered = _covers(request, "low high event_dims atol rtol", (_RANDOM, _MODE, _DETERMINISTIC))
    if tuple(request.example) != ("param",) or not is_covered or request.scored:
        return None
    example = request.example["param"]
    if _bounds_of(request) is None or not example.is_floating_point():
        return None
    low, high = request.options.get("low", -1.0), request.options.get("high", 1.0)  # numbers stay numbers
    center, half, limit = (high + low) / 2, (high - low) / 2, _tanh_limit(example)
    return lambda param: (center + half * (param + half + low).tanh().clamp(-limit, limit), None)


def _truncated_normal(request: DrawRequest) -> Draw | None:
    """Return the formula for TorchRL's `TruncatedNormal`."""
    types = (_RANDOM,) if request.scored else (_RANDOM, _MEAN, _DETERMINISTIC)
    if not _has_loc_and_scale(request) or not _covers(request, "low high upscale tanh_loc", types):
        return None
    example, options, eps = request.example["loc"], request.options, 1e-6
    bounds = _bounds_of(request, example.dtype)
    if bounds is None:
        return None
    low, high = (end.expand_as(example) for end in bounds[:2])
    lowest, highest = low + eps, high - eps
    upscale = torch.as_tensor(options.get("upscale", 5.0), device=example.device)
    squashes_loc, random, scored = options.get("tanh_loc", False), request.takes_random, request.scored
    sqrt_2, inverse_sqrt_2, inverse_sqrt_2pi = math.sqrt(2), 1 / math.sqrt(2), 1 / math.sqrt(2 * math.pi)

    def density(x: Tensor) -> Tensor:
        return (-(x**2) * 0.5).exp() * inverse_sqrt_2pi

    def mass_below(x: Tensor) -> Tensor:
        return (0.5 * (1 + (x * inverse_sqrt_2).erf())).clamp(eps, 1 - eps)

    def draw(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor | None]:
        if squashes_loc:
            loc = (loc / upscale).tanh() * upscale
        scale = scale.clamp_min(eps)
        a, b = (low - loc) / scale, (high - loc) / scale
        if bool((a >= b).any()):
            raise ValueError("Incorrect truncation range")
        below = mass_below(a)
        mass = (mass_below(b) - below).clamp(eps, 1 - eps)
        if not random:
            return -(density(b) - density(a)) / mass * scale + loc, None
        uniform = torch.empty(a.shape, dtype=a.dtype, device=a.device).uniform_(eps, 1 - eps)
        x = sqrt_2 * (2 * (below + uniform * mass).clamp(eps, 1 - eps) - 1).erfinv()
        value = torch.stack([torch.stack([x * scale + loc, low], 0).max(0)[0], high], 0).min(0)[0]
        if not scored:
            return value, None
        inside = torch.max(torch.stack([torch.min(torch.stack([value, highest], -1), dim=-1)[0], lowest], -1), dim=-1)[
            0
        ]
        score = math.log(inverse_sqrt_2pi) - mass.log() - (((inside - loc) / scale) ** 2) * 0.5 - scale.log()
        return value, score.sum(-1)

    return draw


FORMULAS: Mapping[str, Callable[[DrawRequest], Draw | None]] = {
    "torch.distributions.categorical.Categorical": _categorical,
    "torch.distributions.one_hot_categorical.OneHotCategorical": _float_one_hot_categorical,
    "torch.distributions.normal.Normal": _normal,
    "tensordict.nn.distributions.discrete.OneHotCategorical": _one_hot_categorical,
    "tensordict.nn.distributions.continuous.Delta": _delta,
    "torchrl.modules.distributions.discrete.OneHotCategorical": _one_hot_categorical,
    "torchrl.modules.distributions.discrete.MaskedCategorical": _categorical,
    "torchrl.modules.distributions.discrete.MaskedOneHotCategorical": _one_hot_categorical,
    "torchrl.modules.distributions.continuous.IndependentNormal": _normal,
    "torchrl.modules.distributions.continuous.TanhNormal": _tanh_normal,
    "torchrl.modules.distributions.continuous.TanhDelta": _tanh_delta,
    "torchrl.modules.distributions.continuous.TruncatedNormal": _truncated_normal,
    "torchrl.modules.distributions.continuous.Delta": _delta,
}
"""A function per class that returns the formula for a request, or `None` if it does not cover that."""
