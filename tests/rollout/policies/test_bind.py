"""Policies of every form, bound to a host: their inputs and outputs."""

import re

import numpy as np
import pytest
import torch
from gymnasium import spaces
from policy_toys import VECTOR, observed, spec_of
from tensordict import TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
)
from torch import nn
from torch.distributions import Categorical, Normal

from swath.rollout.policies.binding import bind
from swath.rollout.policies.calling import BindingOptions

SEVERAL = spaces.Dict({"position": VECTOR, "task": spaces.Discrete(2), "in": spaces.Dict({"side": VECTOR})})
ALL = [InteractionType.RANDOM, InteractionType.DETERMINISTIC, InteractionType.MODE, InteractionType.MEAN]


def bound(policy, spec=None, **options):
    spec = spec or spec_of()
    return bind(policy, spec, observed(spec), BindingOptions(**options))


def answered(policy, spec=None, **options):
    """Outputs by key, for the observation of seed 1."""
    spec = spec or spec_of()
    policy = bound(policy, spec, **options)
    with torch.no_grad():  # as in the loop
        return dict(zip(policy.keys, policy(observed(spec, 1)), strict=True))


class Recorder:
    """A function of one argument that records its inputs."""

    def __init__(self, answer):
        self.answer, self.calls = answer, []

    def __call__(self, observation):
        self.calls.append(observation)
        return self.answer


# ---- inputs


def test_a_function_of_one_parameter_gets_a_nested_dict_of_several_observations():
    recorder = Recorder(torch.zeros(3, dtype=torch.int64))
    spec = spec_of(SEVERAL)
    bound(recorder, spec)(observed(spec, 1))
    inputs = recorder.calls[-1]
    by_key = dict(zip([leaf.key for leaf in spec.observation], observed(spec, 1), strict=True))
    assert sorted(inputs) == ["in", "position", "task"]
    np.testing.assert_array_equal(inputs["in"]["side"], by_key["in", "side"])
    np.testing.assert_array_equal(inputs["task"], by_key["task"])


def test_parameters_named_after_entries_get_these_by_keyword_also_optional_ones():
    def policy(task, /, *, scale=1.0, position=None):
        raise AssertionError("positional-only names cannot be called by keyword")

    def by_name(task, scale=1.0, position=None):
        assert scale == 1.0
        return task + (position[:, 0] > 0)

    spec = spec_of(SEVERAL)
    position, task = (observed(spec, 1)[i] for i in (1, 2))
    np.testing.assert_array_equal(answered(by_name, spec)["action"], task + (position[:, 0] > 0))
    with pytest.raises((TypeError, AssertionError)):
        answered(policy, spec)


def test_in_keys_are_given_in_order():
    class Ordered(nn.Module):
        in_keys = ["task", ("in", "side")]

        def forward(self, first, second):
            return first + (second[:, 0] > 0)

    spec = spec_of(SEVERAL)
    leaves = dict(zip([leaf.key for leaf in spec.observation], observed(spec, 1), strict=True))
    expected = leaves["task"] + (leaves["in", "side"][:, 0] > 0)
    np.testing.assert_array_equal(answered(Ordered(), spec)["action"], expected)


def tensordict_named(tensordict):
    return tensordict.set("action", tensordict["observation"][..., 0] > 0).update(
        {"action": tensordict["action"].long()}
    )


def td_named(td):
    td["action"] = (td["observation"][..., 0] > 0).long()


def annotated(batch: TensorDict):
    return TensorDict({"action": (batch["observation"][..., 0] > 0).long()}, batch.batch_size)


def annotated_by_name(batch: "TensorDict"):
    return annotated(batch)


def trusted(anything, other=None):
    return annotated(anything)


@pytest.mark.parametrize("policy", [tensordict_named, td_named, annotated, annotated_by_name, trusted])
@pytest.mark.parametrize("bare", [False, True])
def test_policies_of_tensordicts_get_one_and_may_write_in_place_or_return_another(policy, bare):
    spec = spec_of(bare=bare)
    expected = (observed(spec, 1)[0][:, 0] > 0).astype(np.int64)
    outputs = answered(policy, spec, trust=policy is trusted)
    assert list(outputs) == ["action"]
    np.testing.assert_array_equal(outputs["action"], expected)


def probabilistic(distribution, keys, action_space):
    n = 2 if distribution is Categorical else 4
    net = TensorDictModule(
        nn.Linear(4, n) if distribution is Categorical else lambda x: (x[..., :2], torch.ones_like(x[..., :2])),
        in_keys=["observation"],
        out_keys=keys,
    )
    head = ProbabilisticTensorDictModule(
        in_keys=keys, out_keys=["action"], distribution_class=distribution, return_log_prob=True
    )
    return ProbabilisticTensorDictSequential(net, head), spec_of(action=action_space, num_envs=64)


@pytest.mark.parametrize("exploration", ALL)
def test_a_probabilistic_module_picks_actions_as_the_exploration_type_says(exploration):
    module, spec = probabilistic(Normal, ["loc", "scale"], spaces.Box(-1, 1, (2,)))
    outputs = answered(module, spec, exploration=exploration)
    mean = observed(spec, 1)[0][:, :2]
    assert np.allclose(outputs["action"], mean) == (exploration is not InteractionType.RANDOM)
    assert set(outputs) == {"action", "loc", "scale", "action_log_prob"}
    expected = Normal(torch.from_numpy(mean), 1.0).log_prob(torch.from_numpy(outputs["action"]))
    got = outputs["action_log_prob"]
    assert np.allclose(got, expected.numpy() if got.ndim == 2 else expected.sum(-1).numpy(), atol=1e-5)


# ---- policies that cannot be called


def two_parameters(x, y):
    return x


class NoParameters:
    def __call__(self):
        return 0


@pytest.mark.parametrize("policy", [two_parameters, NoParameters(), lambda *args: 0, lambda observation, reward: 0])
def test_a_policy_that_fits_nowhere_is_a_type_error_with_its_parameters_and_the_way_out(policy):
    with pytest.raises(
        TypeError, match=r"parameters are \[.*\], the env's entries \['observation'\].*trust_policy=True"
    ):
        bound(policy)


def test_a_class_in_the_place_of_a_policy_is_refused_by_name():
    with pytest.raises(TypeError, match=r"policy is the class NoParameters; .* \(an instance, not a class\)"):
        bound(NoParameters)


@pytest.mark.parametrize(
    ("policy", "note"),
    [
        (nn.Linear(99, 2), r"the first call of the policy Linear, with 'observation' \(\d+, \d+\)$"),
        (TensorDictModule(nn.Linear(2, 2), ["obs"], ["action"]), r"None for \['obs'\], which the env does not give"),
    ],
)
def test_an_exception_of_the_first_call_has_a_note_with_the_inputs(policy, note):
    with pytest.raises((RuntimeError, KeyError)) as caught:
        bound(policy)
    assert re.search(note, caught.value.__notes__[-1])


def test_a_key_that_the_env_does_not_write_is_a_key_error():
    class Reads(nn.Module):
        in_keys = ["observation", "goal"]
        out_keys = ["action"]

        def forward(self, observation, goal):
            return observation[..., 0].long()

    for options in ({}, {"recurrent": False}):
        with pytest.raises(KeyError, match=r"the policy reads \['goal'\]"):
            bound(Reads(), **options)


# ---- outputs

ANSWERS = {
    "a tensor": lambda x: x[..., 0].long(),
    "an array": lambda x: x[..., 0].numpy().astype(np.int64),
    "int32": lambda x: x[..., 0].int(),
    "a dict": lambda x: {"action": x[..., 0].long()},
    "a tuple": lambda x: (x[..., 0].long(),),
    "a list": lambda x: x[..., 0].long().reshape(-1).tolist() if x.ndim > 1 else int(x[..., 0]),
    "with gradient": lambda x: (nn.Parameter(x)[..., 0]).long(),
    "a view": lambda x: x.long()[..., 0],
}


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("form", list(ANSWERS))
def test_an_action_may_be(form, bare):
    spec = spec_of(bare=bare)
    expected = observed(spec, 1)[0][:, 0].astype(np.int64)
    action = answered(ANSWERS[form], spec)["action"]
    assert action.shape == (spec.num_envs,)
    np.testing.assert_array_equal(action, expected)


def test_a_tuple_goes_to_out_keys_or_is_numbered():
    def policy(x):
        return x[..., 1], x[..., 0].long(), x[..., 2]

    policy.in_keys, policy.out_keys = ["observation"], [("stats", "value"), "action", "_hidden"]
    spec = spec_of()
    outputs = answered(policy, spec)
    assert list(outputs) == ["action", ("stats", "value")]
    np.testing.assert_array_equal(outputs["stats", "value"], observed(spec, 1)[0][:, 1])
    assert list(answered(lambda x: (x[..., 0].long(), x[..., 1], x[..., 2]))) == ["action", "output1", "output2"]


def test_actions_of_dict_and_tuple_spaces_are_found_by_key_and_by_place():
    space = spaces.Dict({"x": spaces.Discrete(3), "y": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(2)))})
    spec = spec_of(action=space)
    values = [torch.zeros(3, dtype=torch.int64), torch.ones(3, 2), torch.ones(3, dtype=torch.int64)]
    nested = {"action": {"y": {"1": values[2], "0": values[1]}, "x": values[0]}, "value": torch.zeros(3)}
    tuples = {("action", "y"): {"1": values[2], "0": values[1]}, ("action", "x"): values[0], "value": torch.zeros(3)}
    keys = [("action", "x"), ("action", "y", "0"), ("action", "y", "1")]
    assert list(answered(lambda observation: nested, spec)) == [*keys, "value"]
    assert list(answered(lambda observation: tuples, spec)) == [*keys, "value"]
    assert list(answered(lambda observation: tuple(values), spec)) == keys
    with pytest.raises(KeyError, match="returned one Tensor, the env wants the actions"):
        answered(lambda observation: values[0], spec)


def test_an_answer_named_next_is_refused():
    with pytest.raises(ValueError, match="an entry 'next', which batches have already; give it another name"):
        answered(lambda observation: {"action": observation[..., :2], "next": observation})


def test_an_answer_without_action_is_a_key_error_that_lists_what_there_is():
    with pytest.raises(KeyError, match=r"must answer with the action \['action'\]; it answered with \['value'\]"):
        answered(lambda observation: {"value": observation})
    with pytest.raises(KeyError, match="must answer with the action"):
        answered(lambda observation: {"action": {"x": observation}})

    def policy(observation):
        return observation, observation

    policy.out_keys = ["a", "b"]
    with pytest.raises(KeyError, match=r"it answered with \['a', 'b'\]"):
        answered(policy)


BOX, DISCRETE = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
MISFITS = {
    "nothing": (DISCRETE, lambda x: None, TypeError, r"returned None; .*'action'.*is a `return` missing\?"),
    "one action for all": (DISCRETE, lambda x: torch.tensor(1), ValueError, r"has shape \(\); .* wants \(3,\)"),
    "a column": (DISCRETE, lambda x: x[..., :1].long(), ValueError, r"has shape \(3, 1\); .* wants \(3,\)"),
    "one-hot": (DISCRETE, lambda x: x[..., :2].long(), ValueError, r"has shape \(3, 2\)"),
    "another width": (BOX, lambda x: x[..., :3], ValueError, r"has shape \(3, 3\); .* wants \(3, 2\)"),
    "floats for ints": (DISCRETE, lambda x: x[..., 0], TypeError, "has dtype float32; .* wants int64"),
    "ints for floats": (BOX, lambda x: x[..., :2].long(), TypeError, "has dtype int64; .* wants float32"),
    "text": (spaces.Discrete(2), lambda x: np.array(["a", "b", "c"]), TypeError, "has dtype <U1; .* wants int64"),
}


@pytest.mark.parametrize("name", list(MISFITS))
def test_an_action_that_does_not_fit_the_space_is_an_error_with_both(name):
    space, policy, error, message = MISFITS[name]
    with pytest.raises(error, match=message):
        bound(policy, spec_of(action=space))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (lambda x: torch.tensor(1.0), ValueError, r"'value' has shape \(\); it must begin with the batch shape \(3,\)"),
        (lambda x: x.T, ValueError, r"'value' has shape \(4, 3\)"),
        (lambda x: np.array(["a"] * 3), TypeError, "'value' is .*'a'.*; it must be a tensor, an array or a number"),
    ],
)
def test_another_output_without_a_row_per_env_is_an_error(value, error, message):
    with pytest.raises(error, match=message):
        bound(lambda x: {"action": x[..., 0].long(), "value": value(x)})


# ---- memory and gradients


def test_a_policy_that_writes_into_its_observation_changes_neither_the_recorded_nor_the_next_one():
    inputs = []

    def policy(observation):
        inputs.append(observation.clone())
        observation.mul_(0).sub_(1)
        return torch.zeros(3, dtype=torch.int64)

    spec = spec_of()
    first, second = observed(spec), observed(spec, 1)
    policy = bind(policy, spec, first, BindingOptions())
    np.testing.assert_array_equal(first[0], observed(spec)[0])
    policy(first)
    policy(second)
    np.testing.assert_array_equal(first[0], observed(spec)[0])
    np.testing.assert_array_equal(second[0], observed(spec, 1)[0])
    np.testing.assert_array_equal(inputs[1], first[0])
