"""Filters: what is done to observations before the policy sees them, and how workers share what they learnt."""
