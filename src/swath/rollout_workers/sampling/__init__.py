"""How a rollout worker fills its batches, out of what the library's one loop steps.

    hosts ──▶ rollout.loop ──▶ sampler ──▶ transitions ──▶ batches
    policies ──▶ policy_rows ──▶ agents ──┘    slots: who acts, what waits, how much is handed out

A slot is an agent in an env. What a policy sees and answers is kept as rows; a transition is a few numbers, among them
the rows acted on and reached.
"""
