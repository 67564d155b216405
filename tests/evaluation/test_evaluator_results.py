"""What `Evaluator` gives back: keys and types everywhere alike, whose outcome is read when, what users measure."""

import numpy as np
import pytest
import torch
from evaluator_toys import PLACES, Named, evaluated, evaluator
from tensordict import TensorDict
from torch import nn
from uneven_env import Shifted, played

from plain import plain
from swath import Collector
from swath.evaluators import Evaluator

pytestmark = pytest.mark.usefixtures("warm_processes")

FLOATS = {
    *("reward", "reward_std", "reward_min", "reward_max", "reward_median", "reward_iqm"),
    *("reward_ci_low", "reward_ci_high", "episode_length", "duration_s", "fps"),
}
INTS = {"num_episodes", "frames", "step", "policy_version"}
KINDS = [
    ({}, {}),
    ({"per_episode": True}, {"episode_rewards": torch.float64, "episode_lengths": torch.int64}),
    ({"env": "uneven_env:UnevenEnv-v0", "record_video": 1}, {"video": torch.uint8}),
    (
        {"metrics_fn": lambda td: {"rows": len(td), "on": True, "sum": td["next", "reward"].sum()}},
        {"sum": torch.float32},
    ),
]


@pytest.mark.parametrize(("options", "tensors"), KINDS, ids=["defaults", "per_episode", "record_video", "metrics_fn"])
def test_keys_and_types_are_those_of_a_table(options, tensors):
    """That they are the same everywhere is part of the contract."""
    result = evaluated(**options)
    plain = {key: value for key, value in result.items() if not isinstance(value, torch.Tensor)}
    measured = {"rows": int, "on": bool} if "metrics_fn" in options else {}
    assert {key.removeprefix("eval/"): type(value) for key, value in plain.items()} == {
        **dict.fromkeys(FLOATS, float),
        **dict.fromkeys(INTS, int),
        **measured,
    }
    assert {key: result[f"eval/{key}"].dtype for key in tensors} == tensors
    assert len(result) == len(plain) + len(tensors)


# Reading ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_outcomes_are_read_once_in_their_order_errors_too(place):
    with evaluator(place, busy_policy="queue") as ev:
        assert ev.poll() is ev.wait() is None
        assert ev.trigger_eval(step=5)
        assert ev.trigger_eval(nn.Linear(2, 2), step=6)
        assert ev.trigger_eval(step=7)
        assert ev.evaluate(step=8).step == 8
        assert not ev.pending
        assert ev.poll().step == 5
        with pytest.raises(KeyError, match="missing"):
            ev.poll()
        assert ev.wait().step == 7
        assert ev.poll() is ev.poll(None) is ev.wait() is None
        assert {key: ev.stats()[key] for key in ("accepted", "completed", "errors", "unread")} == {
            "accepted": 4,
            "completed": 3,
            "errors": 1,
            "unread": 0,
        }


def test_steps_are_counted_where_none_is_given_and_refused_requests_use_none_up():
    shift = Shifted()
    with evaluator(busy_policy="queue") as ev:
        for step in (None, np.int64(40), None):
            ev.trigger_eval(step=step)
        for wrong, error in ((1.5, TypeError), ("3", TypeError)):
            with pytest.raises(error, match="integer"):
                ev.trigger_eval(shift, step=wrong)
        with pytest.raises(TypeError, match="integer"):
            ev.evaluate(step=torch.tensor(1.5))  # which has __index__, and refuses it
        with pytest.raises(TypeError, match="weights are of type int"):
            ev.trigger_eval(5)
        ev.trigger_eval()
        results = [ev.wait() for _ in range(4)]
    assert [result.step for result in results] == [0, 40, 1, 2]
    assert [result["eval/step"] for result in results] == [0, 40, 1, 2]


@pytest.mark.parametrize("place", PLACES)
def test_weights_come_in_every_form(place):
    policy = Shifted(1)
    forms = [policy, policy.state_dict(), TensorDict.from_module(policy), Evaluator.extract_weights(policy)]
    with evaluator(place) as ev:
        returns = [ev.evaluate(form).returns.tolist() for form in forms]
        returns.append(ev.evaluate(weights_dict={"policy": policy}).returns.tolist())
        returns.append(ev.evaluate().returns.tolist())
        last = ev.evaluate(weights_dict={})
    assert [*returns, last.returns.tolist()] == [[played(seed, 1)[0] for seed in last.seeds]] * 7
    assert last["eval/policy_version"] == 5


@pytest.mark.parametrize("place", PLACES)
def test_listeners_get_flat_tensordicts_on_the_cpu(place):
    heard = []
    result = evaluated(place, on_result=heard.append, per_episode=True)
    assert [each.batch_size for each in heard] == [torch.Size([])]
    assert set(heard[0].keys()) == set(result)
    for key, value in result.items():
        said = heard[0][key]
        assert said.dtype == {float: torch.float64, int: torch.int64}.get(type(value), said.dtype)
        assert said.tolist() == (value.tolist() if isinstance(value, torch.Tensor) else value)


# metrics_fn ---------------------------------------------------------------------------------------------------------


def trajectories(place="thread", **options):
    """What `metrics_fn` gets, and the result."""
    seen = []
    result = evaluated(place, metrics_fn=lambda td: seen.append(td) or {}, **options)
    assert len(seen) == 1
    return seen[0], result


@pytest.mark.parametrize(
    ("place", "layout"),
    [("thread", {}), ("thread", {"num_envs": 3}), ("process", {"num_envs": 2, "num_workers": 2})],
    ids=plain,
)
def test_trajectories_are_all_episodes_in_order(place, layout):
    td, result = trajectories(place, max_steps=30, num_trajectories=9, **layout)
    mask, lengths = td["collector", "mask"], torch.from_numpy(result.lengths)
    assert td.batch_size == (9, 30)
    assert td.device == torch.device("cpu")
    assert mask.equal(torch.arange(30) < lengths[:, None])
    assert td["collector", "traj_ids"][:, 0].tolist() == [*range(9)]
    assert (td["next", "reward"].squeeze(-1) * mask).sum(1).tolist() == result.returns.tolist()
    assert td["observation"][..., 1][mask].equal(torch.arange(30).expand(9, 30)[mask])
    assert td["next", "observation"][..., 1][mask].equal(1 + torch.arange(30).expand(9, 30)[mask])
    for flag in ("terminated", "truncated"):
        lasts = td["next", flag].squeeze(-1)[torch.arange(9), lengths - 1]
        assert lasts.tolist() == getattr(result, flag).tolist()
        assert int(td["next", flag].sum()) == int(lasts.sum())
    assert result.truncated.any()
    assert (td["next", "done"] == td["next", "terminated"] | td["next", "truncated"]).all()


def test_trajectories_have_the_entries_of_a_collector():
    collector = Collector(Named, Shifted(), frames_per_batch=8, trajs_per_batch=3)
    batch = next(iter(collector))
    collector.shutdown()
    td, _ = trajectories()
    keys = batch.keys(include_nested=True, leaves_only=True)
    assert {key: batch[key].dtype for key in keys} == {
        key: td[key].dtype for key in td.keys(include_nested=True, leaves_only=True)
    }
    assert {key: batch[key].shape[2:] for key in keys} == {key: td[key].shape[2:] for key in keys}


def raising(td):
    raise ZeroDivisionError("nothing to divide")


@pytest.mark.parametrize(
    ("measure", "kind", "text"),
    [
        (raising, ZeroDivisionError, "nothing to divide"),
        (lambda td: {"reward": 1.0}, ValueError, "'reward', which results have already"),
        (lambda td: {"video": 1.0}, ValueError, "'video'"),
        (lambda td: {"name": "x"}, TypeError, "name='x'"),
        (lambda td: {3: 1.0}, TypeError, "names are strings"),
        (lambda td: 3.0, TypeError, "not iterable"),
    ],
    ids=plain,
)
def test_what_goes_wrong_in_measuring_is_the_outcome_of_that_evaluation(measure, kind, text):
    wrong = [True]

    def metrics(td):
        return measure(td) if wrong.pop() else {"fine": 1}

    with evaluator(metrics_fn=metrics) as ev:
        ev.trigger_eval()
        with pytest.raises(kind, match=text):
            ev.wait()
        wrong.append(False)
        assert ev.evaluate()["eval/fine"] == 1
