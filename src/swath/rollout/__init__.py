"""The loop and what it touches: hosts, policies, buffers, fragments. Knows nothing of processes."""
