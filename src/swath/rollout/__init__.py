"""Rollouts in one process: envs and a policy yield fragments.

hosts/     env sources, as B envs stepped together
policies/  policies of any kind, bound to a host
loop       steps a host with a policy
buffer     stores the steps as fragments, and builds batches of them
failures   handles envs that raise
episodes/  trajectory ids, whole episodes, n-step returns, advantages
"""
