"""Hosts that only rollout workers need.

own_vector                  the sub-envs of a user's own `VectorEnv`
slot_host                   envs whose observations become rows of policies:
lone_agents, many_agents    with one agent each, or with several
"""
