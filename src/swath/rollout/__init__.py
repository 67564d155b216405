"""The loop and what it touches. Knows nothing of processes.

hosts/     any env source, as B envs stepped together
policies/  anything that users call a policy, bound to a host
loop       steps a host with a policy
buffer     where the steps are written, fragment: what becomes of them
episodes/  what is made of fragments: ids, whole episodes, n-step returns, advantages
"""
