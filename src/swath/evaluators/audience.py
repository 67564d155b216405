"""Who is shown a result before it can be read: the keeper of the best, the user's callback; and what became of that."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any, TypeAlias

from swath.evaluate.result import EvalResult
from swath.evaluators.keeping import Keeper

_log = logging.getLogger("swath")

LONG_S = 30.0
TOLD = ("step", "reward", "reward_ci_low", "reward_ci_high", "num_episodes")
"""What `stats()` says of the newest result, by its names there without prefix."""

Weights: TypeAlias = Callable[[], Mapping[str, Mapping[str, Any]]]
"""Gets the weights that a result was made with, by model id."""


class Audience:
    """Keeps the best weights, then calls `on_result`; what goes wrong there changes nothing else.

    Args:
        on_result: called with each result as a flat TensorDict.
        keeper: of the best weights.
        prefix: of the names in results.

    Attributes:
        newest: what `stats()` says of the result that was shown last; empty before the first.
        write_errors: how often the best weights could not be written.
        callback_errors: how often `on_result` raised.
        last_error: what it raised last.
    """

    def __init__(
        self, on_result: Callable[[Any], Any] | None, keeper: Keeper | None = None, prefix: str = "eval"
    ) -> None:
        if on_result is not None and not callable(on_result):
            raise TypeError(f"on_result is of type {type(on_result).__name__}; it must be callable, or None")
        self._on_result, self._keeper = on_result, keeper
        self._told = [f"{prefix}/{name}" for name in TOLD]
        self._warned = False
        self.newest: dict[str, float] = {}
        self.write_errors = 0
        self.callback_errors = 0
        self.last_error: BaseException | None = None

    def __call__(self, result: EvalResult, weights: Weights) -> None:
        """Show it to all."""
        self.newest = {name: result[name] for name in self._told}
        if self._keeper is not None and self._keeper.beaten_by(result):
            self._keep(self._keeper, result, weights)
        if self._on_result is not None:
            self._call(self._on_result, result)

    def _keep(self, keeper: Keeper, result: EvalResult, weights: Weights) -> None:
        try:
            keeper.keep(result, weights())
        except Exception:  # noqa: BLE001  it is logged and counted
            self.write_errors += 1
            _log.exception("the best weights, of step %d, could not be written; the result stands", result.step)

    def _call(self, on_result: Callable[[Any], Any], result: EvalResult) -> None:
        began = monotonic()
        try:
            on_result(result.to_tensordict())
        except BaseException as error:  # noqa: BLE001  it is logged, counted and kept; no exit ends our thread
            self.callback_errors += 1
            self.last_error = error
            _log.exception("on_result raised for the evaluation of step %d; the result stands", result.step)
        seconds = monotonic() - began
        if seconds > LONG_S and not self._warned:
            self._warned = True
            text = f"on_result took {seconds:.0f} s; meanwhile no evaluation begins and no result can be read"
            warnings.warn(text, UserWarning, stacklevel=2)
