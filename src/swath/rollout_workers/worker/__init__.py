"""One worker: its envs, policies, weights and seeds, each in a module that knows one thing about it.

WorkerBase ◀── PolicyMethods ◀── SamplingMethods ◀── LearningMethods ◀── RolloutWorker

These classes are the face: what users call, and what is said of it. What is done is done by the modules beside them.
"""
