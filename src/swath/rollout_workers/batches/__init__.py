"""What rollout workers hand out: columns of transitions, for one policy or several.

names         how columns are called              sample_batch  the classes, with all that is done to rows
tensordicts   columns as TensorDicts and back
"""
