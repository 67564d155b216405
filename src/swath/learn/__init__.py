"""A small reference PPO: enough for the demo and the command line."""
