"""Who is shown a result before it can be read, and what became of that."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from swath.evaluate.result import EvalResult
from swath.weights.snapshot import Snapshot

_log = logging.getLogger("swath")

LONG_S = 30.0


class Audience:
    """Calls `on_result`; its exceptions change nothing else.

    Args:
        on_result: called with each result as a flat TensorDict.

    Attributes:
        callback_errors: how often it raised.
        last_error: what it raised last.
    """

    def __init__(self, on_result: Callable[[Any], Any] | None) -> None:
        if on_result is not None and not callable(on_result):
            raise TypeError(f"on_result is a {type(on_result).__name__}; it must be callable, or None")
        self._on_result = on_result
        self._warned = False
        self.callback_errors = 0
        self.last_error: BaseException | None = None

    def __call__(self, result: EvalResult, weights: Mapping[str, Snapshot]) -> None:  # noqa: ARG002
        """Show it."""
        if self._on_result is None:
            return
        began = monotonic()
        try:
            self._on_result(result.to_tensordict())
        except Exception as error:  # noqa: BLE001  it is logged, counted and kept
            self.callback_errors += 1
            self.last_error = error
            _log.exception("on_result raised for the evaluation of step %d; the result stands", result.step)
        seconds = monotonic() - began
        if seconds > LONG_S and not self._warned:
            self._warned = True
            text = f"on_result took {seconds:.0f} s; meanwhile no evaluation begins and no result can be read"
            warnings.warn(text, UserWarning, stacklevel=2)
