"""How a policy picks from its distribution: one enum, shared with tensordict (and so with TorchRL)."""

from __future__ import annotations

from tensordict.nn import InteractionType as ExplorationType

__all__ = ["ExplorationType", "as_exploration_type"]


def as_exploration_type(value: ExplorationType | str) -> ExplorationType:
    """The enum member, also from its name in any case.

    Raises:
        ValueError: no such type; the message lists the names there are.
    """
    if isinstance(value, ExplorationType):
        return value
    names = [member.name for member in ExplorationType]
    if isinstance(value, str) and value.upper() in names:
        return ExplorationType[value.upper()]
    raise ValueError(f"exploration_type={value!r} is none of {', '.join(names)}")
