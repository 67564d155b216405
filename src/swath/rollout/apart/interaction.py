"""TensorDict's interaction type, which is TorchRL's exploration type too: the process has one, a thread apart its own.

interaction_type() ───▶ tensordict's only manager ──┬─ thread is apart ──▶ the thread's
set_interaction_type ──▶                            └─ else ─────────────▶ the process's
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from tensordict.nn import InteractionType, probabilistic
from torch.compiler import is_compiling

_manager = probabilistic._interaction_type  # noqa: SLF001  no public name
_Manager: Any = type(_manager)
_get_mode, _set_mode = _Manager.get_mode, _Manager.set_mode


class _Here(threading.local):
    """Of the calling thread.

    Attributes:
        own: whether it has a type of its own. If so `apart` is there too, for compiled code: its guards do not notice
            that an attribute comes to hide a default of the class.
        type: that type.
    """

    own: bool = False
    type: InteractionType | None = None


_here = _Here()


class _PerThread(_Manager):  # type: ignore[misc]
    """The same manager for most threads; those apart never reach what these share."""

    def get_mode(self) -> InteractionType | None:
        """The type that holds on this thread."""
        if getattr(_here, "apart", False) if is_compiling() else _here.own:
            return _here.type
        return _get_mode(self)

    def set_mode(self, type: InteractionType | None) -> None:  # noqa: A002  tensordict's name
        """Set the type that holds on this thread."""
        if getattr(_here, "apart", False) if is_compiling() else _here.own:
            _here.type = type
        else:
            _set_mode(self, type)


@cache
def install() -> None:
    """Make tensordict's manager ask which thread is calling, once; the type it holds stays."""
    _manager.__class__ = _PerThread


def keep_own_type() -> None:
    """This thread has a type of its own from now on, `None` at first: for threads of ours that call policies."""
    install()
    vars(_here).update(own=True, apart=True, type=None)


@contextmanager
def own_type() -> Iterator[None]:
    """This thread has a type of its own, `None` at first."""
    before = vars(_here).copy()
    vars(_here).update(own=True, apart=True, type=None)
    try:
        yield
    finally:
        vars(_here).clear()
        vars(_here).update(before)
