"""One worker: its policies, envs and seeds.

RolloutWorker                what users call
  ├─ PolicyMethods, LearningMethods      who acts, by which filter, and who learns
  ├─ Envs                                what is stepped, and the sampler of its rows
  └─ Seeds, WorkerLog, DatasetReader, RolloutOptions     seeds, the log, rows in the place of envs, arguments
"""
