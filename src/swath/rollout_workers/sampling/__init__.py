"""How a rollout worker fills its batches, out of what the library's one loop steps.

    hosts ──────▶ rollout.loop ─▶ rollout.buffer ─▶ blocks [B, T, …] ─▶ results      metrics of episodes that ended
    policy ─▶ actor ───┘                               │
                                                       └─▶ waiting ─▶ taken ─▶ columns ─▶ finishing ─▶ batch

`sampler` joins them. `watching` is there only where callbacks or policies look at episodes while they run.
"""
