"""The policy of networks that a collector calls and a learner improves.

```
 observation entries ──▶ encoder ──▶ features ─┬─▶ network ──▶ mask ──▶ head ──▶ action, log-probability
                                               └─▶ critic ──▶ state value

 all entries ──▶ critic_encoder ──▶ features ─────▶ critic        where the critic sees more than the actor
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
        critic_encoder: from all entries except the mask to the critic's features; the encoder then gets the first
            ones, as many as it takes. `None`: the critic gets the encoder's features.
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
        critic_encoder: Encoder | None = None,
        masked: bool = False,
    ) -> None:
        super().__init__()
        if masked and not isinstance(head, Categorical | MultiCategorical):
            raise TypeError(f"masked=True for {type(head).__name__}: only choices can be masked; leave it out")
        self.masked = masked
        self.network, self.head, self.encoder, self.critic = network, head, encoder, critic
        self.critic_encoder = critic_encoder
        last = len(in_keys) - masked
        self._critic_entries = self._actor_entries = slice(last)
        if critic_encoder is not None and encoder is not None:
            self._actor_entries = slice(encoder.entries)
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
        encoder, head = self.encoder, self.head
        out = self.network(observation[0] if encoder is None else encoder(*observation[self._actor_entries]))
        if self.masked:
            out = self._mask(out, observation)
        return head.sample(out) if exploration_type is ExplorationType.RANDOM else head.mode(out)

    def evaluate(self, observation: Sequence[Tensor], action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and state value, `[*B]` each, with gradients.

        Raises:
            ValueError: there is no critic.
        """
        features = self._features(observation)
        out = self._mask(self.network(features), observation)
        value = self.require_critic()(self._critic_features(observation, features))
        return self.head.log_prob(out, action), self.head.entropy(out), value

    def value(self, observation: Sequence[Tensor]) -> Tensor:
        """Return state values `[*B]`, with gradients.

        Raises:
            ValueError: there is no critic.
        """
        values: Tensor = self.require_critic()(self._critic_features(observation))
        return values

    def update_encoder(self, observation: Sequence[Tensor]) -> None:
        """Update the encoder's running statistics with observations `[N, …]`.

        An `MLP` absorbs the change into its first layer, so that the policy's actions do not change.
        """
        actor_change = None if self.encoder is None else self.encoder.update(observation[self._actor_entries])
        critic_change = actor_change
        if self.critic_encoder is not None:
            critic_change = self.critic_encoder.update(observation[self._critic_entries])
        for network, change in ((self.network, actor_change), (self.critic and self.critic.network, critic_change)):
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

    def _features(self, observation: Sequence[Tensor]) -> Tensor:
        encoder = self.encoder
        features: Tensor = observation[0] if encoder is None else encoder(*observation[self._actor_entries])
        return features

    def _critic_features(self, observation: Sequence[Tensor], features: Tensor | None = None) -> Tensor:
        """Return the critic's features; `features` are the actor's, if they are known."""
        encoder = self.critic_encoder
        if encoder is None:
            return self._features(observation) if features is None else features
        own_features: Tensor = encoder(*observation[self._critic_entries])
        return own_features

    def _mask(self, out: Tensor, observation: Sequence[Tensor]) -> Tensor:
        """Mask the logits of forbidden actions."""
        if not self.masked:
            return out
        assert isinstance(self.head, Categorical | MultiCategorical)
        return mask_logits(out, observation[-1], self.head.counts)
