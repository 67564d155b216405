"""The settings of rollout workers: one row each in a table that says what it may be and what becomes of it."""
