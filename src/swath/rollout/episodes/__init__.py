"""Trajectory ids, whole episodes, n-step returns and advantages of fragments."""
