"""Many rollout workers as one: called together, fed with weights, replaced when they die.

WorkerSet ─▶ Crew: fleet, channel, what lasts ─▶ Resident: a worker in its place
    └─▶ local worker
"""
