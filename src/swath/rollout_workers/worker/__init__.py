"""One rollout worker: its policies, envs and seeds.

RolloutWorker                what users call
  ├─ Envs                                the sub-envs and their host
  ├─ Sampler                             their rows, in batches
  ├─ policies                            functions that change and update the worker's policies
  └─ setup                               arguments, seeds, the log, and rows of a dataset
"""
