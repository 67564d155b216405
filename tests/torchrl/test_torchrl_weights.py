"""Weights of transforms: models that are reached by a path in the worker."""

import copy

import pytest
import torch
from torchrl.envs import Compose, GymEnv, ObservationNorm, TransformedEnv
from torchrl_toys import lean_left

from swath import Collector, MultiProcessedWeightSyncScheme, MultiSyncCollector

FIRST = "env.transform[0]"


def normed(loc=0.0):
    """CartPole whose observations are shifted."""
    return TransformedEnv(GymEnv("CartPole-v1"), Compose(norm(loc)))


def norm(loc):
    return ObservationNorm(loc=torch.tensor(float(loc)), scale=torch.tensor(1.0), in_keys=["observation"])


def shift(collector):
    """By how much observations are shifted: CartPole begins near 0."""
    return collector.next()["observation"][..., 0, :].mean().round().item()


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_a_transform_of_the_workers_envs_is_updated_beside_the_policy(backend):
    schemes = {"policy": MultiProcessedWeightSyncScheme(), FIRST: MultiProcessedWeightSyncScheme()}
    with MultiSyncCollector(
        [normed] * 2,
        lean_left,
        frames_per_batch=4,
        reset_at_each_iter=True,
        backend=backend,
        weight_sync_schemes=schemes,
    ) as made:
        assert shift(made) == 0
        made.update_policy_weights_(weights_dict={"policy": {}, FIRST: norm(5)})
        assert made.policy_version == 1
        assert shift(made) == 5
        schemes[FIRST].send({"loc": torch.tensor(-3.0), "scale": torch.tensor(1.0)}, worker_ids=0)
        batch = made.next()["observation"][..., 0, :].mean(-1).round()
        assert batch.tolist() == [-3, 5]


def test_a_collector_takes_a_transforms_weights_from_another():
    sender, options = MultiProcessedWeightSyncScheme(), {"frames_per_batch": 4, "reset_at_each_iter": True}
    with MultiSyncCollector([normed], lean_left, backend="inline", weight_sync_schemes={FIRST: sender}, **options):
        receivers = {FIRST: copy.copy(sender)}
        with Collector(normed, lean_left, weight_recv_schemes=receivers, **options) as made:
            assert shift(made) == 0
            sender.send(norm(7))
            assert shift(made) == 7
            assert made.policy_version == 1
            assert isinstance(made.get_model(FIRST), ObservationNorm)
