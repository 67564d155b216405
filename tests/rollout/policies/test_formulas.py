"""Formulas of draws give the bits of the distribution objects, and leave the generator as these do."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, ProbabilisticTensorDictModule, set_interaction_type
from tensordict.nn.distributions import Delta, OneHotCategorical
from torch import distributions

from swath.rollout.policies import formulas
from swath.rollout.policies.formulas import DrawRequest, checks_arguments, draw_with_object, find_formula

rl = pytest.importorskip("torchrl.modules", reason="these are mainly classes of TorchRL, whose import ends the checks")

RANDOM, MODE, MEAN = InteractionType.RANDOM, InteractionType.MODE, InteractionType.MEAN
DETERMINISTIC, MEDIAN = InteractionType.DETERMINISTIC, InteractionType.MEDIAN
CASES = [  # shape, dtype, seed
    ((3,), torch.float32, 0),
    ((4, 6), torch.float32, 1),
    ((1, 2), torch.float64, 2),
    ((2, 3, 6), torch.float32, 1),
]
EXTREMES = torch.tensor([-40.0, 40.0, -1e-30, 0.0, -0.0, 9.0])


def normal_parameters(shape, dtype, seed):
    loc = torch.randn(shape, dtype=dtype) * (1, 10, 0.1)[seed % 3]
    if seed % 2 and loc.numel():
        flat = loc.view(-1)
        flat[: min(len(flat), 6)] = EXTREMES[: min(len(flat), 6)].to(dtype)
    both = torch.cat([loc, torch.rand(shape, dtype=dtype) * 3 + 1e-3], -1)
    return dict(zip(("loc", "scale"), both.chunk(2, -1), strict=True))  # views, as of a network's output


def logits(shape, dtype, seed):
    values = torch.randn(shape, dtype=dtype) * (1, 30, 0)[seed % 3]
    return {"logits": values}


def probs(shape, dtype, seed):
    return {"probs": torch.rand(shape, dtype=dtype) * (1.0 - seed % 2) + 0.25}


def masked(shape, dtype, seed):
    mask = torch.rand(shape) > 0.5
    mask[..., seed % shape[-1]] = True
    return {**logits(shape, dtype, seed), "mask": mask}


def param(shape, dtype, seed):
    return {"param": normal_parameters(shape, dtype, seed)["loc"]}


SPAN = {"low": torch.tensor(-2.0), "high": torch.tensor(3.0)}
ROWS = [
    (distributions.Categorical, logits, {}),
    (distributions.Categorical, probs, {}),
    (distributions.OneHotCategorical, logits, {}),
    (distributions.OneHotCategorical, probs, {}),
    (OneHotCategorical, logits, {}),
    (OneHotCategorical, probs, {}),
    (rl.OneHotCategorical, logits, {}),
    (rl.OneHotCategorical, probs, {}),
    (rl.MaskedCategorical, masked, {}),
    (rl.MaskedCategorical, masked, {"neg_inf": -50.0}),
    (rl.MaskedOneHotCategorical, masked, {}),
    (distributions.Normal, normal_parameters, {}),
    (rl.IndependentNormal, normal_parameters, {}),
    (rl.IndependentNormal, normal_parameters, {"tanh_loc": True, "upscale": 2.0, "event_dim": 0}),
    (rl.TanhNormal, normal_parameters, {}),
    (rl.TanhNormal, normal_parameters, {"low": -2, "high": 2, "tanh_loc": True}),
    (rl.TanhNormal, normal_parameters, {"low": -0.5, "high": 2.5, "event_dims": 0}),
    (rl.TanhNormal, normal_parameters, {**SPAN, "upscale": 3.0, "tanh_loc": True, "safe_tanh": True}),
    (rl.TruncatedNormal, normal_parameters, {}),
    (rl.TruncatedNormal, normal_parameters, {"low": -2.0, "high": 2.0, "tanh_loc": True}),
    (rl.TruncatedNormal, normal_parameters, {"low": torch.tensor(-0.5), "high": torch.tensor(1.5)}),
    (rl.TanhDelta, param, {}),
    (rl.TanhDelta, param, {**SPAN, "event_dims": 1}),
    (rl.TanhDelta, param, {"low": -2, "high": 1.0}),
    (rl.Delta, param, {}),
    (Delta, param, {}),
]


def same_bits(a, b):
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def module_of(request):
    cls = rl.SafeProbabilisticModule if request.joint else ProbabilisticTensorDictModule
    return cls(
        in_keys=[*request.example],
        out_keys=["value"],
        distribution_class=request.distribution,
        distribution_kwargs=dict(request.options),
        return_log_prob=request.scored,
        log_prob_key="score",
        default_interaction_type=request.exploration,
        n_empirical_estimate=request.n_estimate,
    )


def drawn_by_module(request, seed):
    torch.manual_seed(seed)
    td = TensorDict(dict(request.example), batch_size=[])
    with set_interaction_type(request.exploration), torch.no_grad():
        td = module_of(request)(td)
    return td["value"], td.get("score"), torch.get_rng_state()


def drawn_by(draw, request, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        value, score = draw(*request.example.values())
    return value, score, torch.get_rng_state()


def requests_of(distribution, parameters, options, types):
    for shape, dtype, seed in CASES:
        torch.manual_seed(1000 + seed)
        example = parameters(shape, dtype, seed)
        for exploration, (scored, joint) in itertools.product(types, ((False, False), (True, False), (True, True))):
            if joint and exploration is not RANDOM:
                continue
            yield seed, DrawRequest(distribution, options, example, exploration, scored, joint, 10)


def name_of(row):
    return f"{row[0].__module__.split('.')[0]}-{row[0].__name__}-{row[1].__name__}-{sorted(row[2])}"


def differences(found, wanted):
    """Return the names of the results that differ."""
    pairs = zip(("value", "score", "generator"), found, wanted, strict=True)
    return [name for name, a, b in pairs if (a is None) != (b is None) or (a is not None and not same_bits(a, b))]


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_formula_gives_the_bits_of_the_object(row):
    covered = set()
    for seed, request in requests_of(*row, [RANDOM, MODE, MEAN, DETERMINISTIC, MEDIAN]):
        draw = find_formula(request)
        if draw is None:
            continue
        covered.add((request.exploration, request.scored))
        found, wanted = drawn_by(draw, request, seed), drawn_by_module(request, seed)
        assert differences(found, wanted) == [], (request.exploration, request.scored, request.joint, request.example)
    assert (RANDOM, False) in covered
    assert (DETERMINISTIC, False) in covered
    assert ((RANDOM, True) in covered) == ("Delta" not in row[0].__name__)


def test_many_draws_of_categories_are_the_draws_of_the_object():
    for seed in range(50):
        torch.manual_seed(seed)
        example = {"logits": torch.randn(64, 5) * (seed % 4)}
        request = DrawRequest(distributions.Categorical, {}, example, RANDOM, scored=True, joint=False, n_estimate=10)
        assert differences(drawn_by(find_formula(request), request, seed), drawn_by_module(request, seed)) == []


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_draw_with_the_object_gives_the_bits_of_the_module(row):
    for seed, request in requests_of(*row, [RANDOM, MEAN, DETERMINISTIC]):
        draw = None if request.scored and request.exploration is MEAN else draw_with_object(request)
        if draw is not None:
            assert differences(drawn_by(draw, request, seed), drawn_by_module(request, seed)) == []


def test_all_rows_of_the_table_are_tested():
    tested = {f"{row[0].__module__}.{row[0].__qualname__}" for row in ROWS}
    assert tested == set(formulas.FORMULAS)


@pytest.mark.parametrize(
    ("distribution", "parameters", "options"),
    [
        (distributions.Beta, {"concentration1": torch.ones(3), "concentration0": torch.ones(3)}, {}),
        (distributions.Normal, {"loc": torch.zeros(3, 2), "scale": torch.ones(2)}, {}),  # scale is widened
        (rl.TanhNormal, {"loc": torch.zeros(3), "scale": torch.ones(3)}, {"safe_tanh": False}),
        (rl.TanhNormal, {"loc": torch.zeros(3), "scale": torch.ones(3)}, {"low": torch.zeros(2, 3) - 1}),
        (rl.TanhNormal, {"loc": torch.zeros(3), "scale": torch.ones(3)}, {"low": 2.0}),
        (rl.MaskedCategorical, {"logits": torch.zeros(3), "indices": torch.tensor([0, 1])}, {}),
        (rl.OneHotCategorical, {"logits": torch.zeros(3, 1)}, {}),  # whose last dimension TorchRL drops
        (partial(distributions.Normal), {"loc": torch.zeros(3), "scale": torch.ones(3)}, {}),
    ],
)
def test_what_no_formula_covers_has_none(distribution, parameters, options):
    request = DrawRequest(distribution, options, parameters, RANDOM, scored=True, joint=False, n_estimate=10)
    assert find_formula(request) is None


def test_errors_of_a_draw_are_the_errors_of_the_object():
    broken = DrawRequest(distributions.Categorical, {}, {"logits": torch.full((2, 3), math.nan)}, RANDOM, True, True, 1)
    with pytest.raises(RuntimeError) as by_object:
        drawn_by_module(broken, 0)
    with pytest.raises(RuntimeError, match=str(by_object.value)[:30]):
        drawn_by(find_formula(broken), broken, 0)


def test_distributions_that_check_their_arguments_have_no_formula():
    request = DrawRequest(distributions.Categorical, {}, {"logits": torch.zeros(2, 3)}, RANDOM, True, True, 1)
    assert not checks_arguments()
    distributions.Distribution.set_default_validate_args(True)
    try:
        assert checks_arguments()
        assert find_formula(request) is None
        unchecked = replace(request, options={"validate_args": False})
        assert differences(drawn_by(find_formula(unchecked), unchecked, 0), drawn_by_module(unchecked, 0)) == []
        for_one_hot = replace(unchecked, distribution=distributions.OneHotCategorical)  # which checks nevertheless
        assert find_formula(for_one_hot) is None
    finally:
        distributions.Distribution.set_default_validate_args(False)
