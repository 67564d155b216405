"""Values of the states in a batch, from as few states and calls of the network as will do.

    frames      a─▶b   b─▶c   c─▶x  │  p─▶q   q─▶r
    value       V(a)   V(b)   V(c)     V(p)   V(q)
    next value  V(b)   V(c)   V(x)     V(q)   V(r)

Shown to the network: a b c p q, where frames begin, and x r, which only the ends of segments reach.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn

from swath.keys import IS_INIT, OBSERVATION, STATE_VALUE, Key, under_next
from swath.rollout.episodes.entries import Tensor


def state_values(network: nn.Module, td: TensorDictBase, ends: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """The values of the states acted in and of those reached, in one call of the network.

    The network is used as it is: the caller decides about gradients, mode and device.

    Args:
        network: a TensorDict module that writes `"state_value"`; or a module from observation to value, `[N, …]` to
            `[N, 1]` or `[N]`, given the entries `in_keys` if it has that attribute.
        td: a batch `[*B, T]`.
        ends: the frames behind which nothing goes on (`segment_ends`), `[*B, T]` bool.
        mask: the frames that count, `[*B, T]` bool, or None for all; the others are not shown and their values are 0.

    Returns:
        `V(s)` and `V(next s)`, each `[*B, T]`; the second means nothing where the mask is False.

    Raises:
        KeyError: an input of the network is not in the batch, or not under `"next"`.
        RuntimeError: the network gave something other than one number per state.
    """
    keys = input_keys(network)
    here, there = _gather(td, {key: td[key] for key in keys}), _gather(td, {key: _reached(td, key) for key in keys})
    counts = torch.ones_like(ends) if mask is None else mask
    own = (ends | _differs(here, there)) & counts
    acted = here.reshape(ends.numel()) if mask is None else here[mask]
    answer = _evaluate(network, torch.cat([acted, there[own]]), keys)
    value = answer.new_zeros(ends.shape).masked_scatter_(counts, answer[: len(acted)])
    next_value = value.view(-1).roll(-1).view(ends.shape).masked_scatter_(own, answer[len(acted) :])
    return value, next_value


def input_keys(network: nn.Module) -> Sequence[Key]:
    """The entries that the network reads: its `in_keys`, without them the observation."""
    keys: Sequence[Key] = getattr(network, "in_keys", (OBSERVATION,))
    return keys


def _gather(td: TensorDictBase, inputs: dict[Key, Tensor]) -> TensorDict:
    return TensorDict(inputs, batch_size=td.batch_size, device=td.device)


def _reached(td: TensorDictBase, key: Key) -> Tensor:
    entry: Tensor | None = td.get(under_next(key), None)
    if entry is None and key == IS_INIT:
        return torch.zeros_like(td[key])
    if entry is None:
        raise KeyError(f"no entry {under_next(key)!r} to evaluate the state reached by; collect with compact_obs=False")
    return entry


def _differs(here: TensorDictBase, there: TensorDictBase) -> Tensor:
    """Frames whose state reached is not the one that the frame behind acts in, `[*B, T]` bool; False in the last."""
    differs = torch.zeros(here.batch_size, dtype=torch.bool, device=here.device)
    reached, acted = there[..., :-1], here[..., 1:]
    for key in there.keys(include_nested=True, leaves_only=True):
        differs[..., :-1] |= (reached[key] != acted[key]).unsqueeze(-1).flatten(here.ndim).any(-1)
    return differs


def _evaluate(network: nn.Module, states: TensorDictBase, keys: Sequence[Key]) -> Tensor:
    """One value per state `[N]`."""
    if isinstance(network, TensorDictModuleBase):
        answer: Tensor = network(states)[STATE_VALUE]
    else:
        answer = network(*(states[key] for key in keys))
    if answer.numel() != len(states):
        raise RuntimeError(
            f"value_network gave shape {list(answer.shape)} for {len(states)} states; give one number per state, "
            f"{[len(states), 1]} or {[len(states)]}"
        )
    return answer.reshape(-1)
