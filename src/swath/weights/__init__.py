"""How policy weights are named, checked, copied and brought to workers. Knows nothing of reinforcement learning."""
