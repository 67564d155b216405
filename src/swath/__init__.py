"""Swath: experience from many workers for PyTorch reinforcement learning, and evaluation during training.

Public names are loaded at first use, so that `import swath` costs a few milliseconds and imports no torch.
"""

from __future__ import annotations

from swath.lazy import lazy

_REPLACED = {"RayReplayBuffer": "use torchrl.data.RayReplayBuffer, which collectors take as replay_buffer="}

__getattr__, __dir__, __all__ = lazy(__name__, __file__, _REPLACED)
