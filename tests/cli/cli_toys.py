"""Arguments for runs of the command line that are over at once."""

SMALL = ("--envs", "2", "--batch", "128", "--eval-episodes", "2")
TINY = ("--frames", "256", *SMALL)
