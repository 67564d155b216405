"""Anything that users call a policy, bound to a host: leaves of observations in, leaves of outputs out."""
