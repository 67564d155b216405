"""One worker: its envs, policies, weights and seeds, each in a module that knows one thing about it.

RolloutWorker (PolicyMethods, LearningMethods)   what users call
  ├─ Policies                            who acts, by which filter, and who learns
  ├─ Envs ◀── EnvMaker                   what is stepped, and the sampler of its rows
  └─ Seeds, WorkerLog, DatasetReader     seeds, the log, rows in the place of envs
"""
