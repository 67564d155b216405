"""The face for users of RLlib's `RolloutWorker` and `WorkerSet`, over the same core as the collectors.

Being built: what is here works for itself and is tested; the worker that joins it is still to come.
"""
