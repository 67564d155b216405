"""Many rollout workers as one: called together, fed with weights, replaced when they die.

WorkerSet (Workers, Calls) ─▶ RolloutGroup: requests, and what all are to know ─▶ RolloutActor
                         └─▶ local worker
"""
