"""The two modules for `postproc`, under one roof."""

from swath.rollout.gae import GAE
from swath.rollout.nstep import MultiStep

__all__ = ["GAE", "MultiStep"]
