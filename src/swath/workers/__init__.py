"""Workers in this process, in threads, in processes and on Ray. Independent of reinforcement learning."""
