"""Post-processing of chunks of trajectories before they become part of a batch: values, advantages, n-step returns.

    rows        a0 a1 a2 │ b0 b1 ┊        │ an episode ends: terminated, or truncated     ┊ the fragment ends
    after       v1 v2  0 │ v4 V(b2)       values of the states reached; 0 after a terminated row
                                          V: the open ends, whose values are computed in one call

A chunk is consecutive rows of one agent in one episode; a fragment is estimated in one pass, whatever chunks it has.
J. Schulman et al., 2016, High-dimensional continuous control using generalized advantage estimation.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from swath.rollout.episodes.gae import discounted_sum, generalized_advantage
from swath.rollout.spaces import Array
from swath.rollout_workers.batches.names import ColumnNames, ViewRequirement, is_state_in
from swath.rollout_workers.batches.sample_batch import SampleBatch
from swath.rollout_workers.nests import as_array, map_nest


@dataclass(frozen=True)
class Estimator:
    """The method and parameters of the estimation of advantages.

    Attributes:
        gamma: discount.
        lambda_: trace decay of generalized advantage estimation.
        use_gae: use that estimation; else advantages are discounted returns, less the values if there is a critic.
        use_critic: whether there are values.

    Raises:
        AssertionError: `use_gae` without `use_critic`.
    """

    gamma: float = 0.9
    lambda_: float = 1.0
    use_gae: bool = True
    use_critic: bool = True

    def __post_init__(self) -> None:
        if self.use_gae and not self.use_critic:
            raise AssertionError("use_gae=True needs values; set use_critic=True, or use_gae=False")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Estimator:
        """Read the estimator from a policy's config: `gamma`, `lambda`, `use_gae` and `use_critic`."""
        return cls(config["gamma"], config["lambda"], config["use_gae"], config.get("use_critic", True))


def values_after(values: Array | None, ends: Array, open_ends: Array, open_values: Any) -> Array:
    """Return the values of the states reached, float32 `[n]`: the next row's; 0 after end states or without a critic.

    Args:
        values: of the states acted in, `[n]`; None without a critic.
        ends: rows that end a chunk, as the last one does, `[n]` bool.
        open_ends: ends after which the episode goes on, or could, `[n]` bool.
        open_values: of the states after open ends.
    """
    after = np.zeros(len(ends), dtype=np.float32)
    if values is not None:
        after[:-1] = values[1:]
        after[ends] = 0
    after[open_ends] = open_values
    return after


def estimate(rewards: Any, values: Any, after: Any, ends: Array, estimator: Estimator) -> tuple[Array, Array]:
    """Estimate advantages and value targets, float32 `[n]`, of consecutive chunks; sums are made in float64.

    Args:
        rewards: `[n]`.
        values: of the states acted in, `[n]`; None without a critic.
        after: the values of the states reached, 0 where they are end states, `[n]`.
        ends: rows that end a chunk, as the last one does, `[n]` bool.
        estimator: which formulas.

    Raises:
        AssertionError: a critic is to be used, but there are no values.
    """
    if estimator.use_critic and values is None:
        raise AssertionError("use_critic=True needs the column 'vf_preds'; have the policy write it, or turn it off")
    reward, after, end, gamma = _to_float64(rewards), _to_float64(after), torch.tensor(ends), estimator.gamma
    value = _to_float64(values) if estimator.use_critic else torch.zeros_like(reward)
    if estimator.use_gae:
        zeros = torch.zeros_like(end)  # `after` is 0 already where the state reached is an end state
        advantage = generalized_advantage(reward, value, after, zeros, end, gamma=gamma, lmbda=estimator.lambda_)
        target = advantage + value
    else:
        returns = discounted_sum(reward + gamma * after * end, gamma * (~end).to(reward.dtype))
        advantage, target = returns - value, returns if estimator.use_critic else torch.zeros_like(returns)
    return advantage.float().numpy(), target.float().numpy()


def discount_cumsum(x: Array, gamma: float) -> Array:
    """Compute `y_t = x_t + gamma · y_{t+1}` along axis 0, in the dtype of `x`; of integers in float64."""
    values = np.array(x, dtype=None if np.issubdtype(np.asarray(x).dtype, np.floating) else np.float64)
    summand = torch.from_numpy(values).movedim(0, -1)
    return np.ascontiguousarray(discounted_sum(summand, torch.full_like(summand, gamma)).movedim(-1, 0).numpy())


def _to_float64(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64))


class Postprocessing:
    """Names of the columns that post-processing adds."""

    ADVANTAGES = ColumnNames.ADVANTAGES
    VALUE_TARGETS = ColumnNames.VALUE_TARGETS


R = TypeVar("R", bound=MutableMapping[str, Any])


def compute_gae_for_sample_batch(
    policy: Any, sample_batch: SampleBatch, other_agent_batches: Any = None, episode: Any = None
) -> SampleBatch:
    """Add `values_bootstrapped`, `advantages` and `value_targets`, all in the shape of `vf_preds`, `[n]` or `[n, 1]`.

    The policy's config says how: `gamma`, `lambda`, `use_gae` and `use_critic`.
    """
    del other_agent_batches, episode  # they are part of the signature of `postprocess_trajectory`
    compute_bootstrap_value(sample_batch, policy)
    last, method = np.ravel(sample_batch[ColumnNames.VALUES_BOOTSTRAPPED])[-1], Estimator.of(policy.config)
    return compute_advantages(sample_batch, last, method.gamma, method.lambda_, method.use_gae, method.use_critic)


def compute_bootstrap_value(sample_batch: SampleBatch, policy: Any) -> SampleBatch:
    """Add `values_bootstrapped`, the values of the states reached: `vf_preds` one row on, and one for the last row.

    That is 0 if the last row is terminated, truncated as well or not; else the policy's value of its `new_obs`.
    """
    values = np.asarray(sample_batch[ColumnNames.VF_PREDS], dtype=np.float32)
    if np.ravel(sample_batch[ColumnNames.TERMINATEDS])[-1]:
        last = 0.0
    else:
        columns = (ColumnNames.OBS, *filter(is_state_in, sample_batch))
        views = {**dict.fromkeys(columns, ViewRequirement()), **policy.view_requirements}
        reached = sample_batch.get_single_step_input_dict(views, index="last")
        last = as_array(policy.compute_values(reached)).item()
    after = np.append(np.ravel(values)[1:], np.float32(last))
    sample_batch[ColumnNames.VALUES_BOOTSTRAPPED] = after.reshape(values.shape)
    return sample_batch


def compute_advantages(
    rollout: R,
    last_r: Any,
    gamma: float = 0.9,
    lambda_: float = 1.0,
    use_gae: bool = True,
    use_critic: bool = True,
    rewards: Array | None = None,
    vf_preds: Array | None = None,
) -> R:
    """Add `advantages` and `value_targets`, float32, in the shape of the values, or else of the rewards.

    With `use_gae` advantages are the sums of (gamma · lambda)^k · delta_{t+k}, delta_t = r_t + gamma · v_{t+1} - v_t,
    and targets are advantages + v. Else advantages are discounted returns: less v, which makes them the targets, with
    a critic; without one the targets are 0.

    Args:
        rollout: a chunk.
        last_r: value of the state that its last row reached; 0 for an end state.
        gamma: discount.
        lambda_: trace decay.
        use_gae: which estimate.
        use_critic: whether there are values.
        rewards: in place of the column `rewards`, `[n]`.
        vf_preds: in place of the column `vf_preds`, `[n]`.

    Raises:
        AssertionError: a critic without values; `use_gae` without a critic.
    """
    rewards = np.asarray(rollout[ColumnNames.REWARDS] if rewards is None else rewards)
    vf_preds = rollout.get(ColumnNames.VF_PREDS) if vf_preds is None else vf_preds
    values = np.ravel(vf_preds) if use_critic and vf_preds is not None else None
    last = np.arange(len(rewards)) == len(rewards) - 1
    after = values_after(values, last, last, as_array(last_r).item())
    estimates = estimate(np.ravel(rewards), values, after, last, Estimator(gamma, lambda_, use_gae, use_critic))
    for name, column in zip((Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS), estimates, strict=True):
        rollout[name] = column.reshape(rewards.shape if vf_preds is None else np.shape(vf_preds))
    return rollout


def adjust_nstep(n_step: int, gamma: float, batch: MutableMapping[str, Any]) -> None:
    """Make each row reach `n_step` rows ahead, fewer at the end of the chunk.

    `rewards` become discounted sums up to that row, whose `new_obs`, `terminateds` and, if present, `truncateds` are
    taken. The columns are replaced: arrays that others share stay unchanged.

    Raises:
        AssertionError: an episode ends before the last row.
        ValueError: `n_step` below 1.
    """
    if n_step < 1:
        raise ValueError(f"n_step={n_step} is no number of steps to look ahead; give 1 or more")
    flags = [name for name in (ColumnNames.TERMINATEDS, ColumnNames.TRUNCATEDS) if name in batch]
    if any(np.asarray(batch[name])[:-1].any() for name in flags):
        raise AssertionError("Unexpected terminated|truncated in middle of trajectory!")
    rewards = np.asarray(batch[ColumnNames.REWARDS])
    reached = np.minimum(np.arange(len(rewards)) + n_step, len(rewards)) - 1
    for name in (ColumnNames.NEXT_OBS, *flags):
        batch[name] = map_nest(lambda column: np.asarray(column)[reached], batch[name])
    total = np.array(rewards, dtype=np.result_type(rewards, np.float32))
    for offset in range(1, min(n_step, len(rewards))):
        total[:-offset] += gamma**offset * rewards[offset:]
    batch[ColumnNames.REWARDS] = total
