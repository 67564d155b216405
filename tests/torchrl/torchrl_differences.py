"""What differs between two batches: keys, shapes, dtypes and values; also where entries cannot be one tensor."""

import torch
from tensordict import TensorDictBase, is_tensor_collection


def differences(left, right, ignore=()):
    """One line per difference between two batches `[*B, T]`; entries whose path begins with one of `ignore` apart."""
    found = []
    if left.shape != right.shape:
        return [f"batch size {tuple(left.shape)} instead of {tuple(right.shape)}"]
    if left.names != right.names:
        found.append(f"names {left.names} instead of {right.names}")
    for t in range(left.shape[-1]):
        more = _compare(left[..., t], right[..., t], (), ignore)
        if more:
            return [*found, *(f"step {t}: {line}" for line in more)]
    return found


def _compare(left, right, path, ignore):
    lines = []
    mine, theirs = set(left.keys()), set(right.keys())
    for key in sorted(mine | theirs):
        here = (*path, key)
        if here in ignore:
            continue
        if key not in theirs:
            lines.append(f"{here} is too much")
        elif key not in mine:
            lines.append(f"{here} is missing")
        else:
            lines += _entry(left, right, key, here, ignore)
    return lines


def _entry(left, right, key, here, ignore):
    try:
        a, b = left[key], right[key]
    except RuntimeError:  # rows that cannot be stacked
        return [
            line
            for a, b in zip(left.unbind(-1), right.unbind(-1), strict=True)
            for line in _compare(a, b, here[:-1], ignore)
        ]
    if isinstance(a, TensorDictBase) and isinstance(b, TensorDictBase):
        return _container(a, b, here, ignore)
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return [] if a == b else [f"{here} is {a!r} instead of {b!r}"]
    if a.dtype != b.dtype or a.shape != b.shape:
        return [f"{here} is {a.dtype} {tuple(a.shape)} instead of {b.dtype} {tuple(b.shape)}"]
    return [] if torch.equal(a, b) else [f"{here} is {a.tolist()} instead of {b.tolist()}"]


def _container(a, b, here, ignore):
    if a.shape != b.shape:
        return [f"{here} has batch size {tuple(a.shape)} instead of {tuple(b.shape)}"]
    return _compare(a, b, here, ignore)


def entries(batch):
    """Every path in a batch, with dtype and shape where it is a tensor."""
    return {key for key in batch.keys(True, True) if not is_tensor_collection(batch.get(key))}
