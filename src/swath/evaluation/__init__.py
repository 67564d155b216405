"""Evaluation: what is asked, how episodes are played, what the numbers are."""
