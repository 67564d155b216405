"""Generalized advantage estimation: as a function on tensors, and as a module for batches.

    delta_t     = reward_t + gamma · V(next_t) · (1 − terminated_t) − V_t
    advantage_t = delta_t + gamma · lambda · advantage_{t+1}, unless the segment ends with t

Values come from one call of the network, on as few states as possible:

    frames      a─▶b   b─▶c   c─▶x  │  p─▶q   q─▶r
    value       V(a)   V(b)   V(c)     V(p)   V(q)
    next value  V(b)   V(c)   V(x)     V(q)   V(r)

Its input is a b c p q, the states where frames begin, and x r, which only the last frames of segments reach.

J. Schulman et al., 2016, High-dimensional continuous control using generalized advantage estimation, eq. 11 to 16.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn

from swath.keys import (
    ADVANTAGE,
    IS_INIT,
    MISSING,
    OBSERVATION,
    REWARD,
    STATE_VALUE,
    TERMINATED,
    VALUE_TARGET,
    Key,
    under_next,
)
from swath.rollout.episodes.reshape import Tensor, per_frame, per_frame_or_none, segment_ends


def generalized_advantage(
    reward: Tensor, value: Tensor, next_value: Tensor, terminated: Tensor, ends: Tensor, *, gamma: float, lmbda: float
) -> Tensor:
    """Return advantages by the formula above; the value target is `advantage + value`.

    Args:
        reward: `[*B, T]`.
        value: of the frame's state, `[*B, T]`.
        next_value: of the true next state, also where an episode was truncated, `[*B, T]`; not read if `terminated`.
        terminated: the next state is terminal, of value 0, `[*B, T]` bool.
        ends: the frame is the last of its segment (`segment_ends`), `[*B, T]` bool.
        gamma: discount.
        lmbda: trace decay; 0 is one-step, 1 sums all rewards.

    Returns:
        `[*B, T]`, in the dtype of `reward`.
    """
    delta = reward + gamma * next_value.masked_fill(terminated, 0) - value
    return discounted_sum(delta, (~ends).to(delta.dtype) * (gamma * lmbda))


def discounted_sum(summand: Tensor, carry: Tensor) -> Tensor:
    """Return the sums `S_t = summand_t + carry_t · S_{t+1}` along the last dimension, `[*B, T]`.

    Doubles the reach of each sum in log₂ T passes over the tensor instead of T steps: 2 to 50 times as fast as a loop
    over T for up to a hundred rows, about as fast for thousands. NaN and infinities stay in their own sums.

    Args:
        summand: `[*B, T]`.
        carry: factors in [0, 1], 0 where a sum ends, `[*B, T]`.
    """
    total, factor, reach, is_finite = summand.clone(), carry[..., :-1], 1, bool(summand.isfinite().all())
    while reach < summand.shape[-1]:
        added = factor * total[..., reach:]
        total[..., :-reach] += added if is_finite else added.masked_fill_(factor == 0, 0)  # 0 times NaN is NaN
        factor = factor[..., :-reach] * factor[..., reach:]
        reach *= 2
    return total


class GAE(nn.Module):
    """Writes `"state_value"`, `"advantage"` and `"value_target"`, `[*B, T, 1]`, into a batch `[*B, T]`.

    The batch may be padded or flat. Sums stop at `done`, at the end of a row and where the trajectory id changes;
    truncated and unfinished episodes bootstrap with the value of the true next observation, but count as terminated
    where it is marked as missing. Masked frames are 0, and never an input of the network. It is called once per batch,
    without gradients: on all observations, and on observations under `"next"` that no other frame has.

    Args:
        gamma: discount, in [0, 1].
        lmbda: trace decay, in [0, 1].
        value_network: a TensorDict module that writes `"state_value"`; or a module from observation to value,
            `[N, …]` to `[N, 1]` or `[N]`, called with the entries `in_keys` if it has that attribute.
        average_gae: normalize advantages to mean 0 and standard deviation 1 over the batch's valid frames, after the
            targets are computed.

    Raises:
        ValueError: a number out of its range, or a TensorDict module that does not write `"state_value"`.
    """

    def __init__(self, *, gamma: float, lmbda: float, value_network: nn.Module, average_gae: bool = False) -> None:
        super().__init__()
        for name, number in (("gamma", gamma), ("lmbda", lmbda)):
            if not 0 <= number <= 1:
                raise ValueError(f"{name}={number} is not in [0, 1]")
        if isinstance(value_network, TensorDictModuleBase) and STATE_VALUE not in value_network.out_keys:
            raise ValueError(f"value_network writes {list(value_network.out_keys)}; it must write {STATE_VALUE!r}")
        self.gamma, self.lmbda, self.average_gae, self.value_network = gamma, lmbda, average_gae, value_network

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Write the three entries into the batch and return it.

        Raises:
            KeyError: an entry is missing, such as the next observations after `compact_obs`.
            RuntimeError: a reward, flag or value with more than one number per frame.
        """
        ends, valid = segment_ends(tensordict)
        reward, terminated = (per_frame(tensordict, under_next(name)) for name in (REWARD, TERMINATED))
        if (missing := per_frame_or_none(tensordict, MISSING)) is not None:
            terminated = terminated | missing
        reward = reward.masked_fill(~valid, 0)  # a NaN in a masked frame must not reach other frames
        with torch.no_grad():
            values = _values(self.value_network, tensordict, ends, valid)
            value, next_value = (tensor.to(reward.dtype) for tensor in values)
            factors = {"gamma": self.gamma, "lmbda": self.lmbda}
            advantage = generalized_advantage(reward, value, next_value, terminated, ends, **factors)
        target = value + advantage
        if self.average_gae:
            std = advantage[valid].std(correction=0).clamp_min(1e-6)
            advantage = (advantage - advantage[valid].mean()) / std
        for key, entry in ((STATE_VALUE, value), (ADVANTAGE, advantage), (VALUE_TARGET, target)):
            tensordict.set(key, entry.masked_fill(~valid, 0).unsqueeze(-1))
        return tensordict


def _values(network: nn.Module, td: TensorDictBase, ends: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values of the frames' states and of their next states, both `[*B, T]`, in one call of the network.

    Of masked frames the value is 0, and the next value is undefined.
    """
    keys: Sequence[Key] = getattr(network, "in_keys", (OBSERVATION,))
    state = {key: td[key] for key in keys}
    next_state = {key: td.get(under_next(key), None) for key in keys}
    rows = [slice(None)] * (ends.ndim - 1)
    evaluated = ends.clone()  # frames whose next state is not the state of the next frame
    for key in keys:
        if next_state[key] is None and key == IS_INIT:
            next_state[key] = torch.zeros_like(state[key])
        elif next_state[key] is None:
            raise KeyError(f"no {under_next(key)!r} to evaluate the state reached by; collect with compact_obs=False")
        differ = next_state[key][*rows, :-1] != state[key][*rows, 1:]
        evaluated[..., :-1] |= differ.unsqueeze(-1).flatten(ends.ndim).any(-1)
    evaluated &= valid
    n_frames, n_states = int(valid.sum()), int(valid.sum() + evaluated.sum())
    inputs = {key: torch.cat([state[key][valid], next_state[key][evaluated]]) for key in keys}
    if isinstance(network, TensorDictModuleBase):
        output = network(TensorDict(inputs, batch_size=[n_states], device=td.device))[STATE_VALUE]
    else:
        output = network(*inputs.values())
    if output.numel() != n_states:
        raise RuntimeError(f"value_network gave the shape {[*output.shape]}; it must be {[n_states, 1]}, one per state")
    output = output.reshape(-1)
    value = output.new_zeros(ends.shape).masked_scatter_(valid, output[:n_frames])
    return value, value.view(-1).roll(-1).view(ends.shape).masked_scatter_(evaluated, output[n_frames:])
