"""Evaluation: requests, the workers that play their episodes, and results."""
