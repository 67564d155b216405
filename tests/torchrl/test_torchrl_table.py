"""TorchRL's envs and policies through our collector: the data of `env.rollout` and of TorchRL's collector."""

from math import prod

import pytest
import torch
import torchrl.collectors
from tensordict.nn import set_interaction_type
from torchrl_differences import order_of, require_equal
from torchrl_table import table

from swath import Collector, ExplorationType

N_BATCHES = 2
CASES = [pytest.param(case, id=case.name) for case in table()]

BESIDE_A_ROLLOUT = {("collector",)}
"""Keys that a rollout does not have."""

BESIDE_TORCHRL = {("collector", "policy_version")}
"""Swath's batches always have the policy version."""


def rollout(case):
    env = case.env()
    with torch.no_grad(), set_interaction_type(ExplorationType.DETERMINISTIC):
        data = env.rollout(N_BATCHES * case.steps, case.policy(), break_when_any_done=False)
    env.close()
    return data


def collected(case, kind):
    env = case.env()
    n_frames = case.steps * prod(env.batch_size)
    collector = kind(
        env,
        case.policy(),
        frames_per_batch=n_frames,
        total_frames=N_BATCHES * n_frames,
        exploration_type=ExplorationType.DETERMINISTIC,
    )
    batches = [batch.clone() for batch in collector]
    collector.shutdown()
    return batches


@pytest.mark.parametrize("case", CASES)
def test_a_batch_holds_what_torchrls_own_collector_and_a_rollout_give(case):
    batches, theirs = collected(case, Collector), collected(case, torchrl.collectors.Collector)
    require_equal(batches, theirs, BESIDE_TORCHRL)
    if case.name != "growing":  # steps of changing shapes have the order of their env
        assert [*map(order_of, batches)] == [*map(order_of, theirs)]
    rows = rollout(case)
    parts = [rows[..., at : at + case.steps] for at in range(0, rows.shape[-1], case.steps)]
    require_equal(batches, parts, BESIDE_A_ROLLOUT)
