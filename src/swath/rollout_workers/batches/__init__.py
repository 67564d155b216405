"""What rollout workers hand out: columns of transitions, for one policy or several.

names     how columns are called                columns       a dict of columns, copied, moved and counted
leaves    dicts and tuples inside columns       rows          sequences, parts of batches, parts to a whole
sample_batch, multi_agent                       the classes, made of all these
"""
