"""How a policy picks from its distribution: one enum, shared with tensordict (and so with TorchRL)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tensordict.nn import InteractionType as ExplorationType
from tensordict.nn import set_interaction_type

from swath.errors import WorkerLate

__all__ = ["ExplorationType", "as_exploration_type", "exploring"]

LONGEST_CALL_S = 300.0
_one_call_at_a_time = threading.RLock()


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
            raise WorkerLate(
                f"another thread of this process has been in a call of its policy for {LONGEST_CALL_S:.0f} s, and the "
                "exploration type belongs to the process; use backend='process'",
                deadline=LONGEST_CALL_S,
            )
        try:
            with mode:
                return policy(td)
        finally:
            _one_call_at_a_time.release()

    return call
