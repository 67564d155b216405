"""Hosts that only rollout workers need.

own_vector     the sub-envs of a user's own `VectorEnv`
slot_host      envs whose observations become rows of policies; those with one agent each
many_agents    those with several
"""
