"""Where code runs: in this process, in threads, in processes, on Ray. Knows nothing of reinforcement learning."""
