"""Differences of two batches: keys, shapes, dtypes and values, also of entries that are no single tensor."""

import torch
from tensordict import TensorDictBase


def differences(first, second, ignore=()):
    """Return a line per difference of two batches `[*B, T]`, except entries with a path in `ignore`."""
    found = []
    if first.shape != second.shape:
        return [f"batch size {tuple(first.shape)} instead of {tuple(second.shape)}"]
    if first.names != second.names:
        found.append(f"names {first.names} instead of {second.names}")
    for t in range(first.shape[-1]):
        more = _compare(first[..., t], second[..., t], (), ignore)
        if more:
            return [*found, *(f"step {t}: {line}" for line in more)]
    return found


def require_equal(batches, others, ignore=()):
    """Assert that two lists of batches are equal."""
    found = [line for a, b in zip(batches, others, strict=True) for line in differences(a, b, ignore)]
    assert not found, "\n".join(found[:20])


def order_of(batch):
    """Return the keys in order; outputs of the policy after the ids as a set, whose order changes in TorchRL."""
    keys = [key for key in batch.keys(True, True) if key != ("collector", "policy_version")]
    n_ordered = keys.index(("collector", "traj_ids")) + 1
    return keys[:n_ordered], {*keys[n_ordered:]}


def _compare(first, second, path, ignore):
    lines = []
    for key in sorted({*first.keys(), *second.keys()}):
        key_path = (*path, key)
        if key_path in ignore:
            continue
        if key not in first.keys() or key not in second.keys():  # noqa: SIM118  keys of a TensorDict
            lines.append(f"{key_path} is there on one side only")
        else:
            lines += _entry(first, second, key, key_path, ignore)
    return lines


def _entry(first, second, key, key_path, ignore):
    try:
        a, b = first[key], second[key]
    except RuntimeError:  # rows that cannot be stacked
        rows = zip(first.unbind(-1), second.unbind(-1), strict=True)
        return [line for a, b in rows for line in _compare(a, b, key_path[:-1], ignore)]
    form, other_form = ((getattr(value, "dtype", None), getattr(value, "shape", None)) for value in (a, b))
    if form != other_form:
        return [f"{key_path} is {form} instead of {other_form}"]
    if isinstance(a, TensorDictBase):
        return _compare(a, b, key_path, ignore)
    same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
    return [] if same else [f"{key_path} is {a} instead of {b}"]
