"""Weights as TensorDicts and as state dicts: out of models, and into them."""

from collections import OrderedDict

import pytest
import torch
from scheme_toys import Filled
from tensordict import TensorDict
from torch import nn

from swath import WeightStrategy

FORMS = ("tensordict", "state_dict")


def as_dict(value):
    return {key: as_dict(part) if isinstance(part, TensorDict) else value[key] for key, part in value.items()}


def test_a_tensordict_nests_and_has_extra_state_beside_the_weights_of_its_module():
    weights = WeightStrategy().extract_weights(Filled(2.0))
    assert isinstance(weights, TensorDict)
    assert weights["body", "weight"].unique().tolist() == [2.0]
    assert weights["note", "__extra_state__"] == {"text": "2.0"}
    assert set(weights.keys()) == {"body", "note", "seen"}


def test_a_state_dict_has_the_names_that_torch_gives():
    weights, module = WeightStrategy("state_dict").extract_weights(Filled(2.0)), Filled(0.0)
    assert isinstance(weights, OrderedDict)
    assert set(weights) == set(module.state_dict())
    module.load_state_dict(weights)
    assert module.values == {2.0}
    assert module.note.text == "2.0"


DESTINATIONS = {
    "a module": lambda: Filled(0.0),
    "a TensorDict": lambda: WeightStrategy().extract_weights(Filled(0.0)),
    "a nested dict": lambda: as_dict(WeightStrategy().extract_weights(Filled(0.0))),
    "a state_dict": lambda: Filled(0.0).state_dict(),
}


def seen_in(destination):
    if isinstance(destination, nn.Module):
        return destination.values, destination.note.text
    flat = WeightStrategy("state_dict").extract_weights(destination)
    text = flat.pop("note._extra_state")["text"]
    return {value for tensor in flat.values() for value in tensor.detach().reshape(-1).tolist()}, text


@pytest.mark.parametrize("inplace", [True, False], ids=["in place", "anew"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", DESTINATIONS.values(), ids=DESTINATIONS)
def test_weights_are_applied_wherever_they_fit(make, form, inplace):
    destination, strategy = make(), WeightStrategy(form)
    strategy.apply_weights(destination, strategy.extract_weights(Filled(2.0)), inplace=inplace)
    assert seen_in(destination) == ({2.0}, "2.0")


@pytest.mark.parametrize("make", DESTINATIONS.values(), ids=DESTINATIONS)
def test_wrong_names_are_a_key_error_and_change_nothing(make):
    destination = make()
    with pytest.raises(KeyError, match="unknown \\['head'\\]"):
        WeightStrategy().apply_weights(destination, {**Filled(2.0).state_dict(), "head": torch.ones(1)})
    assert seen_in(destination) == ({0.0}, "0.0")


def test_another_strategy_is_refused():
    with pytest.raises(ValueError, match="strategy='pickle' must be one of 'tensordict', 'state_dict'"):
        WeightStrategy("pickle")
