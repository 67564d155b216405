"""Hosts that only rollout workers need.

own_vector    the sub-envs of a user's own `VectorEnv`
processing    observations as policies see them
seating       observations of several agents, by policy
"""
