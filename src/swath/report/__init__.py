"""What a run shows and leaves behind: metric sinks, progress, plots, video."""
