"""How weights come into a collector from elsewhere: passed, or from another collector through schemes."""

import copy
import pickle
from contextlib import contextmanager

import pytest
import torch
from collector_toys import (
    EITHER,
    PATH,
    Always,
    TwoNets,
    acted,
    make_collector,
    multi,
    shown,
    weights,
)

from swath import SharedMemWeightSyncScheme

pytestmark = pytest.mark.usefixtures("fork_server")  # workers are forked at once


@contextmanager
def sending(scheme=None, policy=None, model_id="policy", **options):
    """Yield a scheme whose collector sends weights."""
    sender = SharedMemWeightSyncScheme(sync=False) if scheme is None else scheme
    with multi(Always(1) if policy is None else policy, weight_sync_schemes={model_id: sender}, **options):
        yield sender


def send(scheme, weights, **options):
    scheme.context.publish_weights(weights, model_id=scheme.model_id, **options)


@pytest.fixture
def sender():
    with sending() as collector:
        yield collector


@pytest.mark.parametrize("make", EITHER)
def test_weights_that_are_passed_come_in(make):
    with make(policy=Always(1)) as collector:
        collector.receive_weights(weights(2))
        assert shown(collector) == ([2], [1])
        collector.receive_weights(weights=weights(0))
        collector.receive_weights(policy=Always(1))
        assert shown(collector) == ([1], [3])
        with pytest.raises(ValueError, match="weights and policy are both given"):
            collector.receive_weights(weights=weights(0), policy=Always(0))
        collector.receive_weights()
        assert collector.policy_version == 4


@pytest.mark.parametrize("make", EITHER)
def test_the_newest_of_a_registered_scheme_is_taken_at_the_start_of_every_batch(make, sender):
    with make(policy=Always(1), weight_recv_schemes={"policy": copy.copy(sender)}) as collector:
        assert shown(collector) == ([1], [0])
        send(sender, weights(0))
        send(sender, weights(2))
        assert shown(collector) == ([2], [1])
        assert shown(collector) == ([2], [1]), "nothing newer: no effect"
        send(sender, weights(0))
        collector.receive_weights()
        assert collector.policy_version == 2
        collector.receive_weights()
        assert collector.policy_version == 2
        with pytest.raises(ValueError, match="takes its weights from registered receivers"):
            collector.receive_weights(weights(1))
        assert shown(collector) == ([0], [2])


@pytest.mark.parametrize("make", EITHER)
def test_registering_takes_the_newest_by_default(make, sender):
    send(sender, weights(2))
    with make(policy=Always(1)) as collector:
        collector.register_scheme_receiver({"policy": copy.copy(sender)}, synchronize_weights=False)
        assert collector.policy_version == 0
        collector.register_scheme_receiver({"policy": pickle.loads(pickle.dumps(sender))})
        assert collector.policy_version == 1
        assert shown(collector) == ([2], [1])


@pytest.mark.parametrize("make", EITHER)
def test_a_receiver_is_initialised_for_this_collector_and_its_index(make):
    with sending(workers=4, frames_per_batch=8) as sender:
        send(sender, {2: weights(0), 3: weights(2)})
        reader = copy.copy(sender)
        with make(policy=Always(1), worker_idx=3, weight_recv_schemes={"policy": reader}) as collector:
            assert reader.context is collector
            assert reader.worker_idx == 3
            assert shown(collector) == ([2], [1])
            send(sender, weights(0), worker_ids=2)
            assert shown(collector) == ([2], [1]), "that was for another"
        assert not reader.initialized_on_receiver, "receivers are shut down with their collector"


@pytest.mark.parametrize("make", EITHER)
def test_registering_a_model_again_replaces_and_shuts_down_the_old(make, sender):
    with (
        sending() as other,
        make(policy=Always(1), weight_recv_schemes={"policy": (old := copy.copy(sender))}) as collector,
    ):
        collector.register_scheme_receiver({"policy": copy.copy(other)})
        assert not old.initialized_on_receiver
        send(sender, weights(2))
        send(other, weights(0))
        assert shown(collector) == ([0], [1])


@pytest.mark.parametrize("make", EITHER)
def test_what_is_no_copy_of_a_sender_of_this_process_is_refused(make, sender):
    for refused, message in (
        (sender, "is a sender in this process"),
        (SharedMemWeightSyncScheme(), r"elsewhere call update_policy_weights_\(\)"),
    ):
        with make(policy=Always(1)) as collector:
            with pytest.raises(RuntimeError, match=message):
                collector.register_scheme_receiver({"policy": refused})
            assert shown(collector) == ([1], [0])
        with pytest.raises(RuntimeError, match=message):
            make(policy=Always(1), weight_recv_schemes={"policy": refused})


@pytest.mark.parametrize("make", EITHER)
def test_how_weights_are_applied_can_be_overridden(make):
    class Doubles(SharedMemWeightSyncScheme):
        def apply_weights(self, weights, inplace=True):
            super().apply_weights({"weight": weights["weight"] * 2})

    with (
        sending(Doubles()) as sender,
        make(policy=Always(0), weight_recv_schemes={"policy": copy.copy(sender)}) as collector,
    ):
        send(sender, weights(1))
        assert shown(collector) == ([2], [1])


@pytest.mark.parametrize("make", EITHER)
def test_an_id_can_be_a_path_and_all_that_is_new_is_one_version(make):
    with sending(policy=TwoNets()) as full, sending(policy=TwoNets(), model_id=PATH) as part:
        receivers = {"policy": copy.copy(full), PATH: copy.copy(part)}
        with make(policy=TwoNets(), weight_recv_schemes=receivers) as collector:
            send(full, TwoNets().state_dict() | weights(2))
            send(part, net := torch.nn.Linear(1, 1))
            assert shown(collector) == ([2], [1])
            assert collector.getattr_policy("nets[1].weight").item() == pytest.approx(net.weight.item())
            assert isinstance(collector.get_model(PATH), torch.nn.Linear)
            with pytest.raises(KeyError, match="no model"):
                collector.update_policy_weights_(net, model_id=PATH)


def test_chains_of_collectors_need_no_further_call():
    with (
        sending() as first,
        sending(weight_recv_schemes={"policy": copy.copy(first)}) as second,
        make_collector(policy=Always(1), weight_recv_schemes={"policy": copy.copy(second)}) as third,
    ):
        first.context.update_policy_weights_(weights(2))
        assert [shown(collector) for collector in (first.context, second.context, third)] == [([2], [1])] * 3


def test_a_worker_takes_weights_from_its_collector_alone():
    with multi(Always(1)) as collector:
        for method in ("update_policy_weights_", "receive_weights"):
            with pytest.raises(RuntimeError, match=r"call update_policy_weights_\(weights, worker_ids=…\) there"):
                collector.map_fn(method, [(weights(2),), (weights(0),)])
        assert acted(collector) == [(1, 0), (1, 0)]
