"""Many rollout workers as one: called together, fed with weights, replaced when they die.

WorkerSet ─▶ RolloutGroup: requests to the remote workers, and what all are to know ─▶ RolloutActor
         └─▶ local worker
"""
