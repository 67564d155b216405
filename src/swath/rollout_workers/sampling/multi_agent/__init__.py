"""How a worker fills its batches where several agents act in an env.

    envs ─▶ host of dicts ─▶ seating ─┐  seating: who is seen gets a seat; all that is seen is processed, stacked by
                                      │  policy, and kept in the policy's role
    roles, a policy each ─▶ actor ────┴▶ rollout.loop ─▶ recorder ─▶ rows of each role
    rows ─▶ share: how much of each env is handed out ─▶ columns ─▶ batch

An observation is kept once, as a row of its role's stack; a transition is a few numbers, among them the rows acted on
and reached. So a step costs one stacking and one call per policy, and a few numbers per agent.
"""
