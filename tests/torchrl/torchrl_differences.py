"""What differs between two batches: keys, shapes, dtypes and values; also where entries cannot be one tensor."""

import torch
from tensordict import TensorDictBase


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


def require_equal(batches, others, ignore=()):
    """As many batches, without a difference."""
    found = [line for one, other in zip(batches, others, strict=True) for line in differences(one, other, ignore)]
    assert not found, "\n".join(found[:20])


def _compare(left, right, path, ignore):
    lines = []
    for key in sorted({*left.keys(), *right.keys()}):
        here = (*path, key)
        if here in ignore:
            continue
        if key not in left.keys() or key not in right.keys():  # noqa: SIM118  keys of a TensorDict
            lines.append(f"{here} is there on one side only")
        else:
            lines += _entry(left, right, key, here, ignore)
    return lines


def _entry(left, right, key, here, ignore):
    try:
        a, b = left[key], right[key]
    except RuntimeError:  # rows that cannot be stacked
        rows = zip(left.unbind(-1), right.unbind(-1), strict=True)
        return [line for a, b in rows for line in _compare(a, b, here[:-1], ignore)]
    kind, other = ((getattr(one, "dtype", None), getattr(one, "shape", None)) for one in (a, b))
    if kind != other:
        return [f"{here} is {kind} instead of {other}"]
    if isinstance(a, TensorDictBase):
        return _compare(a, b, here, ignore)
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    return [] if same else [f"{here} is {a} instead of {b}"]
