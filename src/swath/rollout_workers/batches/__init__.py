"""What rollout workers hand out: columns of transitions, for one policy or several.

names    how columns are called      rows    what is done to rows      sample_batch    the classes
"""
