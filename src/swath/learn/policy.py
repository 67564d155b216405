"""A policy of networks, which a collector calls and a learner improves, and its default for an env's spaces.

```
 observation entries ──▶ encoder ──▶ features ─┬─▶ network ──▶ mask ──▶ head ──▶ action, log-probability
                                               └─▶ critic ──▶ state value

 all entries ──▶ critic_encoder ──▶ features ─────▶ critic        where the critic sees more than the actor
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from swath.keys import ACTION, ACTION_MASK, LOG_PROB, OBSERVATION, Key, as_tuple
from swath.learn.heads import ActionHead, Categorical, Gaussian, MultiCategorical, choice_head, mask_logits
from swath.learn.networks import MLP, Encoder, ImageEncoder, ValueNet, VectorEncoder, activation_named, is_image
from swath.rollout.policies.calling import ExplorationType
from swath.rollout.random_policy import require_mask
from swath.rollout.spaces import Leaf, observation_leaves

_POLICY_GAIN = 0.01


class NetworkPolicy(nn.Module):
    """A policy of a network and a head, with little cost per call.

    A collector calls it with the entries of `in_keys`, `[*B, …]` each, and stores its outputs under `out_keys`. Batch
    dimensions are optional.

    Args:
        network: function from features `[*B, D]` to `[*B, head.inputs]`.
        head: turns the network's output into actions.
        encoder: function from the entries of `in_keys` to features; `None` passes the only entry on.
        critic: function from features to values `[*B]`, for a learner.
        in_keys: the observation entries, in the encoder's order; last the action mask, if there is one.
        critic_encoder: function from all entries except the mask to the critic's features; the encoder then gets the
            first entries, as many as it takes. `None`: the critic gets the encoder's features.
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


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes and kind of the networks that `make_policy` builds.

    Attributes:
        hidden: widths of the hidden layers for vector observations, for policy and value each.
        activation: function between them, a name in `swath.learn.networks.ACTIVATIONS`.
        standardise: whether to standardise float observations by running mean and std.
        image_features: width of the convolutions' output for images, the input of policy and value.
        log_std: initial log-std of continuous actions, in units of half their range.

    Raises:
        ValueError: a width below 1, or an unknown activation.
    """

    hidden: Sequence[int] = (64, 64)
    activation: str = "silu"
    standardise: bool = True
    image_features: int = 512
    log_std: float = 0.0

    def __post_init__(self) -> None:
        widths = (*self.hidden, self.image_features)
        if min(widths) < 1:
            raise ValueError(f"NetworkConfig: hidden and image_features {widths} must all be 1 or more")
        activation_named(self.activation)


def make_policy(
    observation_space: Space[Any],
    action_space: Space[Any],
    config: NetworkConfig | None = None,
    *,
    actor_keys: Sequence[Key] | None = None,
) -> NetworkPolicy:
    """Build a policy with a critic for one env's spaces; its weights are drawn from torch's global generator.

    An image (one uint8 Box of two or three dimensions, large enough) goes through convolutions that policy and value
    share; other observations are flattened and concatenated into the input of two small networks. An entry
    `"action_mask"` at the root of a Dict is no feature: actions with a 0 in it have probability 0, as with
    `swath.RandomPolicy`.

    Args:
        observation_space: Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple (nested).
        action_space: Box of floats, Discrete, MultiDiscrete, MultiBinary.
        config: sizes.
        actor_keys: the entries that the actor sees, if the critic shall see more: entries of the Dict, or paths. The
            critic sees all entries, and an env in which the policy acts must have them all.

    Raises:
        TypeError: a space of another kind, or `actor_keys` that are a string.
        ValueError: an image inside a Dict or Tuple; a mask without one entry per choice, or no entry but a mask;
            `actor_keys` that name no entry.
    """
    config, leaves = config or NetworkConfig(), list(observation_leaves(observation_space))
    masks = [leaf for leaf in leaves if leaf.key == ACTION_MASK]
    for mask in masks:
        require_mask(action_space, mask.shape, "make_policy")
        leaves.remove(mask)
    if not leaves:
        raise ValueError(f"observations {observation_space} are only an action mask; give the policy something to see")
    actor_leaves = leaves if actor_keys is None else _leaves_at(leaves, actor_keys)
    leaves = [*actor_leaves, *(leaf for leaf in leaves if leaf not in actor_leaves)]
    head, encoder = _head(action_space, config.log_std), _encoder(actor_leaves, config)
    critic_encoder = None if actor_keys is None else _encoder(leaves, config)
    network = MLP((*_sizes(encoder, config), head.inputs), activation=config.activation, out_gain=_POLICY_GAIN)
    critic = ValueNet(MLP((*_sizes(critic_encoder or encoder, config), 1), activation=config.activation))
    return NetworkPolicy(
        network,
        head,
        encoder=encoder,
        critic=critic,
        in_keys=[leaf.key for leaf in (*leaves, *masks)],
        critic_encoder=critic_encoder,
        masked=bool(masks),
    )


def _leaves_at(leaves: Sequence[Leaf], keys: Sequence[Key]) -> list[Leaf]:
    """Return the leaves at these keys, or below them.

    Raises:
        TypeError: a string in place of a list.
        ValueError: there is none at one of the keys.
    """
    if isinstance(keys, str):
        raise TypeError(f"actor_keys={keys!r} must be a list of keys: pass [{keys!r}]")
    below = list[Leaf]()
    for key in keys:
        path = as_tuple(key)
        matches = [leaf for leaf in leaves if as_tuple(leaf.key)[: len(path)] == path]
        if not matches:
            raise ValueError(f"actor_keys has {key!r}; the entries are {[leaf.key for leaf in leaves]}")
        below += [leaf for leaf in matches if leaf not in below]
    return below


def _sizes(encoder: Encoder, config: NetworkConfig) -> tuple[int, ...]:
    return (encoder.features, *(() if isinstance(encoder, ImageEncoder) else config.hidden))


def _head(space: Space[Any], log_std: float) -> ActionHead:
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return Gaussian(space.low, space.high, log_std)
    head = choice_head(space)
    if head is None:
        raise TypeError(
            f"no policy for the action space {space}: served are Discrete, MultiDiscrete, MultiBinary and Box of "
            "floats; wrap the env to give it such a space"
        )
    return head


def _encoder(leaves: Sequence[Leaf], config: NetworkConfig) -> Encoder:
    images = [leaf.key for leaf in leaves if is_image(leaf)]
    if not images:
        floats = any(np.issubdtype(leaf.dtype, np.floating) for leaf in leaves)
        return VectorEncoder(leaves, standardise=config.standardise and floats)
    if len(leaves) > 1:
        raise ValueError(
            f"observation entries {images} are images among others: make_policy serves an image alone; "
            "write your own policy, or wrap the env to leave one part out"
        )
    return ImageEncoder(leaves[0].shape, config.image_features)
