"""What rollout workers hand out: columns of transitions, for one policy or several.

names         how columns are called              columns   a dict of columns, copied, moved and counted
tensordicts   columns as TensorDicts and back     rows      some rows, and those of several batches
sample_batch  the classes, made of all these      joining   batches one behind another
"""
