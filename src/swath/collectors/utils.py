"""`split_trajectories`, where users of TorchRL look for it."""

from swath.rollout.episodes.reshape import split_trajectories

__all__ = ["split_trajectories"]
