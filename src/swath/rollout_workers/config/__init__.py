"""The settings of rollout workers: one row each in a table, with its check and its default."""
