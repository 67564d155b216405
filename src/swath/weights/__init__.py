"""Names, checks, copies and delivery of policy weights. Independent of reinforcement learning."""
