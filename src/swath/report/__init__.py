"""Output of a run: metric sinks, progress, plots, video, checkpoints, datasets."""
