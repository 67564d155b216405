"""How weights come into a collector from elsewhere: passed, or through schemes that it reads."""

import pickle
import threading

import cloudpickle
import pytest
import torch
from collector_toys import Always, Memory, Signalling, collector
from tensordict import TensorDict
from weight_toys import EVERYWHERE, VERSION, acted, multi, multi_async, weights

from swath import NoWeightSyncScheme, SharedMemWeightSyncScheme, VanillaWeightUpdater

pytestmark = pytest.mark.usefixtures("nursery")  # workers are forked at once
EITHER = pytest.mark.parametrize("make", [collector, multi], ids=["one worker", "many"])


@pytest.fixture
def sender():
    made = SharedMemWeightSyncScheme()
    made.init_on_sender(model_id="policy", weights=weights(1))
    yield made
    made.shutdown()


def copy_of(scheme):
    return pickle.loads(pickle.dumps(scheme))


def shown(made):
    batch = made.next()
    return batch["action"].unique().tolist(), batch[VERSION].unique().tolist()


@EITHER
def test_weights_that_are_passed_come_in(make):
    with make(policy=Always(1)) as made:
        made.receive_weights(weights(2))
        assert shown(made) == ([2], [1])
        made.receive_weights(weights=weights(0))
        made.receive_weights(policy=Always(1))
        assert shown(made) == ([1], [3])
        with pytest.raises(ValueError, match="weights and policy are both given"):
            made.receive_weights(weights=weights(0), policy=Always(0))
        made.receive_weights()
        assert made.policy_version == 4


@EITHER
def test_without_any_source_nothing_happens(make):
    with make(policy_factory=Always) as made:
        assert made.receive_weights() is None
        assert made.policy_version == 0


def test_without_an_argument_an_updater_is_the_first_source():
    updater = VanillaWeightUpdater(weight_getter=lambda: weights(2), policy_weights=TensorDict(weights(0)))
    with multi(Always(1), weight_updater=updater) as made:
        made.receive_weights()
        assert shown(made) == ([2], [1])


@EITHER
def test_the_newest_of_a_registered_scheme_is_taken_at_the_start_of_every_batch(make, sender):
    with make(policy=Always(1), weight_recv_schemes={"policy": copy_of(sender)}) as made:
        assert shown(made) == ([1], [0])
        sender.send(weights(0))
        sender.send(weights(2))
        assert shown(made) == ([2], [1])
        assert shown(made) == ([2], [1]), "nothing newer: no effect"
        sender.send(weights(0))
        made.receive_weights()
        assert made.policy_version == 2
        made.receive_weights()
        assert made.policy_version == 2
        with pytest.raises(ValueError, match="takes its weights from registered receivers"):
            made.receive_weights(weights(1))
        assert shown(made) == ([0], [2])


@EITHER
def test_registering_takes_the_newest_unless_told_not_to(make, sender):
    sender.send(weights(2))
    with make(policy=Always(1)) as made:
        made.register_scheme_receiver({"policy": copy_of(sender)}, synchronize_weights=False)
        assert made.policy_version == 0
        made.register_scheme_receiver({"policy": copy_of(sender)})
        assert made.policy_version == 1
        assert shown(made) == ([2], [1])


@EITHER
def test_a_receiver_is_initialised_for_this_collector_and_its_index(make, sender):
    reader = copy_of(sender)
    sender.send({3: weights(2), 4: weights(0)})
    with make(policy=Always(1), worker_idx=3, weight_recv_schemes={"policy": reader}) as made:
        assert reader.context is made
        assert reader.worker_idx == 3
        assert shown(made) == ([2], [1])


@EITHER
def test_registering_a_model_again_replaces_and_shuts_down_the_old(make, sender):
    old, other = copy_of(sender), SharedMemWeightSyncScheme()
    other.init_on_sender(weights=weights(0))
    with make(policy=Always(1), weight_recv_schemes={"policy": old}) as made:
        made.register_scheme_receiver({"policy": copy_of(other)})
        assert not old.initialized_on_receiver
        sender.send(weights(2))
        other.send()
        assert shown(made) == ([0], [1])
    other.shutdown()


@EITHER
def test_a_sender_of_this_process_is_refused_as_a_receiver(make, sender):
    with make(policy=Always(1)) as made:
        with pytest.raises(RuntimeError, match="is a sender in this process"):
            made.register_scheme_receiver({"policy": sender})
        assert shown(made) == ([1], [0])
    with pytest.raises(RuntimeError, match="is a sender in this process"):
        make(policy=Always(1), weight_recv_schemes={"policy": sender})


@EITHER
def test_what_is_no_dict_of_schemes_is_refused(make):
    with make(policy=Always(1)) as made:
        for wrong in ([SharedMemWeightSyncScheme()], {"policy": "shared"}):
            with pytest.raises(TypeError, match="weight_recv_schemes"):
                made.register_scheme_receiver(wrong)


@EITHER
def test_a_sender_that_is_gone_is_an_error_of_the_draw_and_iteration_can_go_on(make, sender):
    with make(policy=Always(1), weight_recv_schemes={"policy": copy_of(sender)}) as made:
        sender.shutdown()
        with pytest.raises(RuntimeError, match="cannot be reached"):
            made.next()
        made.register_scheme_receiver({"policy": NoWeightSyncScheme()})
        assert shown(made) == ([1], [0])


@EITHER
def test_weights_that_do_not_fit_are_an_error_once(make, sender):
    with make(policy=Always(1), weight_recv_schemes={"policy": copy_of(sender)}) as made:
        sender.send({"other": torch.zeros(1)})
        with pytest.raises(KeyError, match="do not fit the policy"):
            made.next()
        assert shown(made) == ([1], [0])


@EITHER
def test_receivers_are_shut_down_with_their_collector(make, sender):
    reader = copy_of(sender)
    with make(policy=Always(1), weight_recv_schemes={"policy": reader}):
        assert reader.initialized_on_receiver
    assert not reader.initialized_on_receiver


@EITHER
def test_how_weights_are_applied_can_be_overridden(make, sender):
    class Doubles(SharedMemWeightSyncScheme):
        def apply_weights(self, weights, inplace=True):
            super().apply_weights({"weight": weights["weight"] * 2})

    source = Doubles()
    source.init_on_sender(weights=weights(1))
    with make(policy=Always(0), weight_recv_schemes={"policy": copy_of_local(source)}) as made:
        source.send()
        assert shown(made) == ([2], [1])
    source.shutdown()


def copy_of_local(scheme):
    """By cloudpickle, which takes local classes along."""
    return pickle.loads(cloudpickle.dumps(scheme))


class TwoNets(Always):
    def __init__(self):
        super().__init__(1)
        self.nets = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])


@EITHER
def test_an_id_can_be_a_path_and_all_that_is_new_is_one_version(make, sender):
    path, other = "policy.nets[1]", SharedMemWeightSyncScheme()
    other.init_on_sender(model_id=path, model=(net := torch.nn.Linear(1, 1)))
    policy = TwoNets()
    full = SharedMemWeightSyncScheme()
    full.init_on_sender(weights=TwoNets().state_dict() | weights(2))
    receivers = {"policy": copy_of(full), path: copy_of(other)}
    with make(policy=policy, weight_recv_schemes=receivers) as made:
        full.send()
        other.send()
        assert shown(made) == ([2], [1])
        assert made.getattr_policy("nets[1].weight").item() == pytest.approx(net.weight.item())
        assert isinstance(made.get_model(path), torch.nn.Linear)
        with pytest.raises(KeyError, match="no model"):
            made.update_policy_weights_(net, model_id=path)
    for scheme in (full, other):
        scheme.shutdown()


@pytest.mark.parametrize("order", [["policy", "policy.nets[1]"], ["policy.nets[1]", "policy"]], ids=str)
@EITHER
def test_what_one_receiver_raises_loses_nothing_of_the_others(make, order):
    path, full, other = "policy.nets[1]", SharedMemWeightSyncScheme(), SharedMemWeightSyncScheme()
    full.init_on_sender(weights=TwoNets().state_dict() | weights(2))
    other.init_on_sender(model_id=path, weights={"strange": torch.zeros(1)})
    receivers = {"policy": copy_of(full), path: copy_of(other)}
    with make(policy=TwoNets(), weight_recv_schemes={name: receivers[name] for name in order}) as made:
        full.send()
        other.send()
        with pytest.raises(KeyError, match="strange"):
            made.next()
        assert shown(made) == ([2], [1])
    for scheme in (full, other):
        scheme.shutdown()


def test_chains_of_collectors_need_no_further_call():
    first_out, second_out = SharedMemWeightSyncScheme(), SharedMemWeightSyncScheme()
    with multi(Always(1), weight_sync_schemes={"policy": first_out}, workers=1, frames_per_batch=2) as first:
        into_second = {"policy": copy_of(first_out)}
        with (
            multi(Always(1), weight_sync_schemes={"policy": second_out}, weight_recv_schemes=into_second) as second,
            collector(policy=Always(1), weight_recv_schemes={"policy": copy_of(second_out)}) as third,
        ):
            first.update_policy_weights_(weights(2))
            assert [shown(one) for one in (first, second, third)] == [([2], [1])] * 3


def test_a_reader_that_joins_late_gets_the_newest_of_a_collector():
    scheme = SharedMemWeightSyncScheme()
    with multi(Always(1), weight_sync_schemes={"policy": scheme}) as source:
        source.update_policy_weights_(weights(0))
        source.update_policy_weights_({1: weights(2)})
        for index, action in ((0, 0), (1, 2)):
            with collector(policy=Always(1), worker_idx=index, weight_recv_schemes={"policy": copy_of(scheme)}) as made:
                assert shown(made) == ([action], [1])


def test_a_reader_follows_a_collector_in_this_process_too():
    policy, scheme = Always(1), SharedMemWeightSyncScheme()
    with collector(policy=policy) as source:
        scheme.init_on_sender(model_id="policy", context=source)
        assert scheme.context is source
        target = Always(0)
        reader = copy_of(scheme)
        reader.init_on_receiver(model_id="policy", model=target)
        assert reader.receive() is None, "nothing was published yet"
        with torch.no_grad():
            policy.weight.fill_(2)
        source.update_policy_weights_()
        reader.receive()
        assert target.weight == 2
        scheme.send(weights(0))
        assert policy.weight == 0
        reader.receive()
        assert target.weight == 0
        late = copy_of(scheme)
        late.init_on_receiver(model_id="policy", model=target)
        assert late.receive() is not None


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_weights_that_come_in_reach_the_workers(backend, sender):
    with multi(Always(1), backend=backend, weight_recv_schemes={"policy": copy_of(sender)}) as made:
        sender.send(weights(2))
        assert acted(made) == [(2, 1), (2, 1)]


def test_in_background_mode_the_newest_is_taken_for_every_batch(sender):
    buffer = Signalling(permits=1)
    with collector(policy=Always(1), replay_buffer=buffer, weight_recv_schemes={"policy": copy_of(sender)}) as made:
        made.start()
        buffer.wait_for(1)
        sender.send(weights(2))
        buffer.permit(3)
        buffer.wait_for(4)
        assert buffer.written[-1]["action"].unique().tolist() == [2]
        buffer.permit(10**6)


def test_an_error_of_receiving_in_background_mode_is_kept(sender):
    buffer = Memory()
    with collector(policy=Always(1), replay_buffer=buffer, weight_recv_schemes={"policy": copy_of(sender)}) as made:
        sender.shutdown()
        made.start()
        made._background._thread.join(60)
        with pytest.raises(RuntimeError, match="cannot be reached"):
            made.update_policy_weights_(weights(2))


# ---- through a worker's handle


@pytest.mark.parametrize("backend", EVERYWHERE)
def test_weights_set_on_a_worker_directly_have_negative_versions(backend):
    with multi(Always(1), backend=backend) as made:
        made.map_fn("update_policy_weights_", [(weights(2),), (weights(0),)])
        assert acted(made) == [(2, -1), (0, -1)]
        made.map_fn("update_policy_weights_", list_of_kwargs=[{"policy_weights": weights(1)}] * 2)
        made.map_fn("receive_weights", [(weights(0),), ()])
        assert acted(made) == [(0, -3), (1, -2)]
        made.update_policy_weights_(weights(2))
        assert acted(made) == [(2, 1), (2, 1)], "the channel's weights are newer"


def test_they_count_as_newest_for_staleness():
    with multi_async(Always(1), workers=1, max_staleness=0) as made:
        made.update_policy_weights_(weights(0))
        made.map_fn("update_policy_weights_", [(weights(2),)])
        assert acted(made) == [(2, -1)]
        assert made.stats()["batches_dropped"] == 0


def test_a_workers_models_are_set_all_or_nothing():
    with multi(TwoNets(), workers=1, frames_per_batch=2) as made:
        linear = {"weight": torch.full((1, 1), 5.0), "bias": torch.full((1,), 5.0)}
        both = {"policy": TwoNets().state_dict() | weights(2), "policy.nets[1]": linear}
        wrong = {**both, "policy.nets[1]": weights(1)}
        with pytest.raises(KeyError, match="nothing was changed"):
            made.map_fn("update_policy_weights_", list_of_kwargs=[{"weights_dict": wrong}])
        assert acted(made) == [(1, 0)]
        made.map_fn("update_policy_weights_", list_of_kwargs=[{"weights_dict": both}])
        assert acted(made) == [(2, -1)]
        assert made.getattr_policy("nets[1].bias").item() == 5
        made.map_fn("update_policy_weights_", list_of_kwargs=[{"weights": linear, "model_id": "policy.nets[0]"}])
        assert made.getattr_policy("nets[0].bias").item() == 5


MISUSED = {
    "nothing": ({}, "0 sources of weights are given; pass one"),
    "two": ({"weights": weights(1), "policy": Always()}, "2 sources of weights"),
    "a model beside models": ({"weights_dict": {}, "model_id": "policy"}, "weights_dict and model_id"),
}


@pytest.mark.parametrize(("arguments", "message"), MISUSED.values(), ids=MISUSED)
def test_a_worker_wants_one_source(arguments, message):
    with multi(Always(1), workers=1, frames_per_batch=2) as made, pytest.raises(ValueError, match=message):
        made.map_fn("update_policy_weights_", list_of_kwargs=[arguments])


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_worker_reads_schemes_that_are_registered_with_it(backend, sender):
    with multi(Always(1), backend=backend) as made:
        sender.send({0: weights(2)})
        made.map_fn("register_scheme_receiver", [({"policy": copy_of(sender)},) for _ in range(2)])
        assert acted(made) == [(2, -1), (1, 0)]
        sender.send(weights(0))
        assert acted(made) == [(0, -2), (0, -1)]
        with pytest.raises(ValueError, match="registered receivers"):
            made.map_fn("receive_weights", [(weights(1),), (weights(1),)])


def test_weights_that_came_to_a_worker_before_an_error_are_another_version():
    path, full, other = "policy.nets[1]", SharedMemWeightSyncScheme(), SharedMemWeightSyncScheme()
    full.init_on_sender(weights=TwoNets().state_dict() | weights(2))
    other.init_on_sender(model_id=path, weights={"strange": torch.zeros(1)})
    with multi(TwoNets(), workers=1, frames_per_batch=2) as made:
        receivers = {"policy": copy_of(full), path: copy_of(other)}
        made.map_fn("register_scheme_receiver", [(receivers,)], [{"synchronize_weights": False}])
        full.send()
        other.send()
        with pytest.raises(KeyError, match="strange"):
            made.next()
        assert acted(made) == [(2, -1)]
    for scheme in (full, other):
        scheme.shutdown()


def test_registering_with_a_worker_again_replaces(sender):
    other = SharedMemWeightSyncScheme()
    other.init_on_sender(weights=weights(0))
    with multi(Always(1), workers=1, frames_per_batch=2) as made:
        made.map_fn("register_scheme_receiver", [({"policy": copy_of(sender)},)])
        made.map_fn("register_scheme_receiver", [({"policy": copy_of(other)},)])
        sender.send(weights(2))
        other.send()
        assert acted(made) == [(0, -1)]
    other.shutdown()


def test_threads_that_receive_at_once_take_each_publication_once(sender):
    with multi(Always(1), weight_recv_schemes={"policy": copy_of(sender)}) as made:
        sender.send(weights(2))
        threads = [threading.Thread(target=made.receive_weights) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert made.policy_version == 1
