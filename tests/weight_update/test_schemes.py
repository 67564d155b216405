"""Schemes by themselves: senders with a channel of their own, readers that are pickled copies of them."""

import copy
import gc
import multiprocessing
import os
import pickle
import threading
from collections import OrderedDict

import pytest
import torch
from scheme_toys import Filled, Plain, copied, read_elsewhere, reader_of
from tensordict import TensorDict

import swath
from swath import (
    MultiProcessedWeightSyncScheme,
    MultiProcessWeightSyncScheme,
    NoWeightSyncScheme,
    RayWeightSyncScheme,
    SharedMemWeightSyncScheme,
    WeightSyncScheme,
)
from swath.errors import NoEffectWarning

LOCAL = (WeightSyncScheme, MultiProcessWeightSyncScheme, SharedMemWeightSyncScheme)


@pytest.fixture(params=LOCAL, ids=lambda kind: kind.__name__)
def scheme(request):
    made = request.param()
    yield made
    made.shutdown()


def test_the_names_are_handed_out_in_both_places():
    for name in swath.weight_update.__all__:
        assert getattr(swath, name) is getattr(swath.weight_update, name)
    assert MultiProcessedWeightSyncScheme is MultiProcessWeightSyncScheme


BACKENDS = {
    "none": NoWeightSyncScheme,
    "direct": NoWeightSyncScheme,
    "shared": SharedMemWeightSyncScheme,
    "thread": SharedMemWeightSyncScheme,
    "process": MultiProcessWeightSyncScheme,
    "multiprocessing": MultiProcessWeightSyncScheme,
    "ray": RayWeightSyncScheme,
}


@pytest.mark.parametrize(("name", "kind"), BACKENDS.items(), ids=BACKENDS)
def test_a_scheme_is_made_for_a_backend(name, kind):
    made = WeightSyncScheme.from_backend(name, strategy="state_dict")
    assert type(made) is kind
    assert made.strategy.extract_as == "state_dict"


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="backend='rpc' must be one of 'none', 'direct'"):
        WeightSyncScheme.from_backend("rpc")


def test_the_arguments_are_kept():
    assert MultiProcessWeightSyncScheme().sync is SharedMemWeightSyncScheme().sync is True
    assert MultiProcessWeightSyncScheme(sync=False).sync is False
    shared = SharedMemWeightSyncScheme("state_dict", sync=False, per_worker_weights=True)
    assert (shared.strategy.extract_as, shared.sync, shared.per_worker_weights) == ("state_dict", False, True)
    assert RayWeightSyncScheme().sync is WeightSyncScheme().sync is False
    with pytest.raises(ValueError, match="strategy='other' must be one of"):
        WeightSyncScheme("other")


def test_a_backend_of_process_groups_has_no_effect_and_that_is_said():
    RayWeightSyncScheme(backend="gloo")
    with pytest.warns(NoEffectWarning, match="backend='nccl' has no effect"):
        RayWeightSyncScheme(backend="nccl")


def test_there_are_no_transports_to_choose(scheme):
    with pytest.raises(NotImplementedError, match="no transports to choose"):
        scheme.create_transport()


def test_what_was_sent_is_received_once_and_applied(scheme):
    model = Filled(2.0)
    scheme.init_on_sender(model_id="policy", model=model)
    target = Filled(0.0)
    reader = reader_of(scheme, target)
    assert reader.receive() is None
    scheme.send()
    model.fill(3.0)
    weights = reader.receive()
    assert isinstance(weights, TensorDict)
    assert weights["body", "weight"].unique().tolist() == [2.0], "values are read when they are sent"
    assert target.values == {2.0}
    assert target.note.text == "2.0"
    assert reader.receive() is None


def test_slow_readers_skip_to_the_newest(scheme):
    scheme.init_on_sender(weights={"w": torch.zeros(2)})
    reader = reader_of(scheme, None)
    for value in range(5):
        scheme.send({"w": torch.full((2,), float(value))})
    reader.apply_weights = lambda weights, inplace=True: None
    assert reader.receive()["w"].tolist() == [4, 4]
    assert reader.receive() is None


def test_the_form_of_what_is_received_is_the_strategys():
    scheme = SharedMemWeightSyncScheme("state_dict")
    scheme.init_on_sender(model=(model := Filled(1.0)))
    target = Filled(0.0)
    reader = reader_of(scheme, target)
    scheme.send()
    weights = reader.receive()
    assert type(weights) is OrderedDict
    assert set(weights) == set(model.state_dict())
    assert target.values == {1.0}
    scheme.shutdown()


def test_what_is_received_is_the_readers_own(scheme):
    scheme.init_on_sender(weights={"w": torch.ones(100_000)})
    one, other = (reader_of(scheme, torch.nn.Identity()) for _ in range(2))
    for reader in (one, other):
        reader.apply_weights = lambda weights, inplace=True: None
    scheme.send()
    mine, theirs = one.receive()["w"], other.receive()["w"]
    mine.zero_()
    assert bool((theirs == 1).all())


SENT = {
    "a module": lambda: Plain(5.0),
    "a TensorDict": lambda: TensorDict(Plain(5.0).state_dict()),
    "a dict": lambda: dict(Plain(5.0).state_dict()),
    "with prefixes": lambda: {f"module.{name}": value for name, value in Plain(5.0).state_dict().items()},
}


@pytest.mark.parametrize("form", SENT.values(), ids=SENT)
def test_weights_of_any_form_are_sent(scheme, form):
    model, target = Plain(1.0), Plain(0.0)
    scheme.init_on_sender(model=model)
    reader = reader_of(scheme, target)
    scheme.send(form())
    reader.receive()
    assert target.values == {5.0}
    assert model.values == {1.0}, "the sender's model is only read"


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        ({"weight": torch.zeros(1, 3)}, KeyError),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(1)}, ValueError),
        (3, TypeError),
    ],
    ids=["a name is missing", "another shape", "no weights"],
)
def test_what_does_not_fit_the_model_is_refused_and_nothing_is_sent(scheme, weights, error):
    model = Plain(1.0)
    scheme.init_on_sender(model=model)
    reader = reader_of(scheme, Plain())
    with pytest.raises(error):
        scheme.send(weights)
    assert reader.receive() is None


def test_what_does_not_fit_the_reader_is_raised_there_once(scheme):
    scheme.init_on_sender(weights={"other": torch.zeros(1)})
    target = Plain(0.0)
    reader = reader_of(scheme, target)
    scheme.send()
    with pytest.raises(KeyError, match="nothing was changed"):
        reader.receive()
    assert reader.receive() is None
    scheme.send(Plain(4.0))
    reader.receive()
    assert target.values == {4.0}


def test_each_worker_can_have_weights_of_its_own(scheme):
    scheme.init_on_sender(weights=dict(Plain(1.0).state_dict()))
    targets = [Plain(0.0) for _ in range(3)]
    readers = [reader_of(scheme, target, worker_idx=index) for index, target in enumerate(targets)]
    scheme.send()
    scheme.send({0: Plain(2.0), 2: Plain(3.0)})
    scheme.send(Plain(4.0), worker_ids=[2])
    for reader in readers:
        reader.receive()
    assert [target.values for target in targets] == [{2.0}, {1.0}, {4.0}]
    scheme.send(Plain(5.0))
    assert [bool(reader.receive() is not None) for reader in readers] == [True] * 3
    assert [target.values for target in targets] == [{5.0}] * 3
    with pytest.raises(ValueError, match="worker_ids and weights by worker"):
        scheme.send({0: Plain(1.0)}, worker_ids=0)
    with pytest.raises(ValueError, match="worker_ids='cpu'"):
        scheme.send(worker_ids="cpu")


def test_a_map_of_weights_by_worker_is_a_source(scheme):
    scheme.init_on_sender(params_map={0: Plain(1.0), 1: Plain(2.0)})
    targets = [Plain(0.0), Plain(0.0)]
    readers = [reader_of(scheme, target, worker_idx=index) for index, target in enumerate(targets)]
    scheme.send()
    for reader in readers:
        reader.receive()
    assert [target.values for target in targets] == [{1.0}, {2.0}]
    scheme.send(worker_ids=1)
    assert [reader.receive() is None for reader in readers] == [True, False]
    with pytest.raises(ValueError, match=r"worker_ids=\[2\]: there are weights for \[0, 1\] only"):
        scheme.send(worker_ids=2)


def test_a_function_can_make_each_workers_weights(scheme):
    def scaled(worker, weights):
        return {name: value * worker for name, value in weights.items()}

    source = dict(Plain(2.0).state_dict())
    with pytest.raises(ValueError, match="say with num_workers= how many"):
        scheme.init_on_sender(weights=source, device_map_fn=scaled)
    scheme.init_on_sender(weights=source, device_map_fn=scaled, devices=["cpu"] * 3)
    targets = [Plain(9.0) for _ in range(3)]
    scheme.send()
    for index, target in enumerate(targets):
        reader_of(scheme, target, worker_idx=index).receive()
    assert [target.values for target in targets] == [{0.0}, {2.0}, {4.0}]


def test_a_scheme_has_one_source(scheme):
    with pytest.raises(ValueError, match="model and weights are both given"):
        scheme.init_on_sender(model=Plain(), weights={})


def test_connecting_a_sender_publishes_once(scheme):
    model, target = Plain(1.0), Plain(0.0)
    scheme.init_on_sender(model=model)
    reader = reader_of(scheme, target)
    assert not scheme.synchronized_on_sender
    scheme.connect()
    assert scheme.synchronized_on_sender
    reader.connect()
    assert reader.synchronized_on_receiver
    assert target.values == {1.0}
    model.fill(2.0)
    scheme.connect()
    assert reader.receive() is None, "the second time nothing happens"


def test_a_sender_can_connect_with_weights_and_without_any(scheme):
    scheme.init_on_sender(model_id="critic")
    scheme.connect(weights=Plain(3.0))
    target = Plain(0.0)
    reader_of(scheme, target, model_id="critic").connect(worker_idx=4)
    assert target.values == {3.0}
    other = WeightSyncScheme()
    other.init_on_sender(model_id="critic")
    other.connect()
    assert other.synchronized_on_sender
    assert other.sent_to(0) is None, "there was nothing to publish"
    other.shutdown()


def test_a_receiver_that_connects_late_gets_the_newest(scheme):
    scheme.init_on_sender(weights=Plain(7.0).state_dict())
    scheme.send()
    target = Plain(0.0)
    reader = reader_of(scheme, target)
    reader.connect(worker_idx=2)
    assert target.values == {7.0}
    assert reader.worker_idx == 2


def test_a_receiver_waits_for_news_as_long_as_it_is_told(scheme):
    scheme.init_on_sender(weights={"w": torch.zeros(1)})
    reader = reader_of(scheme, None)
    reader.apply_weights = lambda weights, inplace=True: None
    assert reader.receive(timeout=0.01) is None
    got = []
    waiting = threading.Thread(target=lambda: got.append(reader.receive(timeout=60)))
    waiting.start()
    scheme.send()
    waiting.join(60)
    assert got[0]["w"].tolist() == [0]


MISUSE = {
    "send first": (lambda s: s.send(), "comes after init_on_sender"),
    "receive first": (lambda s: s.receive(), "comes after init_on_receiver"),
    "connect first": (lambda s: s.connect(), "comes after init_on_sender"),
    "apply first": (lambda s: s.apply_weights({}), "comes after init_on_receiver"),
}


@pytest.mark.parametrize(("call", "message"), MISUSE.values(), ids=MISUSE)
def test_a_scheme_must_be_initialised_first(scheme, call, message):
    with pytest.raises(RuntimeError, match=message):
        call(scheme)


def test_arguments_of_the_other_side_are_refused(scheme):
    scheme.init_on_sender(weights=Plain().state_dict())
    with pytest.raises(ValueError, match="worker_idx is for receivers"):
        scheme.connect(worker_idx=0)
    with pytest.raises(ValueError, match="weights are for senders"):
        reader_of(scheme, Plain()).connect(weights={})


def test_a_sender_is_no_receiver_and_a_reader_no_sender(scheme):
    scheme.init_on_sender(weights=Plain().state_dict())
    with pytest.raises(RuntimeError, match="is a sender in this process"):
        scheme.init_on_receiver(model_id="policy", model=Plain())
    with pytest.raises(RuntimeError, match="is a reader"):
        copied(scheme).init_on_sender(weights=Plain().state_dict())
    with pytest.raises(RuntimeError, match="comes after init_on_sender"):
        copied(scheme).send()


def test_one_scheme_serves_one_model(scheme):
    scheme.init_on_sender(model_id="policy", weights=Plain().state_dict())
    with pytest.raises(ValueError, match="serves 'policy' and cannot serve 'critic'"):
        scheme.init_on_sender(model_id="critic")


def test_a_context_must_be_a_collector(scheme):
    with pytest.raises(TypeError, match="context is a dict; it must be a collector"):
        scheme.init_on_sender(context={})


def test_a_sender_without_weights_says_so(scheme):
    scheme.init_on_sender(model_id="policy")
    with pytest.raises(RuntimeError, match="no weights of 'policy' to send: pass weights"):
        scheme.send()


def test_a_model_that_is_gone_is_no_source(scheme):
    model = Plain()
    scheme.init_on_sender(model=model)
    assert scheme.model is model
    del model
    gc.collect()
    assert scheme.model is None
    with pytest.raises(RuntimeError, match="no weights"):
        scheme.send()


def test_a_receiver_without_a_sender_says_so(scheme):
    scheme.init_on_receiver(model_id="policy", model=Plain())
    assert scheme.initialized_on_receiver
    with pytest.raises(RuntimeError, match="no sender: initialise it on a sender first"):
        scheme.receive()


def test_a_receiver_whose_model_is_gone_says_so(scheme):
    scheme.init_on_sender(weights=Plain().state_dict())
    reader = reader_of(scheme, Plain())
    scheme.send()
    gc.collect()
    with pytest.raises(RuntimeError, match="no model 'policy' here any more"):
        reader.receive()


class Holder:
    def __init__(self):
        self.nets = [Plain(0.0), Plain(0.0)]


class Finder:
    def __init__(self):
        self.critic = Plain(0.0)

    def get_model(self, model_id):
        return getattr(self, model_id)


def test_a_receiver_finds_its_model_in_its_context(scheme):
    scheme.init_on_sender(model_id="nets[1]", weights=Plain(2.0).state_dict())
    holder, reader = Holder(), copied(scheme)
    reader.init_on_receiver(model_id="nets[1]", context=holder)
    assert reader.context is holder
    scheme.send()
    reader.receive()
    assert [net.values for net in holder.nets] == [{0.0}, {2.0}]


def test_a_context_that_knows_its_models_is_asked(scheme):
    scheme.init_on_sender(model_id="critic", weights=Plain(2.0).state_dict())
    finder, reader = Finder(), copied(scheme)
    reader.init_on_receiver(model_id="critic", context=finder)
    scheme.send()
    reader.receive()
    assert finder.critic.values == {2.0}


def test_properties_say_who_it_is(scheme):
    facts = ("model_id", "model", "context", "weights", "worker_idx")
    flags = ("initialized_on_sender", "initialized_on_receiver", "synchronized_on_sender", "synchronized_on_receiver")
    assert [getattr(scheme, name) for name in facts] == [None] * 5
    assert [getattr(scheme, name) for name in flags] == [False] * 4
    assert "not in use" in repr(scheme)
    model = Plain(3.0)
    scheme.init_on_sender(model_id="critic", model=model)
    assert (scheme.model_id, scheme.model, scheme.worker_idx) == ("critic", model, None)
    assert scheme.weights["weight"].unique().tolist() == [3.0]
    assert "of 'critic': sender" in repr(scheme)
    reader = reader_of(scheme, model, worker_idx=2, model_id="critic")
    assert (reader.model_id, reader.model, reader.worker_idx) == ("critic", model, 2)
    assert [getattr(reader, name) for name in flags] == [False, True, False, False]
    assert "of 'critic': receiver" in repr(reader)


def test_weights_that_were_given_are_shown(scheme):
    given = TensorDict(Plain().state_dict())
    scheme.init_on_sender(weights=given)
    assert scheme.weights is given


class Doubling(SharedMemWeightSyncScheme):
    def prepare_weights(self, weights, model_id, strategy, context=None):
        assert (model_id, context) == ("policy", None)
        return {name: value * 2 for name, value in strategy.extract_weights(weights).items()}

    def apply_weights(self, weights, inplace=True):
        super().apply_weights({name: value + 1 for name, value in weights.items()})


def test_mapping_and_applying_can_be_overridden():
    scheme, target = Doubling("state_dict"), Plain(0.0)
    scheme.init_on_sender(weights=Plain(3.0).state_dict())
    reader = reader_of(scheme, target)
    scheme.send()
    reader.receive()
    assert target.values == {7.0}
    scheme.shutdown()


def test_nothing_is_sent_by_the_scheme_that_sends_nothing():
    scheme, target = NoWeightSyncScheme(), Plain(0.0)
    scheme.init_on_sender(model=Plain(1.0))
    scheme.send()
    scheme.connect()
    reader = reader_of(scheme, target)
    reader.connect()
    assert reader.receive() is None
    assert target.values == {0.0}
    assert not scheme.is_read


def test_shutting_down_forgets_and_twice_is_fine(scheme):
    scheme.init_on_sender(weights=Plain().state_dict())
    reader = reader_of(scheme, Plain())
    scheme.shutdown()
    scheme.shutdown()
    assert not scheme.initialized_on_sender
    with pytest.raises(RuntimeError, match="comes after"):
        scheme.send()
    with pytest.raises(RuntimeError, match="cannot be reached"):
        reader.receive()
    reader.shutdown()
    reader.shutdown()
    assert not reader.initialized_on_receiver


def test_a_scheme_that_was_shut_down_can_begin_again(scheme):
    scheme.init_on_sender(weights=Plain(1.0).state_dict())
    copied(scheme)
    scheme.shutdown()
    scheme.init_on_sender(weights=Plain(2.0).state_dict())
    target = Plain(0.0)
    reader = reader_of(scheme, target)
    scheme.send()
    reader.receive()
    assert target.values == {2.0}


def test_a_scheme_that_is_forgotten_leaves_nothing():
    made = SharedMemWeightSyncScheme()
    made.init_on_sender(weights=Plain(1.0).state_dict())
    reader = reader_of(made, Plain())
    del made  # nothing needs to be collected: it is in no cycle
    with pytest.raises(RuntimeError, match="cannot be reached"):
        reader.receive()


def test_copies_of_copies_read_the_same_channel(scheme):
    target = Plain(0.0)
    scheme.init_on_sender(weights=Plain(2.0).state_dict())
    reader = reader_of(copy.deepcopy(copied(scheme)), target)
    scheme.send()
    reader.receive()
    assert target.values == {2.0}


def test_another_process_of_this_machine_reads_it(scheme):
    scheme.init_on_sender(weights=Plain(2.5).state_dict())
    pickled = pickle.dumps(scheme)
    scheme.send()
    assert read_elsewhere(pickled) == "{2.5}"
    scheme.shutdown()
    said = read_elsewhere(pickled)
    assert said.startswith("RuntimeError the weights of this scheme cannot be reached")


def test_a_process_that_was_forked_from_the_sender_is_no_sender(scheme):
    scheme.init_on_sender(weights=Plain(2.5).state_dict())
    scheme._sending.pid = os.getpid() + 1  # as a forked process sees it
    assert not scheme.initialized_on_sender
    with pytest.raises(RuntimeError, match="comes after init_on_sender"):
        scheme.send()


def read_in_fork(scheme, answers):
    model = Plain(0.0)
    scheme.init_on_receiver(model_id="policy", model=model)
    scheme.receive(timeout=60)
    answers.put((scheme.initialized_on_sender, model.values))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_was_forked_from_the_sender_is_a_reader(scheme):
    scheme.init_on_sender(weights=Plain(2.5).state_dict())
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=read_in_fork, args=(scheme, answers), daemon=True)
    child.start()
    scheme.send()
    assert answers.get(timeout=60) == (False, {2.5})
    child.join(60)


def test_several_threads_send_one_after_the_other(scheme):
    scheme.init_on_sender(weights={"w": torch.zeros(1)})
    reader = reader_of(scheme, None)
    reader.apply_weights = lambda weights, inplace=True: None

    def send_many():
        for _ in range(20):
            scheme.send()

    threads = [threading.Thread(target=send_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert reader.receive() is not None
    assert reader._receiving._seen == 80
