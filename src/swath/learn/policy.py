"""The policy of networks that a collector calls and a learner improves.

```
 observation entries ──▶ encoder ──▶ features ─┬─▶ network ──▶ mask ──▶ head ──▶ action, log-probability
                                               └─▶ critic ──▶ state value
```
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from swath.keys import ACTION, LOG_PROB, OBSERVATION, Key
from swath.learn.encoders import Encoder
from swath.learn.heads import ActionHead, Categorical, MultiCategorical, mask_logits
from swath.learn.networks import MLP, ValueNet
from swath.rollout.policies.calling import ExplorationType


class NetworkPolicy(nn.Module):
    """A policy of a network and a head, with little cost per call.

    A collector calls it with the entries of `in_keys`, `[*B, …]` each, and stores its outputs under `out_keys`. Batch
    dimensions are optional.

    Args:
        network: from features `[*B, D]` to `[*B, head.inputs]`.
        head: turns the network's output into actions.
        encoder: from the entries of `in_keys` to features; `None` passes the only entry on.
        critic: from features to values `[*B]`, for a learner.
        in_keys: the observation entries, in the encoder's order; last the action mask, if there is one.
        masked: whether the last entry is an action mask, no input of the encoder: actions with a 0 in it are
            impossible, for sampling, log-probabilities and entropies.

    Raises:
        TypeError: a mask for a head of continuous actions.
    """

    def __init__(
        self,
        network: nn.Module,
        head: ActionHead,
        *,
        encoder: Encoder | None = None,
        critic: ValueNet | None = None,
        in_keys: Sequence[Key] = (OBSERVATION,),
        masked: bool = False,
    ) -> None:
        super().__init__()
        if masked and not isinstance(head, Categorical | MultiCategorical):
            raise TypeError(f"masked=True for {type(head).__name__}: only choices can be masked; leave it out")
        self.masked = masked
        self.network, self.head, self.encoder, self.critic = network, head, encoder, critic
        self.in_keys: list[Key] = list(in_keys)
        self.out_keys: list[Key] = [ACTION, LOG_PROB]

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        return next(self.parameters()).device

    def forward(
        self, *observation: Tensor, exploration_type: ExplorationType = ExplorationType.RANDOM
    ) -> tuple[Tensor, Tensor]:
        """Return the action `[*B, …]` and its log-probability `[*B]`.

        RANDOM samples; every other type chooses the most probable action.
        """
        encoder, head, masked = self.encoder, self.head, self.masked
        entries = observation[:-1] if masked else observation
        out = self.network(entries[0] if encoder is None else encoder(*entries))
        if masked:
            out = self._mask(out, observation)
        return head.sample(out) if exploration_type is ExplorationType.RANDOM else head.mode(out)

    def evaluate(self, observation: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and state value, `[*B]` each, with gradients.

        Raises:
            ValueError: there is no critic.
        """
        features = self._features(observation)
        out = self._mask(self.network(features), observation)
        return self.head.log_prob(out, action), self.head.entropy(out), self.require_critic()(features)

    def value(self, observation: Sequence[Tensor]) -> Tensor:
        """Return state values `[*B]`, with gradients.

        Raises:
            ValueError: there is no critic.
        """
        values: Tensor = self.require_critic()(self._features(observation))
        return values

    def update_encoder(self, observation: Sequence[Tensor]) -> None:
        """Update the encoder's running statistics with observations `[N, …]`.

        An `MLP` absorbs the change into its first layer, so that the policy's actions do not change.
        """
        change = None if self.encoder is None else self.encoder.update(self._unmasked(observation))
        for network in (self.network, self.critic and self.critic.network):
            if change is not None and isinstance(network, MLP):
                network.absorb(*change)

    def require_critic(self) -> ValueNet:
        """Return the critic.

        Raises:
            ValueError: there is no critic.
        """
        if self.critic is None:
            raise ValueError(
                "this policy has no critic, so it knows no values; build it with critic=ValueNet(…) or by make_policy"
            )
        return self.critic

    def _unmasked(self, observation: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the observation without the mask."""
        return observation[:-1] if self.masked else observation

    def _features(self, observation: Sequence[Tensor]) -> Tensor:
        features: Tensor = observation[0] if self.encoder is None else self.encoder(*self._unmasked(observation))
        return features

    def _mask(self, out: Tensor, observation: Sequence[Tensor]) -> Tensor:
        """Mask the logits of forbidden actions."""
        if not self.masked:
            return out
        assert isinstance(self.head, Categorical | MultiCategorical)
        return mask_logits(out, observation[-1], self.head.counts)
