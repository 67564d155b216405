"""How a rollout worker collects its batches, from the steps of the library's one loop.

    hosts ──▶ rollout.loop ──▶ sampler ──▶ transitions ──▶ batches
    policies ──▶ policy_rows ──▶ agents ──┘    slots: which agents act, which transitions wait, what is handed out

A slot is an agent in an env. Observations and answers of a policy are kept as rows; a transition is a few numbers,
among them the rows acted on and reached.
"""
