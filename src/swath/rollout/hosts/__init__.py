"""Adapters that make any env source look like B envs stepped together."""
