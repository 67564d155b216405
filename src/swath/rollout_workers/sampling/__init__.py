"""Collection of a rollout worker's batches from the steps of the library's only loop.

    hosts ──▶ agents ──▶ rollout.loop ──▶ sampler ──▶ batches
    policies ◀──┘            slots: the episodes, which transitions wait, what is handed out
       └──▶ policy_rows ──▶ rollout.buffer: one row per slot and step

A slot is an agent in an env. Rows are written by the collectors' buffer, and void where a slot's transition goes on.
"""
