"""Adapters of env sources to B envs stepped together."""
