"""One worker: its envs, policies, weights and seeds, each in a module that knows one thing about it.

RolloutWorker(PolicyWorker)   the methods: what users call
  ├─ Policies, PolicyWeights, Learning   who acts, with which weights, and how they learn
  ├─ Envs ◀── EnvMaker                   what is stepped, and the sampler of its rows
  └─ Seeds, WorkerLog, DatasetReader     seeds, the log, rows in the place of envs
"""
