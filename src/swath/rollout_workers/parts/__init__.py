"""What a `RolloutWorker` is made of beside its sampler; each part knows one thing about it."""
