"""n-step returns over the frames of a batch.

    next     s1 s2 s3 │ t1 t2     n = 2     s2 s3 s3 │ t2 t2         the state reached
    reward    6  4  2 │  8  0    ──────▶     8  5  2 │  8  0         summed on the way there, with gamma = 1/2

Segments are not crossed.
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
    """Lets each frame look several steps ahead.

    After R. S. Sutton, 1988, Learning to predict by the methods of temporal differences. In a batch `[*B, T]` a frame
    looks `n_steps` ahead, fewer where the batch ends, `done` is set, the trajectory id changes or the mask begins. Then

    - `("next", "reward")` is the discounted sum over the way, `("next", "original_reward")` what it was;
    - everything else under `"next"`, the end flags too, is that of the step reached;
    - `"steps_to_next_obs"` (int64) is the length k of the way, `"gamma"` (float32) the discount to the power k,
      `"nonterminal"` (bool) whether k > 1; each `[*B, T]`. A masked frame stays as it is.

    Args:
        gamma: the discount, in (0, 1].
        n_steps: how far to look, at least 1, which changes nothing.

    Raises:
        ValueError: one of them is out of its range.
    """

    def __init__(self, gamma: float, n_steps: int) -> None:
        super().__init__()
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma={gamma} is no discount; give a number above 0, at most 1")
        self.gamma, self.n_steps = gamma, count("n_steps", n_steps)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The batch with n-step entries; the input is not changed.

        Raises:
            KeyError: no reward or done, or no observation under `"next"`, as after `compact_obs`.
            RuntimeError: the shape of done does not fit the batch.
        """
        out, done = tensordict.clone(recurse=False), tensordict[NEXT, DONE]
        if done.shape not in (out.shape, (*out.shape, 1)):
            return self._with_dimensions_of(done, out)
        following = out[NEXT]
        if all(as_tuple(key)[-1] in _NO_OBSERVATION for key in following.keys(include_nested=True, leaves_only=True)):
            raise KeyError("no observation under 'next' to look ahead to; collect with compact_obs=False")
        at = torch.arange(out.shape[-1], device=done.device)
        end = at.where(segment_ends(out)[0], out.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
        steps = (end - at + 1).clamp(max=self.n_steps)
        frames = torch.arange(steps.numel(), device=steps.device).view(steps.shape) + steps - 1
        reached = following.exclude(REWARD).reshape(-1)[frames]
        reached.names = following.names
        reached.set(ORIGINAL_REWARD, following[REWARD])
        reached.set(REWARD, self._summed(following[REWARD], steps))
        out.set(NEXT, reached).set("steps_to_next_obs", steps)
        return out.set("gamma", self.gamma**steps).set("nonterminal", steps > 1)

    def _with_dimensions_of(self, done: Tensor, td: TensorDictBase) -> TensorDictBase:
        """The same where every entry has the further dimensions of done (agents): each looks ahead alone."""
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
        """The discounted sum of `reward`, `[*B, T]` or `[*B, T, …]`, over `steps` frames, `[*B, T]`."""
        frames = reward.flatten(0, steps.ndim - 1)
        total, ways = frames.clone(), steps.reshape(-1, *[1] * (frames.ndim - 1))
        for ahead in range(1, min(self.n_steps, steps.shape[-1])):  # no way leads into the next row
            total.add_(frames.roll(-ahead, 0).where(ways > ahead, 0), alpha=self.gamma**ahead)
        return total.view(reward.shape)
