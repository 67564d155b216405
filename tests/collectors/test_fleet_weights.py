"""How weights get to many workers: the forms, whom they are for, which version is stamped, and what must not happen."""

import pytest
import torch
from collector_toys import Always
from weight_toys import EVERYWHERE, acted, multi, weights

pytestmark = pytest.mark.usefixtures("fork_server")  # workers are forked at once
TO_ALL = {
    "by worker": {"weights": {0: Always(2), 1: weights(2)}},
    "worker_ids=": {"weights": weights(2), "worker_ids": [0, 1]},
    "a device": {"weights": weights(2), "worker_ids": "cpu"},
    "devices": {"weights": weights(2), "worker_ids": [torch.device("cpu")]},
}


@pytest.mark.parametrize("arguments", TO_ALL.values(), ids=TO_ALL)
def test_workers_are_named_by_index_or_device(arguments):
    with multi(Always(1)) as made:
        made.update_policy_weights_(**arguments)
        assert acted(made) == [(2, 1), (2, 1)]


def test_each_worker_can_have_its_own_and_the_others_keep_theirs():
    with multi(Always(1), workers=3, frames_per_batch=6) as made:
        made.update_policy_weights_({0: weights(0), 2: weights(2)})
        assert acted(made) == [(0, 1), (1, 0), (2, 1)]
        made.update_policy_weights_(weights(2), worker_ids=1)
        assert acted(made) == [(0, 1), (2, 2), (2, 1)]
        made.update_policy_weights_(weights(1))
        assert acted(made) == [(1, 3), (1, 3), (1, 3)]


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_waiting_returns_when_the_workers_run_the_version(backend):
    with multi(Always(1), backend=backend) as made:
        made.update_policy_weights_(weights(2), wait=True, timeout_s=60)
        assert made.get_distant_attr("policy.weight")[1] == 2
        assert acted(made) == [(2, 1), (2, 1)]


# ---- what must not happen


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_parameters_of_factory_built_policies_stay_parameters(backend):
    with multi(policy_factory=lambda: Always(1), backend=backend) as made:
        made.update_policy_weights_(weights(2))
        acted(made)
        weight = made.getattr_policy("weight")
        assert isinstance(weight, torch.nn.Parameter)
        assert weight.requires_grad
