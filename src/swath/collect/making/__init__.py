"""How a worker comes to be: its envs, its policy, where these are, and the core around them."""
