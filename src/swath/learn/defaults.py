"""Default policy and settings for an env, chosen from its spaces alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from swath.keys import ACTION_MASK, Key, as_tuple
from swath.learn.encoders import SMALLEST, Encoder, ImageEncoder, VectorEncoder, channels_first
from swath.learn.heads import ActionHead, Gaussian, choice_head
from swath.learn.networks import MLP, ValueNet, activation_named
from swath.learn.policy import NetworkPolicy
from swath.learn.ppo import LearnerConfig
from swath.rollout.random_policy import require_mask
from swath.rollout.spaces import Leaf, observation_leaves

_POLICY_GAIN = 0.01


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes and kind of the networks that `make_policy` builds.

    Attributes:
        hidden: widths of the hidden layers for vector observations, for policy and value each.
        activation: between them, a name in `swath.learn.networks.ACTIVATIONS`.
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
        TypeError: a space of another kind.
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
        ValueError: there is none at one of the keys.
    """
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


def default_config(observation_space: Space[Any], action_space: Space[Any]) -> LearnerConfig:
    """Return settings of PPO that need no tuning on common tasks of this kind.

    Args:
        observation_space: of one env; tells images from the rest.
        action_space: of one env.
    """
    if any(map(_is_image, observation_leaves(observation_space))):
        return LearnerConfig(learning_rate=2.5e-4, epochs=4, clip=0.1, entropy_coef=0.01)
    if isinstance(action_space, spaces.Box):
        return LearnerConfig()
    return LearnerConfig(entropy_coef=0.01)


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
    images = [leaf.key for leaf in leaves if _is_image(leaf)]
    if not images:
        floats = any(np.issubdtype(leaf.dtype, np.floating) for leaf in leaves)
        return VectorEncoder(leaves, standardise=config.standardise and floats)
    if len(leaves) > 1:
        raise ValueError(
            f"observation entries {images} are images among others: make_policy serves an image alone; "
            "write your own policy, or wrap the env to leave one part out"
        )
    return ImageEncoder(leaves[0].shape, config.image_features)


def _is_image(leaf: Leaf) -> bool:
    if leaf.dtype != np.uint8 or len(leaf.shape) not in (2, 3):
        return False
    _, height, width = channels_first(leaf.shape)
    return min(height, width) >= SMALLEST
