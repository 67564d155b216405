"""Public names of collection."""
