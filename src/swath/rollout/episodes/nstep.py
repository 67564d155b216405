"""n-step returns over the frames of a batch.

    next     s1 s2 s3 │ t1 t2     n = 2     s2 s3 s3 │ t2 t2         the state n steps ahead
    reward    6  4  2 │  8  0    ──────▶     8  5  2 │  8  0         the discounted sum up to it, with gamma = 1/2

Returns end with their segment.
"""

from __future__ import annotations

import torch
from tensordict import TensorDictBase
from torch import nn

from swath.keys import DONE, NEXT, REWARD, STEP_COUNT, TERMINATED, TRACKED_VERSION, TRUNCATED, as_tuple
from swath.options import count
from swath.rollout.episodes.reshape import Tensor, segment_ends

ORIGINAL_REWARD = "original_reward"
_NO_OBSERVATION = frozenset({REWARD, ORIGINAL_REWARD, DONE, TERMINATED, TRUNCATED, STEP_COUNT, TRACKED_VERSION})


class MultiStep(nn.Module):
    """Replaces rewards by n-step returns.

    After R. S. Sutton, 1988, Learning to predict by the methods of temporal differences. In a batch `[*B, T]` a frame
    covers k = `n_steps` steps, fewer if its segment ends before: with the batch, with `done`, with another trajectory
    id or with a masked frame. Then

    - `("next", "reward")` is the discounted sum over k steps, `("next", "original_reward")` the reward before;
    - all other entries under `"next"`, end flags too, are from the last of the k steps;
    - `"steps_to_next_obs"` (int64) is k, `"gamma"` (float32) the discount to the power k, `"nonterminal"` (bool)
      whether k > 1; each `[*B, T]`. Masked frames do not change.

    Args:
        gamma: the discount, in (0, 1].
        n_steps: number of steps, at least 1, which changes nothing.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(self, gamma: float, n_steps: int) -> None:
        super().__init__()
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma={gamma} is no discount; give a number above 0, at most 1")
        self.gamma, self.n_steps = gamma, count("n_steps", n_steps)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the batch with n-step entries; the input is not changed.

        Raises:
            KeyError: reward, done, or the observation under `"next"` is missing, as after `compact_obs`.
            RuntimeError: the shape of done does not fit the batch.
        """
        out, done = tensordict.clone(recurse=False), tensordict[NEXT, DONE]
        if done.shape not in (out.shape, (*out.shape, 1)):
            return self._with_dimensions_of(done, out)
        next_td = out[NEXT]
        if all(as_tuple(key)[-1] in _NO_OBSERVATION for key in next_td.keys(include_nested=True, leaves_only=True)):
            raise KeyError("no observation under 'next' to look ahead to; collect with compact_obs=False")
        times = torch.arange(out.shape[-1], device=done.device)
        end = times.where(segment_ends(out)[0], out.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
        steps = (end - times + 1).clamp(max=self.n_steps)
        frames = torch.arange(steps.numel(), device=steps.device).view(steps.shape) + steps - 1
        reached = next_td.exclude(REWARD).reshape(-1)[frames]
        reached.names = next_td.names
        reached.set(ORIGINAL_REWARD, next_td[REWARD])
        reached.set(REWARD, self._summed(next_td[REWARD], steps))
        out.set(NEXT, reached).set("steps_to_next_obs", steps)
        return out.set("gamma", self.gamma**steps).set("nonterminal", steps > 1)

    def _with_dimensions_of(self, done: Tensor, td: TensorDictBase) -> TensorDictBase:
        """Return the batch with n-step entries per agent, where all entries have the further dimensions of done."""
        batch_size, time = td.batch_size, td.ndim - 1
        try:
            td.batch_size = done.shape
        except RuntimeError as error:
            shapes = f"{[*done.shape]}, the batch {[*batch_size]}"
            raise RuntimeError(f"tensordict shape must be compatible with that of done: {shapes}; {error}") from error
        out = self(td.transpose(time, -1)).transpose(time, -1)
        out.batch_size = out[NEXT].batch_size = batch_size
        return out

    def _summed(self, reward: Tensor, steps: Tensor) -> Tensor:
        """Return the discounted sums of `reward`, `[*B, T]` or `[*B, T, …]`, over `steps` frames, `[*B, T]`."""
        frames = reward.flatten(0, steps.ndim - 1)
        total, lengths = frames.clone(), steps.reshape(-1, *[1] * (frames.ndim - 1))
        for offset in range(1, min(self.n_steps, steps.shape[-1])):  # sums stay within a row
            total.add_(frames.roll(-offset, 0).where(lengths > offset, 0), alpha=self.gamma**offset)
        return total.view(reward.shape)
