"""The batches of rollout workers: columns of transitions, for one policy or several.

names    names of columns      rows    operations on rows      sample_batch    the classes
"""
