"""n-step returns over the frames of a batch.

    next     s1 s2 s3 │ t1 t2     n = 2     s2 s3 s3 │ t2 t2         the state reached
    reward    6  4  2 │  8  0    ──────▶     8  5  2 │  8  0         summed on the way there, with gamma = 1/2

Segments are not crossed.
"""

from __future__ import annotations

import math

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
        self.gamma = gamma
        self.n_steps = count("n_steps", n_steps)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The batch with n-step entries; the input is not changed.

        Raises:
            KeyError: no reward or done, or no observation under `"next"`, as after `compact_obs`.
            RuntimeError: the shape of done does not fit the batch.
        """
        out = tensordict.clone(recurse=False)
        following = out[NEXT]
        if all(as_tuple(key)[-1] in _NO_OBSERVATION for key in following.keys(include_nested=True, leaves_only=True)):
            raise KeyError("no observation under 'next' to look ahead to; collect with compact_obs=False")
        steps = _steps_to_end(out).clamp(max=self.n_steps)
        reward = following[REWARD]
        reached = _reached(following.exclude(REWARD), steps, out.ndim - 1)
        reached.set(ORIGINAL_REWARD, reward)
        reached.set(REWARD, self._summed(reward, steps, out.ndim - 1))
        out.set(NEXT, reached)
        out.set("steps_to_next_obs", steps)
        out.set("gamma", self.gamma**steps)
        return out.set("nonterminal", steps > 1)

    def extra_repr(self) -> str:
        """The parameters."""
        return f"gamma={self.gamma}, n_steps={self.n_steps}"

    def _summed(self, reward: Tensor, steps: Tensor, time: int) -> Tensor:
        """The discounted sum of `reward`, which has the shape of `steps` or more dimensions, over `steps` frames."""
        total, length = reward.clone(), reward.shape[time]
        steps = steps.reshape(*steps.shape, *[1] * (reward.ndim - steps.ndim))
        for ahead in range(1, min(self.n_steps, length)):
            later = reward.narrow(time, ahead, length - ahead)
            counts = steps.narrow(time, 0, length - ahead) > ahead
            total.narrow(time, 0, length - ahead).add_(later.where(counts, 0), alpha=self.gamma**ahead)
        return total


def _steps_to_end(td: TensorDictBase) -> Tensor:
    """How many frames from each one to the end of its segment, itself counted, in the shape of done."""
    done = _fitting_done(td).movedim(td.ndim - 1, -1)
    ends = segment_ends(td, done)
    at = torch.arange(done.shape[-1], device=done.device)
    end = at.where(ends, done.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    return (end - at + 1).movedim(-1, td.ndim - 1)


def _fitting_done(td: TensorDictBase) -> Tensor:
    """`("next", "done")` as `[*B, T]`; with further dimensions (agents) if every entry has them."""
    done: Tensor = td[NEXT, DONE]
    if done.shape == (*td.batch_size, 1):
        return done.squeeze(-1)
    try:
        td.clone(recurse=False).batch_size = done.shape
    except RuntimeError as error:
        shapes = f"{[*done.shape]}, the batch {[*td.batch_size]}"
        raise RuntimeError(f"tensordict shape must be compatible with that of done: {shapes}; {error}") from error
    return done


def _reached(following: TensorDictBase, steps: Tensor, time: int) -> TensorDictBase:
    """What is under `"next"` `steps` frames later, the own one counted."""
    batch_size, names = following.batch_size, following.names
    following.batch_size = steps.shape
    stride = math.prod(steps.shape[time + 1 :])
    frames = torch.arange(steps.numel(), device=steps.device).view(steps.shape) + (steps - 1) * stride
    reached: TensorDictBase = following.flatten(0, steps.ndim - 1)[frames]
    reached.batch_size, reached.names = batch_size, names
    return reached
