"""What stands between a worker's envs and the loop: a host for one more kind of envs, and hosts made of hosts.

own_vector             envs            processing   observations as policies see them
wrapping               the common part seating      observations of several agents, by policy
"""
