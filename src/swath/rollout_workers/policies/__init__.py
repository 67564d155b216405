"""The policies that are shipped."""
