"""Public names of evaluation."""
