"""Shipped tests for users: envs whose data name themselves, and contract suites."""
