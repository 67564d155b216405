"""Processes of this machine, forked by a nursery, with arrays in shared blocks."""
