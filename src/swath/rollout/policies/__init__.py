"""Policies of any kind, bound to a host: leaves of observations in, leaves of outputs out."""
