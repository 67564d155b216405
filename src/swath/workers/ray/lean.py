"""tensordict without torch's compiler, whose import takes as long as that of all the rest of torch.

    import tensordict ─▶ its marks for the compiler are noted ─▶ … ─▶ the compiler is imported ─▶ they are made

tensordict tells the compiler how to treat a few functions, and imports it for that. Most workers compile nothing; those
that do find the marks made.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch.compiler

COMPILER = "torch._dynamo"
_KINDS = ("allow_in_graph", "assume_constant_result")


class Marks(MetaPathFinder):
    """Marks that wait for the compiler; asked by Python whenever a module is imported for the first time."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[Any], Any], Any]] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Marks that are made meanwhile wait."""
        kept = {kind: getattr(torch.compiler, kind) for kind in _KINDS}
        for kind, mark in kept.items():
            setattr(torch.compiler, kind, self._noting(mark))
        try:
            yield
        finally:
            for kind, mark in kept.items():
                setattr(torch.compiler, kind, mark)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  as Python asks
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Where the compiler is, with the marks to be made once it is imported."""
        if fullname != COMPILER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_mark(module: ModuleType) -> None:
            execute(module)
            for mark, function in self._waiting:
                mark(function)

        spec.loader.exec_module = execute_and_mark  # type: ignore[method-assign]
        return spec

    def _noting(self, mark: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def note(function: Any) -> Any:
            if COMPILER in sys.modules:
                return mark(function)
            self._waiting.append((mark, function))
            return function

        return note


def import_tensordict() -> None:
    """Import it, unless it has been imported."""
    if "tensordict" in sys.modules or COMPILER in sys.modules:
        return
    marks = Marks()
    sys.meta_path.insert(0, marks)
    with marks.noted():
        import tensordict  # noqa: F401, PLC0415
