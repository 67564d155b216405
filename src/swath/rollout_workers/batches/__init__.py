"""What rollout workers hand out: columns of transitions, for one policy or several.

names         how columns are called              columns   a dict of columns, copied, moved and counted
tensordicts   columns as TensorDicts and back     rows      sequences, parts of batches, parts to a whole
sample_batch  the classes, made of all these
"""
