"""The host that only rollout workers need: that of the sub-envs of a user's own `VectorEnv`."""
