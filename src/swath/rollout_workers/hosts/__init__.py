"""What stands between a worker's envs and the loop: hosts for its kinds of envs, and hosts made of hosts.

own_vector             envs            lenient      failures as marks on rows
wrapping               the common part processing   observations as policies see them
                                       seating      observations of several agents, by policy
"""
