"""The two modules for `postproc`, under one roof."""

from swath.rollout.episodes.gae import GAE
from swath.rollout.episodes.nstep import MultiStep

__all__ = ["GAE", "MultiStep"]
