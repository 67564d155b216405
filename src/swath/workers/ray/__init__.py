"""Actors of a Ray cluster."""
