"""The setting `model`: what the default network looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swath.errors import warn_of_no_effect
from swath.rollout_workers.config.checks import Check, flag, function, must_be, optional, table, whole, word

_WIDTHS: Check[Any] = must_be(
    "a list of layer widths", lambda value: isinstance(value, Sequence) and not isinstance(value, str)
)


def _activation(name: str, value: object) -> str:
    """The name of an activation; "swish" is "silu", and None is "linear"."""
    same = "linear" if value is None else "silu" if value == "swish" else value
    return word("tanh", "relu", "silu", "elu", "linear")(name, same)


_CHECKS: dict[str, tuple[Any, Check[Any]]] = {
    "fcnet_hiddens": ([256, 256], lambda name, value: [whole(1)(name, width) for width in _WIDTHS(name, value)]),
    "fcnet_activation": ("tanh", _activation),
    "vf_share_layers": (False, flag),
    "free_log_std": (False, flag),
    "max_seq_len": (20, whole(1)),
    "custom_model": (None, optional(function)),
    "custom_model_config": ({}, table),
}
"""Default and check by key."""

MODEL_DEFAULTS: dict[str, Any] = {key: default for key, (default, _) in _CHECKS.items()}
"""The setting `model` of a new config."""

_REFUSED = ("use_lstm", "use_attention")


def model(name: str, value: object) -> dict[str, Any]:
    """The model's settings, complete; keys that nothing here reads are kept for a model of the user's.

    Raises:
        ValueError: a key that is refused, or a value out of range.
    """
    given = table(name, value)
    for key in _REFUSED:
        if given.get(key):
            raise ValueError(
                f"{name}[{key!r}]={given[key]!r} is not served: write make_model of a TorchPolicy whose network takes "
                "(obs, state, seq_lens), or give custom_model"
            )
    for key in sorted(given.keys() - _CHECKS.keys() - set(_REFUSED)):
        warn_of_no_effect(f"model[{key!r}]", "the default network does not have it; only a custom_model would read it")
    own = {key: check(f"{name}[{key!r}]", given.get(key, default)) for key, (default, check) in _CHECKS.items()}
    return {**given, **own}
