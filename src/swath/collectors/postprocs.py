"""The two modules for `postproc`, under TorchRL's name for their package."""

from swath.rollout.episodes.gae import GAE
from swath.rollout.episodes.nstep import MultiStep

__all__ = ["GAE", "MultiStep"]
