"""Actions at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from swath.rollout.policies.random import RandomPolicy as Uniform
from swath.rollout.spaces import structured
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.nests import leaves_of
from swath.rollout_workers.policy import Actions, Policy


class RandomPolicy(Policy):
    """Actions drawn uniformly from any action space, by torch's generator, which the worker seeds; learns nothing.

    They are those that envs get: `normalize_actions` does not stretch what spans the space already.
    With `ignore_action_bounds=True` in its config a Box is sampled as if it had no bounds; then `normalize_actions`
    brings actions into the space, as those of other policies.
    """

    looks_at_episodes = False
    acts_in_space = True

    def __init__(self, observation_space: Space[Any], action_space: Space[Any], config: Mapping[str, Any]) -> None:
        super().__init__(observation_space, action_space, config)
        self._drawn_from = action_space
        if self.config.get("ignore_action_bounds", False) and isinstance(action_space, spaces.Box):
            self._drawn_from, self.acts_in_space = _unbounded(action_space), False

    def compute_actions(self, obs_batch: Any, *args: Any, **kwargs: Any) -> Actions:  # noqa: ARG002  they do not matter
        """Random actions, one per observation; dicts and tuples of arrays for such action spaces."""
        n_rows = len(leaves_of(obs_batch)[0])
        drawn = Uniform(self._drawn_from).sampler(self._drawn_from, n_rows)(None)
        return structured(self._drawn_from, iter(drawn)), [], {}

    def learn_on_batch(self, samples: SampleBatch) -> dict[str, Any]:  # noqa: ARG002
        """Learn nothing."""
        return {}


def _unbounded(box: spaces.Box) -> spaces.Box:
    """A Box of that shape and dtype that reaches as far as the dtype does."""
    dtype: Any = box.dtype
    if np.issubdtype(dtype, np.floating):
        return spaces.Box(-np.inf, np.inf, box.shape, box.dtype)
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, box.shape, box.dtype)
