"""Many rollout workers as one: called together, fed with weights, replaced when they die.

WorkerSet (Sampling, Calls, SetPolicies) ─▶ Workers: what all are to know ─▶ RolloutGroup: requests ─▶ RolloutActor
                                              └─▶ local worker
"""
