"""What rollout workers hand out: columns of transitions, for one policy or several.

names        how columns are called            columns       a dict of columns that knows its rows
leaves       dicts and tuples inside columns   sequences     what `seq_lens` says about rows
slices, rows parts of a batch                  concat        parts to a whole
sample_batch, multi_agent                      the classes, made of all these
"""
