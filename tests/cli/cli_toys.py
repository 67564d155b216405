"""Arguments for runs of the command line that are over at once."""

SMALL = ("--envs", "2", "--batch", "128", "--eval-episodes", "2")
TINY = ("--frames", "256", *SMALL)
# Evaluations are at 0, 128 and 256 frames only if asked for: they may take longer than such a training.
EVALUATED = (*TINY, "--eval-every", "128")
