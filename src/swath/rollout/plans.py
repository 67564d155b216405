"""The switch of plans: TorchRL's programs as array programs."""

from __future__ import annotations

import os
from typing import Literal, TypeAlias

PlansMode: TypeAlias = Literal["on", "off", "check"]

VARIABLE = "SWATH_PLANS"
_MODES: dict[str, PlansMode] = {"": "on", "1": "on", "0": "off", "check": "check"}


class NoPlan(Exception):  # noqa: N818  no error
    """An env or a policy has no plan; the message has the reason."""


def plans_mode() -> PlansMode:
    """Return the value of the environment variable `SWATH_PLANS`: `"0"` is off, `"check"` is check, else on.

    Raises:
        ValueError: another value.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in _MODES:
        raise ValueError(
            f"{VARIABLE}={value!r} is neither '0', '1' nor 'check'; set it to '0' for no plans, or unset it"
        )
    return _MODES[value]
