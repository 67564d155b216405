"""How policy weights are named, checked and copied. Knows nothing of reinforcement learning."""
