"""The face for users of RLlib's `RolloutWorker` and `WorkerSet`, over the same core as the collectors."""

from __future__ import annotations

from swath.lazy import lazy

_MISSING = "RepeatedValues", "compress", "pack", "pack_if_needed", "unpack", "is_compressed"
_REPLACEMENT = "give padded values and their lengths as two columns; keep batches with numpy.savez_compressed"

__getattr__, __dir__, __all__ = lazy(__name__, __file__, dict.fromkeys(_MISSING, _REPLACEMENT))
