"""The network that a policy has unless somebody writes one.

```
not shared    obs ──▶ [convolutions] ──▶ hidden layers ──▶ dist_inputs        shared    obs ──▶ … ──▶ hidden layers ─┬▶
              obs ──▶ [convolutions] ──▶ hidden layers ──▶ value                           dist_inputs and value  ◀──┘
```
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from swath.learn.encoders import Convolutions, VectorEncoder
from swath.learn.networks import MLP, orthogonal
from swath.rollout.spaces import plain_leaves

_POLICY_GAIN = 0.01


class DefaultNetwork(nn.Module):
    """Observations `[n, …]` to `dist_inputs` `[n, num_outputs]`, and values `[n]` if it has them.

    Args:
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple; a Box of rank 3 is an image.
        num_outputs: width of `dist_inputs`.
        model: the setting `model`.
        with_value: whether there are values.

    Raises:
        TypeError: observations of another kind.
    """

    def __init__(
        self, observation_space: Space[Any], num_outputs: int, model: Mapping[str, Any], *, with_value: bool
    ) -> None:
        super().__init__()
        self._shared = with_value and model["vf_share_layers"]
        self.log_std = nn.Parameter(torch.zeros(num_outputs // 2)) if model["free_log_std"] else None
        outputs = num_outputs if self.log_std is None else num_outputs // 2
        self.policy = Tower(observation_space, outputs + self._shared, model, _POLICY_GAIN)
        self.critic = Tower(observation_space, 1, model, 1.0) if with_value and not self._shared else None
        if self._shared:
            with torch.no_grad():
                orthogonal(self.policy.layers.last_layer[0][-1:], 1.0)

    def forward(self, obs: Any, *, quick: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """`dist_inputs`, or `(dist_inputs, value)`.

        Args:
            obs: observations `[n, …]`.
            quick: as in `swath.learn.networks.MLP`.
        """
        out, value, log_std = self.policy.forward(obs, quick=quick), None, self.log_std
        if self._shared:
            out, value = out[..., :-1], out[..., -1]
        elif self.critic is not None:
            value = self.value(obs, quick=quick)
        if log_std is not None:
            out = torch.cat([out, log_std.expand_as(out)], -1)
        return out if value is None else (out, value)

    def value(self, obs: Any, *, quick: bool = False) -> Tensor:
        """The values `[n]` alone."""
        critic = self.policy if self.critic is None else self.critic
        return critic.forward(obs, quick=quick)[..., -1]


class Tower(nn.Module):
    """Hidden layers behind what makes numbers of observations."""

    def __init__(self, space: Space[Any], outputs: int, model: Mapping[str, Any], gain: float) -> None:
        super().__init__()
        leaves = plain_leaves(space, "observation")
        self._paths = [leaf.path for leaf in leaves]
        is_image = isinstance(space, spaces.Box) and len(space.shape) == 3
        self._is_vector = len(leaves) == 1 and len(leaves[0].shape) == 1 and leaves[0].dtype == np.float32
        self._encoder: Convolutions | VectorEncoder = (
            Convolutions(leaves[0].shape, leaves[0].dtype) if is_image else VectorEncoder(leaves, standardise=False)
        )
        sizes = (self._encoder.features, *model["fcnet_hiddens"], outputs)
        self.layers = MLP(sizes, activation=model["fcnet_activation"], out_gain=gain)

    def forward(self, obs: Any, *, quick: bool = False) -> Tensor:
        """What the last layer gives, `[n, outputs]`."""
        if not self._is_vector:
            obs = self._encoder.forward(*(reduce(getitem, path, obs) for path in self._paths))
        return self.layers.forward(obs, quick=quick)
