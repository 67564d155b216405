"""How policy weights are named, checked and copied, and get to workers. Knows nothing of reinforcement learning."""
