"""The policy that a collector calls and a learner improves.

```
 observation entries ──▶ encoder ──▶ features ─┬─▶ network ──▶ head ──▶ action, log-probability
                                               └─▶ critic ──▶ state value
```
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from swath.keys import ACTION, LOG_PROB, OBSERVATION, STATE_VALUE, Key
from swath.learn.encoders import Encoder
from swath.learn.heads import Head
from swath.learn.networks import MLP
from swath.learn.value import ValueNet
from swath.rollout.policies.calling import ExplorationType

_NO_CRITIC = "this policy has no critic, so it knows no values; build it with critic=ValueNet(…) or by make_policy"


class NetworkPolicy(nn.Module):
    """Acts with a network and a head, at as little cost per call as possible.

    A collector calls it with the entries of `in_keys`, `[*B, …]` each, and keeps what it returns under `out_keys`.
    It works without batch dimensions as well.

    Args:
        network: from features `[*B, D]` to `[*B, head.inputs]`.
        head: reads the network's output as a distribution over actions.
        encoder: from the entries of `in_keys` to features; `None` passes the only entry on.
        critic: from features to values `[*B]`, for a learner.
        in_keys: the observation entries, in the encoder's order.
        with_value: whether a call also gives the state value. `PPO` needs none: it has the critic.

    Raises:
        ValueError: `with_value` without a critic.
    """

    def __init__(
        self,
        network: nn.Module,
        head: Head,
        *,
        encoder: Encoder | None = None,
        critic: ValueNet | None = None,
        in_keys: Sequence[Key] = (OBSERVATION,),
        with_value: bool = False,
    ) -> None:
        super().__init__()
        if with_value and critic is None:
            raise ValueError(_NO_CRITIC)
        self.network, self.head, self.encoder, self.critic = network, head, encoder, critic
        self.in_keys: list[Key] = list(in_keys)
        self.out_keys: list[Key] = [ACTION, LOG_PROB, *([STATE_VALUE] if with_value else [])]
        self._with_value = with_value

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def forward(
        self, *observation: Tensor, exploration_type: ExplorationType = ExplorationType.RANDOM
    ) -> tuple[Tensor, ...]:
        """Action `[*B, …]`, its log-probability `[*B]` and, if asked for, the state value `[*B, 1]`.

        RANDOM samples; every other type gives the most probable action.
        """
        encoder, head = self.encoder, self.head
        features = observation[0] if encoder is None else encoder(*observation)
        out = self.network(features)
        answer = head.sample(out) if exploration_type is ExplorationType.RANDOM else head.mode(out)
        return (*answer, self.require_critic()(features).unsqueeze(-1)) if self._with_value else answer

    def evaluate(self, observation: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probability, entropy and state value, `[*B]` each, with gradients.

        Raises:
            ValueError: there is no critic.
        """
        features = self._features(observation)
        out = self.network(features)
        return self.head.log_prob(out, action), self.head.entropy(out), self.require_critic()(features)

    def log_prob(self, observation: Sequence[Tensor], action: Tensor) -> Tensor:
        """Log-probability `[*B]` of actions, with gradients."""
        return self.head.log_prob(self.network(self._features(observation)), action)

    def value(self, observation: Sequence[Tensor]) -> Tensor:
        """State values `[*B]`, with gradients.

        Raises:
            ValueError: there is no critic.
        """
        values: Tensor = self.require_critic()(self._features(observation))
        return values

    def update_encoder(self, observation: Sequence[Tensor]) -> None:
        """Take observations `[N, …]` into the running figures that every later call applies.

        Networks that are an `MLP` take the change into their first layer, so that the policy acts as it did before.
        """
        change = None if self.encoder is None else self.encoder.update(observation)
        if change is not None:
            for network in (self.network, self.critic and self.critic.network):
                if isinstance(network, MLP):
                    network.absorb(*change)

    def require_critic(self) -> ValueNet:
        """The critic.

        Raises:
            ValueError: there is none.
        """
        if self.critic is None:
            raise ValueError(_NO_CRITIC)
        return self.critic

    def _features(self, observation: Sequence[Tensor]) -> Tensor:
        features: Tensor = observation[0] if self.encoder is None else self.encoder(*observation)
        return features
