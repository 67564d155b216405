"""Schemes without collectors: names, arguments, sources, and refusals."""

import gc

import pytest
import torch
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

BACKENDS = {
    "none": NoWeightSyncScheme,
    "direct": NoWeightSyncScheme,
    "shared": SharedMemWeightSyncScheme,
    "thread": SharedMemWeightSyncScheme,
    "process": MultiProcessWeightSyncScheme,
    "multiprocessing": MultiProcessWeightSyncScheme,
    "ray": RayWeightSyncScheme,
}


def test_the_names_are_handed_out_in_both_places():
    for name in ("WeightSyncScheme", "WeightStrategy", *{kind.__name__ for kind in BACKENDS.values()}):
        assert getattr(swath, name) is getattr(swath.weight_update, name)
    assert MultiProcessedWeightSyncScheme is MultiProcessWeightSyncScheme


@pytest.mark.parametrize(("name", "kind"), BACKENDS.items(), ids=BACKENDS)
def test_a_scheme_is_made_for_a_backend(name, kind):
    scheme = WeightSyncScheme.from_backend(name, strategy="state_dict")
    assert type(scheme) is kind
    assert scheme.strategy.extract_as == "state_dict"


def test_a_backend_of_process_groups_warns_that_it_has_no_effect():
    RayWeightSyncScheme(backend="gloo")
    with pytest.warns(NoEffectWarning, match="backend='nccl' has no effect"):
        RayWeightSyncScheme(backend="nccl")


def test_properties_name_the_source():
    scheme = WeightSyncScheme()
    facts = ("model_id", "model", "context", "weights", "worker_idx")
    assert [getattr(scheme, name) for name in facts] == [None] * 5
    assert (scheme.initialized_on_sender, scheme.initialized_on_receiver) == (False, False)
    assert "not in use" in repr(scheme)
    model = torch.nn.Linear(3, 1)
    torch.nn.init.constant_(model.weight, 3.0)
    scheme.init_on_sender(model_id="critic", model=model)
    assert (scheme.model_id, scheme.model, scheme.worker_idx) == ("critic", model, None)
    assert (scheme.initialized_on_sender, scheme.initialized_on_receiver) == (True, False)
    assert scheme.weights["weight"].unique().tolist() == [3.0]
    assert "of 'critic': sender" in repr(scheme)
    del model
    gc.collect()
    assert scheme.model is scheme.weights is None
    weights = TensorDict(torch.nn.Linear(3, 1).state_dict())
    scheme.init_on_sender(weights=weights)
    assert scheme.weights is weights
    scheme.shutdown()
    scheme.shutdown()
    assert "not in use" in repr(scheme)


MISUSE = {
    "two sources": ({"model": torch.nn.Identity(), "weights": {}}, ValueError, "model and weights are both given"),
    "another model": ({"model_id": "critic"}, ValueError, "serves 'policy' and cannot serve 'critic'"),
    "no collector at all": ({"params_map": {0: {}}}, RuntimeError, "takes no params_map: .*update_policy_weights_"),
    "no collector": ({"context": torch.nn.Identity()}, TypeError, "it must be a collector"),
}


@pytest.mark.parametrize(("arguments", "error", "message"), MISUSE.values(), ids=MISUSE)
def test_misuse_is_refused(arguments, error, message):
    scheme = WeightSyncScheme()
    scheme.init_on_sender(model_id="policy")
    with pytest.raises(error, match=message):
        scheme.init_on_sender(**arguments)


def test_other_backends_are_refused():
    with pytest.raises(ValueError, match="backend='rpc' must be one of 'none', 'direct'"):
        WeightSyncScheme.from_backend("rpc")
